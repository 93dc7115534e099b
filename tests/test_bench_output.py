"""What a benchmark makes of its samples: statistics, tables, plots, and the document that they come from."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench import plots, report
from bench.__main__ import main, read
from bench.figures import FIGURES, Results, Value, quantile, ratio_text
from bench.subjects import OURS
from proxy.errors import UserError
from tests.bench_documents import PEER, document

SCHEMA = json.loads((Path(__file__).parent.parent / "bench" / "bench-v1.schema.json").read_text())


# Statistics


def test_quantiles_lie_between_samples() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([1, 2], 0.5) == 1.5
    assert quantile([7], 0.99) == 7
    assert quantile(range(101), 0.99) == 99
    assert [quantile([1, 5, 9], share) for share in (0.0, 1.0)] == [1, 9]
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


def test_a_value_has_its_spread_and_three_digits() -> None:
    assert Value(0.5, 0.41, 0.6, 3).text(2) == "0.50 (0.41–0.60)"
    assert Value(1, 1, 1, 3).text(0) == "1"
    assert Value(12.345, 9, 15.55, 3).text(2) == "12.3 (9.00–15.6)"
    assert Value(1234.5, 1000, 2000, 3).text(2) == "1,234 (1,000–2,000)"
    assert Value(limit=45).text(2) == "> 45 s"
    assert [ratio_text(ratio) for ratio in (0.5, 1.04, 12.34, 1234.5, None)] == ["0.5×", "1×", "12×", "1,234×", ""]


def test_figures_are_of_all_rounds_and_their_spread_is_that_of_the_rounds() -> None:
    results = Results(document())
    start = results.value("1000x10", OURS, "start_s")
    assert start == Value(1.01, 1.0, 1.02, 3)
    p50 = results.value("1000x10", OURS, "endpoint_ms")
    assert p50 and (p50.count, round(p50.middle, 3)) == (303, 0.55) and p50.low == p50.high
    highest = results.value("1000x10", OURS, "endpoint_ms", 1.0)
    assert highest and (highest.middle, highest.low, highest.high) == (3.5, 1.5, 3.5)
    assert results.value("1000x10", OURS, "gone_ms") is None


def test_one_outlier_of_many_samples_is_no_spread() -> None:
    made = document()
    template = next(each for each in made["measurements"] if each["figure"] == "change_ms")
    made["measurements"] = [template | {"samples": [*range(1, 102), 10_000.0]}]
    value = Results(made).value("100x10", OURS, "change_ms")
    assert value and (value.low, value.middle, value.high) == (26.25, 51.5, 76.75)


def test_what_was_given_up_is_a_limit_and_at_least_so_many_times_as_slow() -> None:
    results = Results(document())
    assert results.value("1000x50", PEER, "start_s") == Value(limit=45)
    assert results.ratio("1000x50", PEER, "start_s", OURS) == pytest.approx(45 / 2.01)
    assert results.ratio("100x10", PEER, "start_s", OURS) == pytest.approx(5 / 0.51)
    assert results.ratio("1000x50", PEER, "endpoint_ms", OURS) is None


def test_a_limit_is_in_seconds_whatever_the_unit_of_the_figure_and_widens_the_spread_of_other_rounds() -> None:
    made = document()
    made["measurements"].append(
        {
            "part": "control",
            "size": "100x10",
            "subject": PEER,
            "figure": "endpoint_ms",
            "round": 1,
            "samples": [],
            "limit": 45,
        }
    )
    value = Results(made).value("100x10", PEER, "endpoint_ms")
    assert value and (value.middle, value.high) == (120, 45_000)


# Tables


def test_the_table_has_every_figure_of_every_size_in_120_columns() -> None:
    text = report.text(document())
    assert max(map(len, text.splitlines())) <= report.WIDTH
    flat = " ".join(text.split())
    for expected in (
        "100 × 10", "1,000 × 50", "A Model of CPU, 2 cores, 24,105 MB, Linux 6.18.0", "commit 0123456789ab;", "load 1.50",
        "Warning: the load average", "1.01 (1.00–1.02)", "5.00", "9.8×", "> 45 s", "> 22×", "0.55", "p99", "one endpoint",
        "7.5 (7.0–10.0)", "52", "iptables-nft", "100×",
    ):  # fmt: skip
        assert expected in flat, expected
    assert "failed: 1000x10 kube-proxy, a gang of 512: it ended by itself" in text and "panic: [no]" in text
    assert "Not complete" not in text


def test_what_was_interrupted_is_said_to_be_not_complete() -> None:
    made = document()
    made["stopped"] = "interrupted"
    made["measurements"] = []
    assert "Not complete: interrupted" in report.text(made)


def test_a_data_plane_that_cannot_be_shown_costs_nobody_the_rest() -> None:
    made = document()
    made["dataplane"] = {"connect": 1}
    text = report.text(made)
    assert "cannot be shown" in text and "A gang of 512 pods" in text


def test_figures_have_keys_of_their_own_that_end_with_their_unit() -> None:
    assert len({figure.key for figure in FIGURES}) == len(FIGURES)
    units = {"ms": "_ms", "s": "_s", "MB": "_mb", "%": "_percent", "B": "_bytes", "": ""}
    assert all(figure.key.endswith(units[figure.unit]) for figure in FIGURES)


# Plots


def test_plots_are_well_formed_and_labelled(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = {path.name: path for path in plots.draw(document(), tmp_path)}
    assert set(files) == {"start.svg", "latency.svg", "load.svg", "change.svg"}
    texts = {name: _texts(path) for name, path in files.items()}
    for words in texts.values():
        assert {"Services × endpoints of each", "100", "1,000", "× 10"} <= set(words)
        assert any("A Model of CPU, 2 cores, Linux 6.18.0, commit 0123456789ab" in text for text in words)
    assert {"seconds", f"{OURS}: start", f"{OURS}: restart", f"{PEER}: start", "× 50"} <= set(texts["start.svg"])
    assert {"milliseconds", f"{OURS}: p50", f"{OURS}: p99", f"{PEER}: p50"} <= set(texts["latency.svg"])
    assert {OURS, "iptables-nft"} <= set(texts["load.svg"]) & set(texts["change.svg"])
    assert any(text.startswith("Percentiles of all changes; bars: of single rounds") for text in texts["latency.svg"])
    assert any(text.startswith("Median; bars: lowest to highest") for text in texts["start.svg"])
    busy = document() | {"others": {"cpu_percent": 53.0, "stolen_percent": 0.0}}
    assert "others used" not in files["start.svg"].read_text()
    assert "; others used 53 % of the CPUs. A Model" in plots.draw(busy, tmp_path)[0].read_text()


def test_connections_through_a_service_and_past_it_are_drawn_against_one_node_for_all() -> None:
    made = document()

    def more(median: float, low: float) -> dict[str, Any]:
        return {"above no nat": {"median": median, "low": low, "high": 3.0}}

    def pod(low: float) -> dict[str, Any]:
        ways = {"clusterIP": more(2.5, low), "direct": more(1.5, 1.4)}
        return {"pod": {"tcp": {"ours": ways, "iptables-nft": {"direct": more(160, 159), "clusterIP": more(12, 11)}}}}

    made["dataplane"] = {"connect": {"1000x10": pod(2.4), "5000x10": pod(-0.1)}}
    [*_, plot] = plots.plots(made)
    assert (plot.name, plot.unit) == ("connect", "microseconds")
    lines = {line.label: line for line in plot.lines}
    through, past = lines[f"{OURS}: clusterIP"], lines[f"{OURS}: direct"]
    assert [(str(size), value.middle, value.low) for size, value in through.values] == [("1000x10", 2.5, 2.4)]
    assert [value.middle for _, value in past.values] == [1.5, 1.5] and past.dashed and past.colour == through.colour
    assert [value.middle for _, value in lines["iptables-nft: direct"].values] == [160, 160]


def test_the_same_figures_give_the_same_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first = [path.read_bytes() for path in plots.draw(document(), tmp_path)]
    assert [path.read_bytes() for path in plots.draw(document(), tmp_path)] == first


def test_lines_join_one_point_for_each_number_of_services() -> None:
    by_name = {plot.name: plot for plot in plots.plots(document())}
    [ours, *_] = by_name["start"].lines
    joined, lone = plots._joined(ours.values)
    assert [str(size) for size, _ in joined] == ["100x10", "1000x10"] and [str(size) for size, _ in lone] == ["1000x50"]


@pytest.mark.parametrize(
    ("places", "found"), [([], []), ([0.5], [0.5]), ([0.1, 0.12, 0.5], [0.1, 0.2, 0.5]), ([0.95, 0.99], [0.9, 1.0])]
)
def test_labels_stand_apart(places: Sequence[float], found: Sequence[float]) -> None:
    assert plots.apart(places, 0.1) == pytest.approx(found)


def _texts(path: Path) -> list[str]:
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith(("}text", "}tspan"))]


# The document


def test_the_schema_takes_it_and_nothing_else() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    made = document()
    jsonschema.validate(made, SCHEMA)
    made["measurements"][0]["figure"] = "Start, s"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, SCHEMA)


def test_tables_and_plots_are_made_again_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(document()))
    assert main(["--draw", str(file), "--output", str(tmp_path / "out")]) == 1  # something failed
    assert "A gang of 512 pods" in capsys.readouterr().out
    assert not (tmp_path / "out" / "bench.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1}', "null"])
def test_a_file_that_is_none_of_ours_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"other\.json"):
        read(file)
    assert main(["--draw", str(file), "--output", str(tmp_path)]) == 1
    assert "other.json" in capsys.readouterr().err


def test_matplotlib_is_not_imported_before_something_is_drawn() -> None:
    code = "import sys, bench.__main__, bench.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

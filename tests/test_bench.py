"""The benchmark's command line, its changes and their marks, and what it sends for peers: nothing is measured here."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench import machine, marks, records
from bench.changes import GANG_MARKS, READY, WAITING, Cluster, gang
from bench.dataplane_peers import iptables, nftables
from bench.dataplane_services import Port, Size
from bench.layouts_worker import plain_ports
from bench.options import OUTPUT, check_iptables, parse
from bench.peer_text import IptablesChanges, nftables_change
from bench.plan import FULL, QUICK, QUICK_SIZES, SIZES, sizes
from bench.progress import Bar
from bench.servers import StandIn
from bench.subjects import OURS, configuration, peers
from integration.apiserver import FakeApi
from proxy.config import load_config
from proxy.errors import UsageError
from tests.bench_documents import document

SCHEMA = json.loads((Path(__file__).parent.parent / "bench" / "bench-v1.schema.json").read_text())


# Sizes and options


def test_sizes_come_with_commas_and_again_each_once_and_in_order() -> None:
    assert [str(size) for size in sizes(["1000x10, 20x2", "20X2", "5×1"])] == ["1000x10", "20x2", "5x1"]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        ",",
        "10",
        "10x",
        "x10",
        "0x10",
        "10x0",
        "-5x10",
        "1e3x10",
        "ten x ten",
        "300000x1",
        "9x999999",
        "1x1001",
        "4000x1000",
    ],
)
def test_what_is_no_size_is_refused_by_name(bad: str) -> None:
    with pytest.raises(ValueError, match=re.escape(bad) if bad.strip(",") else "no size"):
        sizes([bad])


def test_without_options_all_sizes_and_parts_are_measured() -> None:
    options = parse([])
    assert [str(size) for size in options.sizes] == list(SIZES) and options.plan == FULL and not options.quick
    assert options.parts == ("control", "layouts", "dataplane") and options.output == OUTPUT
    assert [subject.name for subject in options.subjects] == [OURS]


def test_quick_is_less_and_can_be_told_to_be_more(tmp_path: Path) -> None:
    options = parse(["--quick"])
    assert options.plan == QUICK and [str(size) for size in options.sizes] == list(QUICK_SIZES)
    options = parse(["--quick", "--sizes", "7x7", "--rounds", "4", "--timeout", "2.5", "--parts", "dataplane,control"])
    assert (options.plan.rounds, options.plan.layout_rounds, options.plan.timeout) == (4, 4, 2.5)
    assert options.plan.changes == QUICK.changes and options.parts == ("control", "dataplane")


def test_peers_are_named_after_their_files_and_stand_for_generated_layouts(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "kube-proxy").write_text("#!/bin/sh\n")
        (tmp_path / folder / "kube-proxy").chmod(0o755)
    options = parse(["--peer", str(tmp_path / "a/kube-proxy"), "--peer", str(tmp_path / "b/kube-proxy")])
    assert [subject.name for subject in options.subjects] == [OURS, "kube-proxy", "kube-proxy (2)"]
    assert "layouts" not in options.parts
    assert parse(["--peer", str(tmp_path / "a/kube-proxy"), "--parts", "layouts"]).parts == ("layouts",)
    assert peers([f"/x/{OURS}"], "nftables")[0].name != OURS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "x"], "'x' is no size"),
        (["--rounds", "0"], "number above 0"),
        (["--timeout", "-1"], "number above 0"),
        (["--timeout", "nan"], "number above 0"),
        (["--parts", "control,rest"], "rest: not one of"),
        (["--peer-mode", "ipvs"], "invalid choice"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_peer_that_cannot_be_started_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    with pytest.raises(UsageError, match="no such file"):
        parse(["--peer", str(tmp_path / "none")])
    with pytest.raises(UsageError, match=r"not executable.*chmod"):
        parse(["--peer", str(plain)])


def test_iptables_legacy_is_refused_as_its_commits_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "iptables"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program.write_text("#!/bin/sh\necho 'iptables v1.8.9 (nf_tables)'\n")
    program.chmod(0o755)
    check_iptables()
    program.write_text("#!/bin/sh\necho 'iptables v1.8.9 (legacy)'\n")
    with pytest.raises(UsageError, match=r"\(legacy\) is not iptables-nft"):
        check_iptables()


def test_the_configuration_is_one_that_we_take_too(tmp_path: Path) -> None:
    for mode in ("nftables", "iptables"):
        config = configuration(mode, tmp_path / "kubeconfig", "node-1")
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config))
        assert load_config(str(file)).hostname_override == "node-1"


# Records


def test_records_are_lines_that_are_read_back() -> None:
    for record in (
        records.Measurement("control", "1x1", "a", "start_s", 0, [1.5]),
        records.Measurement("control", "1x1", "a", "start_s", 0, [], 45.0),
        records.Failure("layouts", "1x1", "a\nb", "start", "no", ["x"]),
        records.Step("something", 1),
    ):
        line = records.line(record)
        assert "\n" not in line and records.parse(line) == record


# The machine


def test_the_machine_is_described() -> None:
    made = document()
    made["machine"] = machine.describe()
    jsonschema.validate(made, SCHEMA)
    assert machine.cpu_model("processor\t: 0\nmodel name\t: A  B  C\n\nmodel name\t: D\n") == "A B C"
    assert machine.cpu_model("nothing\n") == ""


def test_a_busy_machine_is_told() -> None:
    assert machine.busy(1.0, 2) == ""
    assert "1.2" in machine.busy(1.2, 2)


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_a_program_has_said_is_shown_on_a_terminal_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Bar(2, stream) as bar:
        bar.step("100x10 a [/b], round 1: start", done=1)
        bar.note("failed: [/healthz] [red] said no")
    assert "failed: [/healthz] [red] said no" in stream.getvalue()


def test_a_terminal_that_cannot_draw_a_bar_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Bar(2, stream) as bar:
        bar.step("now", done=0)
        bar.step("first measured", done=1)
    assert re.fullmatch(r"\[1/2, \d+ s\] first measured\n", stream.getvalue())


# Changes and their marks


def test_marks_are_found_in_text_and_in_bytes() -> None:
    assert marks.in_text(b'{"addresses":["11.200.0.1"],"x":["11.0.0.1","10.96.0.1","10.110.3.4"]}') == [
        b"11.200.0.1",
        b"10.110.3.4",
    ]
    assert set(marks.in_bytes(b"\0\x0b\x0b\xc8\0\x01\0\x0a\x6e\x03\x04\x0a\x60\0\x01")) == {"11.200.0.1", "10.110.3.4"}
    assert list(marks.in_bytes(memoryview(b"\x0b\xfa\x0b\xc9\x01\x02"))) == ["11.250.11.201", "11.201.1.2"]  # both


def test_no_pod_or_service_of_any_size_has_a_mark() -> None:
    for size in SIZES:
        for obj in (plain_ports(Size.of(size))[0], plain_ports(Size.of(size))[-1]):
            assert not marks.in_text(json.dumps([obj.address, *obj.pods]).encode())


def test_a_change_replaces_one_endpoint_however_often_it_is_made() -> None:
    api = FakeApi()
    cluster = Cluster(Size(3, 4), StandIn(api))
    before = _addresses(api, "service-1-abcde")
    for _ in range(3):
        mark = cluster.change_endpoint(1)
        now = _addresses(api, "service-1-abcde")
        assert len(now - before) == len(before - now) == 1 and mark in now
        before = now


def test_a_gang_is_512_pods_in_slices_of_100() -> None:
    slices = list(gang(READY))
    assert [len(each["endpoints"]) for each in slices] == [100] * 5 + [12]
    assert len({each["metadata"]["name"] for each in slices}) == 6
    assert [each["addresses"][0] for slice_ in slices for each in slice_["endpoints"]] == list(GANG_MARKS)
    assert marks.in_text(json.dumps(GANG_MARKS).encode()) == [mark.encode() for mark in GANG_MARKS]
    assert all(each["conditions"] == WAITING for slice_ in gang(WAITING) for each in slice_["endpoints"])


def _addresses(api: FakeApi, name: str) -> set[str]:
    [slice_] = [obj for obj in api.objects("EndpointSlice") if obj["metadata"]["name"] == name]
    return {each["addresses"][0] for each in slice_["endpoints"]}


# Peers' text


PORTS = [
    Port(f"default/s{i}:http", "tcp", f"10.96.0.{i}", tuple(f"11.0.{i}.{j}" for j in range(1, 4))) for i in range(1, 4)
]


def test_one_change_in_kube_proxys_nftables_layout_is_the_services_own_chain() -> None:
    text = nftables_change(PORTS[1])
    flush, add = text.splitlines()
    name = flush.removeprefix("flush chain ip kube-proxy ")
    assert f"chain {name} {{" in nftables(PORTS)
    assert add.startswith(
        f"add rule ip kube-proxy {name} meta l4proto tcp dnat ip to numgen random mod 3 map {{ 0 : 11.0.2.1 . 8080,"
    )


def test_one_change_in_the_iptables_layout_writes_what_all_share_and_the_services_own_chains() -> None:
    text = IptablesChanges(iptables(PORTS)).change(PORTS[1])
    assert text.count("-A KUBE-SERVICES ") == iptables(PORTS).count("-A KUBE-SERVICES ")
    assert text.count("DNAT --to-destination 11.0.2.") == 3
    assert "11.0.1." not in text and "11.0.3." not in text
    assert ":PREROUTING" not in text and "-A PREROUTING" not in text  # they are not flushed, so nothing is added again


def test_reading_the_plan_back_from_json_changes_nothing() -> None:
    from dataclasses import asdict

    task: dict[str, Any] = json.loads(json.dumps(asdict(FULL)))
    assert type(FULL)(**task) == FULL

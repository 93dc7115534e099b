"""oomScoreAdj: written where it may be; where not, the proxy works all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy import oom_score


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "oom_score_adj"
    path.write_text("0\n")
    return path


def test_it_is_set_once(file: Path) -> None:
    with capture_logs() as logs:
        oom_score.apply(-999, file)
        assert file.read_text() == "-999"
        oom_score.apply(-999, file)
    assert logs == [{"event": "oom_score_set", "value": -999, "before": 0, "log_level": "info"}]


@pytest.mark.parametrize(("found", "level"), [("0", "warning"), ("-997", "info"), ("nonsense", "warning")])
def test_where_it_cannot_be_set(monkeypatch: pytest.MonkeyPatch, file: Path, found: str, level: str) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    file.write_text(found)
    monkeypatch.setattr(Path, "write_text", refuse)
    with capture_logs() as logs:
        oom_score.apply(-999, file)
    [event] = logs
    assert (event["event"], event["log_level"], event["wanted"]) == ("oom_score_not_set", level, -999)
    assert "SYS_RESOURCE" in event["remedy"]
    assert event["cause"]


def test_no_such_file(tmp_path: Path) -> None:
    with capture_logs() as logs:
        oom_score.apply(0, tmp_path / "none")
    assert [event["cause"] for event in logs] == ["No such file or directory"]

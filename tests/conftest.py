"""Fixtures: an nftables of the test's own, real or fake."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from integration.apiserver import certificates
from integration.apiserver.certificates import Authority
from integration.apiserver.server import FakeApi
from rules.fake import FakeKernel
from tests.netns import Namespace

NOWHERE = open(os.devnull, "w")  # noqa: SIM115  # for as long as there are tests


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Logs of all levels go nowhere, whatever a test before has configured."""
    structlog.reset_defaults()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(NOWHERE), cache_logger_on_first_use=False)


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's way to the world is."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if not certificates.available():
        pytest.skip("openssl makes the certificates, and is not installed")
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other-ca")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that anybody can get into: pytest's own are closed again by each session that begins."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """An API server's stand-in, without objects."""
    with FakeApi() as server:
        yield server


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    made = Namespace()
    yield made
    made.close()


@pytest.fixture(params=["kernel", "fake"])
def nftables(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The kernel's nftables in a new namespace, and the fake: the same tests hold for both."""
    if request.param == "fake":
        yield FakeKernel()
    else:
        made = Namespace()
        yield made.kernel
        made.close()

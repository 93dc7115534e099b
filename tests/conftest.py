"""Fixtures: an nftables of the test's own, real or fake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rules.fake import FakeKernel
from tests.netns import Namespace

NOWHERE = open(os.devnull, "w")  # noqa: SIM115  # for as long as there are tests


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Logs go nowhere, whatever a test before has configured."""
    structlog.reset_defaults()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(NOWHERE), cache_logger_on_first_use=False)


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

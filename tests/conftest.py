"""Fixtures: an nftables of the test's own, real or fake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from rules.fake import FakeKernel
from tests.netns import Namespace


@pytest.fixture(scope="session", autouse=True)
def _quiet() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(nowhere))
        yield


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

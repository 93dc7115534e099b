"""A pytest plugin (-p tests.vm.only_kernels): leave out tests that another kernel cannot change, for they ask none."""

from __future__ import annotations

from typing import Final

import pytest

KERNELS: Final = frozenset({"namespace", "nftables", "cluster"})
"""Fixtures whose tests ask the kernel, besides those that are marked `root`."""
FAKE: Final = "fake"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asking = [item for item in items if asks_a_kernel(item)]
    config.hook.pytest_deselected(items=[item for item in items if not asks_a_kernel(item)])
    items[:] = asking


def asks_a_kernel(item: pytest.Item) -> bool:
    fixtures = KERNELS.intersection(getattr(item, "fixturenames", ()))
    parameters = getattr(item, "callspec", None)
    return bool(item.get_closest_marker("root") or fixtures) and not (parameters and FAKE in parameters.params.values())

"""The order of test files: the longest first, and files that wait for real processes beside files that compute.

Tests of agents, nodes, engines and other services mostly wait. If all of them ran at once, processor cores would be idle;
later, all processes would compute and share the cores.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

WAITING_FOLDERS: Final = (
    "agent",
    "cli",
    "cluster/engines",
    "docs",
    "limits/admin",
    "limits/hosts",
    "limits/serving",
    "limits/stores",
    "node",
    "packaging",
    "reliability",
)
"""Folders of `tests/` with tests that start processes and wait for them."""
FIRST_FILES: Final = (
    "simulation/test_seeds.py",
    "bounded_work/test_worst_requests.py",
    "bounded_work/test_leader_holds.py",
)
"""Files that compute for a minute or longer. At the end of a run, they would leave cores idle."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with `FIRST_FILES`, and distribute those of `WAITING_FOLDERS` evenly among the others. The tests of a file stay together and in order.

    Comes before other plugins, such as that of `make mutants`, which select tests and choose an order of their own.
    """
    items_by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        items_by_file.setdefault(item.path, []).append(item)
    items[:] = [item for path in order_files(items_by_file) for item in items_by_file[path]]


def order_files(paths: Iterable[Path]) -> list[Path]:
    tests = Path(__file__).parent
    first_files = [tests / file for file in FIRST_FILES]
    first: list[Path] = []
    waiting: list[Path] = []
    computing: list[Path] = []
    for path in paths:
        is_waiting = any(path.is_relative_to(tests / folder) for folder in WAITING_FOLDERS)
        (first if path in first_files else waiting if is_waiting else computing).append(path)
    return first + distribute_evenly(waiting, computing)


def distribute_evenly(some: Sequence[T], others: Sequence[T]) -> list[T]:
    """Return both sequences as one, each in its order. Any part of it has elements of both in the same proportion."""
    positions = [
        ((number + 0.5) / len(group), element) for group in (some, others) for number, element in enumerate(group)
    ]
    return [element for _, element in sorted(positions, key=lambda position: position[0])]

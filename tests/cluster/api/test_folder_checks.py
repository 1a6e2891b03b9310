"""Checks of folders whose disk hangs."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from wharf.cluster.api.handlers.agents.folder_checks import FolderChecks

DISK = Path("/hung")


def on_a_real_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test on a loop with threads, which virtual time does not have."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class HungDisk:
    """A disk on which checks wait until the test releases it."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.started: list[str] = []

    def make_check(self, name: str) -> Callable[[Path], str]:
        def check(_folder: Path) -> str:
            self.started.append(name)
            assert self.released.wait(30)
            return name

        return check


async def run_until_timeout(checks: FolderChecks, check: Callable[[Path], str], folder: Path = DISK) -> str:
    """Return the result of the check, or "timeout" as a health check does after a while."""
    try:
        async with asyncio.timeout(0.05):
            return await checks.run(check, folder)
    except TimeoutError:
        return "timeout"


@on_a_real_loop
async def test_many_checks_of_a_hung_disk_occupy_one_thread() -> None:
    disk, checks = HungDisk(), FolderChecks()
    space, problem = disk.make_check("space"), disk.make_check("problem")
    try:
        results = [await run_until_timeout(checks, check) for check in (space, problem, space, problem)]
        started = list(disk.started)
    finally:
        disk.released.set()

    assert results == ["timeout"] * 4
    assert started == ["space"]
    assert [await checks.run(check, DISK) for check in (space, problem)] == ["space", "problem"]


@on_a_real_loop
async def test_a_hung_disk_delays_no_check_of_another_folder() -> None:
    disk, checks = HungDisk(), FolderChecks()
    try:
        hung = await run_until_timeout(checks, disk.make_check("space"))
        other = await checks.run(str, Path("/other"))
    finally:
        disk.released.set()

    assert (hung, other) == ("timeout", "/other")


@on_a_real_loop
async def test_the_exception_of_a_check_reaches_all_callers_and_the_next_check_runs_again() -> None:
    checks, calls = FolderChecks(), 0

    def fail(folder: Path) -> str:
        nonlocal calls
        calls += 1
        raise OSError(f"{folder} is gone")

    results = await asyncio.gather(*(checks.run(fail, DISK) for _ in range(3)), return_exceptions=True)
    with pytest.raises(OSError, match="is gone"):
        await checks.run(fail, DISK)

    assert [str(result) for result in results] == ["/hung is gone"] * 3
    assert calls == 2

"""Watched files: which changes are applied, and when checking begins and ends."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.languages.source_locations import SourceLocation
from wharf.limits.config.file_watcher import POLL_INTERVAL_S, FileWatcher, WatchedFile
from wharf.limits.toml.problems import FileProblem, InvalidFile
from wharf.world import SimulatedWorld


class Receiver:
    """Records the texts of a file. It rejects a text that begins with `bad`."""

    def __init__(self, path: Path) -> None:
        self.texts: list[str] = []
        self.file = WatchedFile(path, "rules", self._apply)

    async def _apply(self, text: str) -> None:
        if text.startswith("bad"):
            raise InvalidFile([FileProblem("rules.toml", SourceLocation(1, 1), "rule", "is bad")])
        self.texts.append(text)


def write(path: Path, text: str, *, at_s: int = 1) -> None:
    """Write a file with this modification time."""
    path.write_text(text)
    os.utime(path, (at_s, at_s))


def check_in_turn(path: Path, *steps: Callable[[], object], is_forced: bool = False) -> Receiver:
    """Check a file after each step."""

    async def scenario() -> Receiver:
        receiver = Receiver(path)
        for step in steps:
            step()
            await receiver.file.check(is_forced=is_forced)
        return receiver

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "at_s", "is_applied"), [("first", 1, False), ("other", 1, False), ("longer", 1, True), ("first", 2, True)]
)
def test_a_file_is_applied_when_its_time_or_size_changes(
    tmp_path: Path, text: str, at_s: int, is_applied: bool
) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")
    receiver = check_in_turn(path, lambda: None, lambda: write(path, text, at_s=at_s))

    assert receiver.texts == ([text] if is_applied else [])


def test_a_replaced_file_is_applied_although_time_and_size_are_equal(tmp_path: Path) -> None:
    path, new = tmp_path / "rules.toml", tmp_path / "new"
    write(path, "first")
    write(new, "other")
    receiver = check_in_turn(path, lambda: None, lambda: new.replace(path))

    assert receiver.texts == ["other"]


def test_a_forced_check_applies_an_unchanged_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")
    receiver = check_in_turn(path, lambda: None, lambda: None, is_forced=True)

    assert receiver.texts == ["first", "first"]


def test_a_file_that_disappears_changes_nothing_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")
    receiver = check_in_turn(path, path.unlink, lambda: None, lambda: None, lambda: write(path, "first", at_s=1))

    assert (receiver.texts, receiver.file.problem) == (["first"], "")


def test_a_rejected_file_is_a_problem_until_it_is_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")
    problems = []

    async def scenario() -> list[str]:
        receiver = Receiver(path)
        for at_s, text in ((2, "bad one"), (2, "bad one"), (3, "good")):
            write(path, text, at_s=at_s)
            await receiver.file.check()
            problems.append(receiver.file.problem)
        return receiver.texts

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(scenario()) == ["good"]
    assert [bool(problem) for problem in problems] == [True, True, False]
    assert len(caplog.records) == 1  # An unchanged file is not rejected again.


def test_a_file_that_is_not_text_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")
    receiver = check_in_turn(path, lambda: path.write_bytes(b"\xff\xff\xff"))

    assert receiver.texts == []
    assert receiver.file.problem.startswith(f"{path} cannot be read: ")


def run_watcher(path: Path, scenario: Callable[[FileWatcher, Receiver], Awaitable[None]]) -> None:
    @in_virtual_time
    async def run() -> None:
        receiver = Receiver(path)
        loop = asyncio.get_running_loop()
        watcher = FileWatcher(SimulatedWorld(1, loop.time), [receiver.file])
        await scenario(watcher, receiver)

    run()


def test_changes_are_noticed_while_the_watcher_is_open(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")

    async def scenario(watcher: FileWatcher, receiver: Receiver) -> None:
        await watcher.close()  # Not open yet.
        watcher.open()
        write(path, "second")
        await pass_time(POLL_INTERVAL_S * 0.9)
        assert receiver.texts == []
        await pass_time(POLL_INTERVAL_S * 0.2)
        assert receiver.texts == ["second"]
        await watcher.close()
        write(path, "the third")
        await pass_time(POLL_INTERVAL_S * 3)
        assert receiver.texts == ["second"]
        await watcher.reload_all()
        assert receiver.texts == ["second", "the third"]

    run_watcher(path, scenario)


def test_a_file_that_is_missing_for_a_moment_is_no_problem(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")

    receiver = check_in_turn(path, path.unlink)

    assert (receiver.texts, receiver.file.problem, caplog.records) == ([], "", [])


def test_a_deleted_file_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")

    receiver = check_in_turn(path, path.unlink, lambda: None, lambda: None, lambda: None)

    assert receiver.file.problem.startswith(f"{path} does not exist any more")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_forced_check_reports_a_deleted_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    write(path, "first")

    receiver = check_in_turn(path, path.unlink, is_forced=True)

    assert receiver.file.problem.startswith(f"{path} does not exist any more")


def test_a_file_is_applied_when_a_file_that_belongs_to_it_changes(tmp_path: Path) -> None:
    path, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    write(path, "certificate")
    write(key, "key")
    texts: list[str] = []

    async def apply(text: str) -> None:
        texts.append(text)

    async def scenario() -> None:
        file = WatchedFile(path, "certificate", apply, others=(key,))
        await file.check()
        write(key, "another key", at_s=2)
        await file.check()

    asyncio.run(scenario())

    assert texts == ["certificate"]

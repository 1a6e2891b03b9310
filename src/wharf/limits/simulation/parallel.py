"""A simulation on all processors: each process judges some of the callers, and all of them see the same time.

Counters belong to callers, so that callers can be judged apart; where a rule counts over several of them, one process judges
all. What comes out is the same, however many there are.
"""

import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from wharf.limits.core.rule import CountedUnit, RuleSet
from wharf.limits.simulation.access_log import AccessLogReader
from wharf.limits.simulation.replay import PROGRESS_INTERVAL_LINES, Replay, SimulationResult

MAX_WORKERS: Final = 16
MIN_PARALLEL_BYTES: Final = 4 << 20
"""A log below this is read before a second process has begun."""


class WorkerFailed(Exception):
    """A process of a simulation ended without a result."""


def can_split_callers(rules: RuleSet) -> bool:
    """Whether each counter is of one user, or of one address without a user."""
    return all(
        rule.scope[0] in ("caller", "user") for rule in rules.rules if rule.counts is not CountedUnit.FAILED_LOGINS
    )


def choose_worker_count(logs: Sequence[Path], rules: RuleSet) -> int:
    if sum(log.stat().st_size for log in logs) < MIN_PARALLEL_BYTES or not can_split_callers(rules):
        return 1
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))


def simulate_logs(
    logs: Sequence[Path], rules: RuleSet, parts: int, progress: Callable[[int, int], object] | None = None
) -> SimulationResult:
    """Judge all lines of the logs. `progress` hears of lines and bytes that were read. Raises PartFailed and OSError."""
    if parts == 1:
        return replay_part(_lines(logs), rules, 0, 1, progress).finish()
    context = multiprocessing.get_context("fork")  # The rules are read already, and there is one thread.
    channels: list[Connection] = []
    processes = []
    for number in range(1, parts):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_judge_for, args=(there, logs, rules, number, parts))
        process.start()
        there.close()
        channels.append(here)
        processes.append(process)
    try:
        whole = replay_part(_lines(logs), rules, 0, parts, progress)
        for channel in channels:
            try:
                whole.merge_part(channel.recv())
            except EOFError:
                raise WorkerFailed("a process of the simulation ended before it was done") from None
    finally:
        for process in processes:
            process.kill()
            process.join()
    return whole.finish()


def _judge_for(channel: Connection, logs: Sequence[Path], rules: RuleSet, part: int, parts: int) -> None:
    channel.send(replay_part(_lines(logs), rules, part, parts, None).partial_result)
    channel.close()


def simulate_lines(lines: Iterable[bytes], rules: RuleSet) -> SimulationResult:
    """Judge all lines, in this process."""
    return replay_part(lines, rules, 0, 1, None).finish()


def replay_part(
    lines: Iterable[bytes], rules: RuleSet, part: int, parts: int, progress: Callable[[int, int], object] | None
) -> Replay:
    """Judge the callers of one part, and count the lines of it that were not read."""
    reader = AccessLogReader()
    run: Replay | None = None
    read = unread = 0
    for number, line in enumerate(lines):
        read += len(line)
        if progress is not None and number % PROGRESS_INTERVAL_LINES == 0:
            progress(number, read)
        is_ours = not part  # What names no caller is the first part's.
        if parts > 1 and line[:1] != b"{":
            words = line.split(b" ", 3)
            if len(words) == 4:
                is_ours = zlib.crc32(words[0] if words[2] == b"-" else words[2]) % parts == part
                if run is not None and not is_ours:
                    moment_ms = reader.read_time_ms(words[3])
                    if moment_ms is not None:
                        run.advance_clock(moment_ms)
                    continue
        unread_before = reader.unreadable_lines
        logged = reader.read_line(line)
        if logged is None:
            unread += reader.unreadable_lines - unread_before if is_ours else 0
            continue
        if run is None:
            run = Replay(rules, has_durations=logged.duration_ms is not None)
        if parts > 1 and zlib.crc32((logged.user or logged.address).encode("utf-8", "replace")) % parts != part:
            run.advance_clock(logged.at_ms)
            continue
        run.replay_record(logged)
    run = run or Replay(rules, has_durations=False)
    run.result.unread = unread
    return run


def _lines(logs: Sequence[Path]) -> Iterator[bytes]:
    for log in logs:
        with log.open("rb") as opened:
            yield from opened

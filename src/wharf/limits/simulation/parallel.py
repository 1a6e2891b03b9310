"""Runs a simulation in several processes. Each one decides the requests of some callers, by the clock of the whole log.

Most counters belong to one caller, so callers can be split between processes. If a rule counts several callers together,
one process decides all requests. The result does not depend on the number of processes.
"""

import bz2
import contextlib
import gzip
import lzma
import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Final

from wharf.limits.core.rule import CountedUnit, RuleSet
from wharf.limits.simulation.access_log import CREDENTIAL_MARK, NO_USERS, AccessLogReader, read_credential_mark
from wharf.limits.simulation.replay import PROGRESS_INTERVAL_LINES, Replay, SimulationResult

MAX_WORKERS: Final = 16
"""The maximum number of processes of one simulation."""
MAX_LINES_BEFORE_REQUEST: Final = 100_000
"""A file without a request in this many lines is no access log. Protects users from waiting for nothing."""
MAX_BYTES_BEFORE_REQUEST: Final = 16 << 20
"""The same in bytes, for files with long lines."""
MAX_LINE_BYTES: Final = 1 << 20
"""A longer line is read in parts, of which none is a request. Protects memory from files without line breaks."""
MIN_PARALLEL_BYTES: Final = 4 << 20
"""Smaller logs are simulated in one process: they are read before a second process has started."""
COMPRESSIONS: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
"""The first bytes of compressed logs that are read, and the name of their format."""
OTHER_COMPRESSIONS: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4"}
"""The same for formats that are not read."""
ProgressCallback = Callable[[int, int], object]
"""Called with the numbers of lines and bytes that were read."""


class SimulationFailed(Exception):
    """A process of a simulation ended without a result."""


class UnreadableLog(Exception):
    """A log that is damaged, or compressed in a format that is not read. The text names the file and what to do."""


def can_split_callers(rules: RuleSet) -> bool:
    """Return whether the callers can be split between processes: each counter belongs to one user, or one address."""
    return all(
        rule.scope[0] in ("caller", "user") for rule in rules.rules if rule.counts is not CountedUnit.FAILED_LOGINS
    )


def choose_worker_count(logs: Sequence[Path], rules: RuleSet) -> int:
    """Return how many processes a simulation of these logs should use."""
    if sum(log.stat().st_size for log in logs) < MIN_PARALLEL_BYTES or not can_split_callers(rules):
        return 1
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))


def simulate_logs(
    logs: Sequence[Path], rules: RuleSet, parts: int, progress: ProgressCallback | None = None
) -> SimulationResult:
    """Return what the rules would have done with all requests in these logs, simulated by `parts` processes.

    Raises `SimulationFailed` if a process ends early, and `OSError` or `UnreadableLog` if a log cannot be read.
    """
    if parts == 1:
        return replay_part(_read_lines(logs), rules, 0, 1, progress).finish()
    context = multiprocessing.get_context("fork")  # Rules need not be read again. This process has one thread.
    connections: list[Connection] = []
    processes = []
    for part in range(1, parts):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run_worker, args=(sender, logs, rules, part, parts))
        process.start()
        sender.close()
        connections.append(receiver)
        processes.append(process)
    try:
        replay = replay_part(_read_lines(logs), rules, 0, parts, progress)
        for connection in connections:
            try:
                replay.merge_part(connection.recv())
            except EOFError:
                raise SimulationFailed("a process of the simulation ended before it was finished") from None
    finally:
        for process in processes:
            process.kill()
            process.join()
    return replay.finish()


def _run_worker(sender: Connection, logs: Sequence[Path], rules: RuleSet, part: int, parts: int) -> None:
    """Simulate the callers of one part, and send the partial result to the first process. Runs in a process of its own."""
    with contextlib.suppress(UnreadableLog):  # The first process reads the same logs, and reports it.
        sender.send(replay_part(_read_lines(logs), rules, part, parts, None).partial_result)
    sender.close()


def simulate_lines(lines: Iterable[bytes], rules: RuleSet) -> SimulationResult:
    """Return what the rules would have done with the requests in these lines, simulated in this process."""
    return replay_part(lines, rules, 0, 1, None).finish()


def replay_part(
    lines: Iterable[bytes], rules: RuleSet, part: int, parts: int, progress: ProgressCallback | None
) -> Replay:
    """Return a simulation of the callers that belong to part number `part` of `parts`; other lines only set its clock.

    A hash of user or address decides to which part a caller belongs.
    Unreadable lines are counted by the part that their caller belongs to; those without a caller, by the first part.
    """
    reader = AccessLogReader()
    replay: Replay | None = None
    read_bytes = unreadable = 0
    for number, line in enumerate(lines):
        read_bytes += len(line)
        if progress is not None and number % PROGRESS_INTERVAL_LINES == 0:
            progress(number, read_bytes)
        if replay is None and (number >= MAX_LINES_BEFORE_REQUEST or read_bytes >= MAX_BYTES_BEFORE_REQUEST):
            break
        is_in_part = part == 0
        if parts > 1 and line[:1] != b"{":
            # Find the caller without parsing the whole line: host, name, user and the rest.
            words = line.split(b" ", 3)
            if len(words) == 4:
                host, _, user, rest = words
                if user == b"-" and CREDENTIAL_MARK in rest:
                    user = read_credential_mark(rest)
                is_in_part = zlib.crc32(host if user in NO_USERS else user) % parts == part
                if replay is not None and not is_in_part:
                    at_ms = reader.read_time_ms(words[3])
                    if at_ms is not None:
                        replay.advance_clock(at_ms)
                    continue
        unreadable_before = reader.unreadable_lines
        record = reader.read_line(line)
        if record is None:
            unreadable += reader.unreadable_lines - unreadable_before if is_in_part else 0
            continue
        if replay is None:
            replay = Replay(rules, has_durations=record.duration_ms is not None)
        if parts > 1 and zlib.crc32((record.user or record.address).encode("utf-8", "replace")) % parts != part:
            replay.advance_clock(record.at_ms)
            continue
        replay.replay_record(record)
    replay = replay or Replay(rules, has_durations=False)
    replay.result.unread = unreadable
    return replay


def _read_lines(logs: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of all logs, one log after the other. Logs compressed with gzip, bzip2 or xz are decompressed.

    Raises `UnreadableLog` if a log is damaged or compressed in another format.
    """
    for log in logs:
        with _open_log(log) as file:
            try:
                yield from iter(partial(file.readline, MAX_LINE_BYTES), b"")
            except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as problem:
                raise UnreadableLog(f"{log} cannot be decompressed: {problem}. Copy the file again.") from None


def _open_log(log: Path) -> IO[bytes] | gzip.GzipFile:
    """Open a log for reading, and decompress it if its first bytes show a known format."""
    with log.open("rb") as file:
        first_bytes = file.read(8)
    for magic, name in OTHER_COMPRESSIONS.items():
        if first_bytes.startswith(magic):
            raise UnreadableLog(f"{log} is compressed with {name}, which is not read: decompress it first")
    name = next((name for magic, name in COMPRESSIONS.items() if first_bytes.startswith(magic)), "")
    match name:
        case "gzip":
            return gzip.open(log, "rb")
        case "bzip2":
            return bz2.open(log, "rb")
        case "xz":
            return lzma.open(log, "rb")
        case _:
            return log.open("rb")

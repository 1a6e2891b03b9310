"""The decision log: all refusals, also those that shadow mode prevented, and a sample of the other admissions.

Operators find out with it why a request was refused, and whom a new limit would refuse.

Recent decisions are in memory. Two files hold older ones, limited in size and age. Tokens are never logged.
"""

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.limits.config.settings import DecisionLogSettings
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, build_decision
from wharf.limits.core.plans import ChargePlan
from wharf.limits.core.store_calls import TakeResult

MAX_RECENT_DECISIONS: Final = 10_000
"""Decisions in memory; the oldest are dropped."""
MAX_RECENT_REFUSALS: Final = 500
"""Refusals in memory, which many admissions do not displace; the oldest are dropped."""
MAX_UNWRITTEN_DECISIONS: Final = 50_000
"""Decisions that wait to be written; more are dropped and counted."""
WRITE_BATCH_DECISIONS: Final = 256
"""Decisions that are encoded at once; between two batches the event loop can serve requests."""
MAX_PATH_CHARACTERS: Final = 1_024
_NUMBER_FORMATS: Final[dict[int, struct.Struct]] = {}
_encode: Final = msgspec.json.Encoder().encode


class LoggedDecision(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A decision with the request and the caller that it is about."""

    id: str
    at_ms: int
    method: str
    path: str
    decision: LimitDecision
    caller: Caller


class _CompactDecision(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A logged admission that exceeded no limit: the charge plan, and the counts packed into one bytes object.

    Thousands of these are in memory. Storing every part as its own object would cost more time than the decision itself,
    because of cache misses.
    """

    id: str
    method: str
    path: str
    plan: ChargePlan
    caller: Caller
    numbers: bytes
    """64-bit integers: the count before each charge, then four numbers as `_get_number_format` lists them."""

    def expand(self) -> LoggedDecision:
        """Return the log entry with the complete decision, which is rebuilt from the charge plan and the counts."""
        number_format = _get_number_format(len(self.numbers) // 8 - 4)
        *counts_before, at_ms, now_ms, bucket_count_before, bucket_end_ms = number_format.unpack(self.numbers)
        result = TakeResult(True, now_ms, tuple(counts_before), (), (), (), bucket_count_before, bucket_end_ms)
        decision = build_decision(self.id, self.plan, self.plan.charges, result)
        return LoggedDecision(self.id, at_ms, self.method, self.path, decision, self.caller)


def _get_number_format(charge_count: int) -> struct.Struct:
    """Return the binary format of the numbers in a compact log entry with this number of charges.

    They are the counts before each charge, the times of the log entry and of the decision, and the count and end of the
    primary bucket.
    """
    number_format = _NUMBER_FORMATS.get(charge_count)
    if number_format is None:
        number_format = _NUMBER_FORMATS[charge_count] = struct.Struct(f"{charge_count + 4}q")
    return number_format


class DecisionLog:
    """The decision log of one process.

    If `folder` is `None`, no file is written. `on_entry` is called with the request id and the line of every decision
    that was written to the file. `on_logged` is called with every decision that is queued for the file.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: DecisionLogSettings,
        on_entry: Callable[[str, bytes], None] | None = None,
        on_logged: Callable[[LoggedDecision], None] | None = None,
    ) -> None:
        self.dropped_decisions = 0
        self._on_entry = on_entry
        self._on_logged = on_logged
        self._settings = settings
        self._path = folder / "decisions.jsonl" if folder is not None and settings.is_kept else None
        self._recent: deque[LoggedDecision | _CompactDecision] = deque(maxlen=MAX_RECENT_DECISIONS)
        self._refusals: deque[LoggedDecision] = deque(maxlen=MAX_RECENT_REFUSALS)
        self._unwritten: deque[LoggedDecision] = deque()
        self._admitted = 0
        self._file_started_ms = 0

    def record(self, entry: LoggedDecision) -> None:
        """Store a decision in memory, and queue it for the file.

        Queued are every refusal, every admission that a limit or ban in shadow mode would have refused, and one of
        `settings.one_in` other admissions.
        """
        if len(entry.path) > MAX_PATH_CHARACTERS:
            entry = msgspec.structs.replace(entry, path=entry.path[:MAX_PATH_CHARACTERS])
        self._recent.append(entry)
        if not entry.decision.is_admitted:
            self._refusals.append(entry)
        if entry.decision.is_admitted and not entry.decision.is_shadow_refusal:
            self._admitted += 1
            if self._admitted % self._settings.one_in:
                return
        self._queue_entry(entry)

    def record_admission(
        self, request_id: str, at_ms: int, method: str, path: str, decision: LimitDecision, caller: Caller
    ) -> None:
        """Store an admission in memory, and queue it for the file as `record` does.

        The entry in memory is compact, unless a limit in shadow mode was exceeded, or a grant, an overflow key, a ban or
        an outage of the store must be logged too.
        """
        plan, result = decision.plan, decision.result
        has_more = result.hit_indexes or result.keys or result.banned_until_ms or result.fallback_processes
        if has_more or decision.problem or decision.charges is not plan.charges:
            self.record(LoggedDecision(request_id, at_ms, method, path, decision, caller))
            return
        if len(path) > MAX_PATH_CHARACTERS:
            path = path[:MAX_PATH_CHARACTERS]
        counts_before = result.counts_before
        numbers = (_NUMBER_FORMATS.get(len(counts_before)) or _get_number_format(len(counts_before))).pack(
            *counts_before, at_ms, result.now_ms, result.bucket_count_before, result.bucket_end_ms
        )
        self._recent.append(_CompactDecision(request_id, method, path, plan, caller, numbers))
        self._admitted += 1
        if not self._admitted % self._settings.one_in:
            self._queue_entry(LoggedDecision(request_id, at_ms, method, path, decision, caller))

    def _queue_entry(self, logged: LoggedDecision) -> None:
        """Queue a decision for the next write. If the queue is full, the oldest entry is dropped and counted.

        Nothing is queued if the log has no file.
        """
        if self._on_logged is not None:
            self._on_logged(logged)
        if self._path is None:
            return
        if len(self._unwritten) >= MAX_UNWRITTEN_DECISIONS:
            self._unwritten.popleft()
            self.dropped_decisions += 1
        self._unwritten.append(logged)

    @property
    def _older_path(self) -> Path | None:
        return None if self._path is None else self._path.with_name("decisions.1.jsonl")

    async def write(self, now_ms: int) -> None:
        """Write all queued decisions to the file.

        When the file reaches half of the maximum size or age, it replaces the older file. Raises OSError if writing
        fails; the decisions of the failed batch are lost and counted.
        """
        if self._path is None or self._older_path is None:
            return
        while self._unwritten:
            batch = [self._unwritten.popleft() for _ in range(min(len(self._unwritten), WRITE_BATCH_DECISIONS))]
            lines = [_encode(self.render_entry(logged)) for logged in batch]
            try:
                await asyncio.to_thread(append_private, self._path, b"".join(line + b"\n" for line in lines))
            except OSError:
                self.dropped_decisions += len(batch)
                raise
            self._file_started_ms = self._file_started_ms or now_ms
            if self._on_entry is not None:
                for logged, line in zip(batch, lines, strict=True):
                    self._on_entry(logged.id, line)
        is_old = bool(self._file_started_ms) and now_ms - self._file_started_ms >= self._settings.kept_ms // 2
        if self._path.exists() and (is_old or self._path.stat().st_size >= self._settings.bytes_most // 2):
            self._path.replace(self._older_path)
            self._file_started_ms = now_ms

    def render_entry(self, entry: LoggedDecision) -> dict[str, Any]:
        """Return a decision as a JSON object for operators, with each evaluated limit and its count before and after."""
        decision, caller = entry.decision, entry.caller
        refusing_charge = decision.refusing_charge
        return {
            "request_id": entry.id,
            "at_ms": entry.at_ms,
            "verdict": decision.verdict.value,
            "method": entry.method,
            "path": entry.path,
            "endpoint": decision.plan.endpoint,
            "caller": caller.owner,
            "credential": caller.kind.value,
            "app": caller.app,
            "address": self.cut_address(caller),
            "resource": decision.plan.resource,
            "retry_after_s": decision.retry_after_s,
            "told_by": None if refusing_charge is None else refusing_charge.name,
            "banned_until_ms": decision.result.banned_until_ms or None,
            "problem": decision.problem or None,
            "fallback_processes": decision.result.fallback_processes or None,
            "limits": [msgspec.to_builtins(limit) for limit in decision.list_limits()],
        }

    def find(self, request_id: str) -> dict[str, Any] | None:
        """Return the log entry of a request, or `None` if neither memory nor the files hold it."""
        for logged in reversed(self._recent):
            if logged.id == request_id:
                return self.render_entry(logged.expand() if isinstance(logged, _CompactDecision) else logged)
        return next((entry for entry in self._read_entries() if entry.get("request_id") == request_id), None)

    def list_recent(self) -> Iterator[LoggedDecision]:
        """Return the decisions in memory, newest first."""
        return (
            logged.expand() if isinstance(logged, _CompactDecision) else logged for logged in reversed(self._recent)
        )

    def list_refusals(self) -> Iterator[LoggedDecision]:
        """Return the last refusals, newest first, at most `MAX_RECENT_REFUSALS`."""
        return reversed(self._refusals)

    def cut_address(self, caller: Caller) -> str:
        """Return the address of a caller as operators may see it: the last part is 0 if the settings say so."""
        address = caller.address.removeprefix("address:")
        if self._settings.cuts_addresses:
            # IPv6 callers are already identified by their /64 network.
            return address.rpartition(".")[0] + ".0" if "." in address else address
        return address

    def _read_entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of both files, the current file first."""
        for path in (self._path, self._older_path):
            if path is None or not path.exists():
                continue
            with path.open("rb") as file:
                for line in file:
                    yield msgspec.json.decode(line)


def append_private(path: Path, text: bytes) -> None:
    """Append to a file that only its owner may read, because it shows which caller sent what, and from where."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as file:
        file.write(text)

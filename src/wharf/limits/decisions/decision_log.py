"""The log of decisions: every refusal and some admissions, so that it can be told afterwards why a request was refused.

The last decisions stand in memory whole; a file keeps the rest within a size and an age. No token is ever in it.
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
MAX_UNWRITTEN_DECISIONS: Final = 50_000
WRITE_BATCH_DECISIONS: Final = 256
"""Requests are decided between two such parts."""
MAX_PATH_CHARACTERS: Final = 1_024
_FORMS: Final[dict[int, struct.Struct]] = {}
_encode: Final = msgspec.json.Encoder().encode


class LoggedDecision(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A decision and what it was about."""

    id: str
    at_ms: int
    method: str
    path: str
    decision: LimitDecision
    caller: Caller


class _Brief(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An admission like most, told by its plan and a few numbers in one piece of memory: of thousands that are kept no
    cache holds each part, and to look for the parts takes longer than the decision did."""

    id: str
    method: str
    path: str
    plan: ChargePlan
    caller: Caller
    numbers: bytes

    def whole(self) -> LoggedDecision:
        *befores, at_ms, now_ms, shown_before, shown_end_ms = _form_of(len(self.numbers) // 8 - 4).unpack(self.numbers)
        taken = TakeResult(True, now_ms, tuple(befores), (), (), (), shown_before, shown_end_ms)
        decision = build_decision(self.id, self.plan, self.plan.charges, taken)
        return LoggedDecision(self.id, at_ms, self.method, self.path, decision, self.caller)


def _form_of(count: int) -> struct.Struct:
    """The count before of each of so many charges, two moments, count and end of the bucket that is shown."""
    form = _FORMS.get(count)
    if form is None:
        form = _FORMS[count] = struct.Struct(f"{count + 4}q")
    return form


class DecisionLog:
    """`folder` None keeps nothing on disk. `tell` hears of every decision that is kept there, as it stands in the file."""

    def __init__(
        self, folder: Path | None, settings: DecisionLogSettings, on_entry: Callable[[str, bytes], None] | None = None
    ) -> None:
        self.dropped_decisions = 0
        self._tell = on_entry
        self._settings = settings
        self._path = folder / "decisions.jsonl" if folder is not None and settings.is_kept else None
        self._recent: deque[LoggedDecision | _Brief] = deque(maxlen=MAX_RECENT_DECISIONS)
        self._unwritten: deque[LoggedDecision] = deque()
        self._admitted = 0
        self._began_ms = 0

    def record(self, entry: LoggedDecision) -> None:
        if len(entry.path) > MAX_PATH_CHARACTERS:
            entry = msgspec.structs.replace(entry, path=entry.path[:MAX_PATH_CHARACTERS])
        self._recent.append(entry)
        if entry.decision.is_admitted:
            self._admitted += 1
            if self._admitted % self._settings.one_in:
                return
        self._keep(entry)

    def record_admission(
        self, request_id: str, at_ms: int, method: str, path: str, decision: LimitDecision, caller: Caller
    ) -> None:
        """`note`, for an admission. No limit was hit in most, no grant helped, no key was one too many."""
        plan, taken = decision.plan, decision.result
        if taken.hit_indexes or taken.keys or taken.banned_until_ms or decision.charges is not plan.charges:
            self.record(LoggedDecision(request_id, at_ms, method, path, decision, caller))
            return
        if len(path) > MAX_PATH_CHARACTERS:
            path = path[:MAX_PATH_CHARACTERS]
        befores = taken.counts_before
        numbers = (_FORMS.get(len(befores)) or _form_of(len(befores))).pack(
            *befores, at_ms, taken.now_ms, taken.bucket_count_before, taken.bucket_end_ms
        )
        self._recent.append(_Brief(request_id, method, path, plan, caller, numbers))
        self._admitted += 1
        if not self._admitted % self._settings.one_in:
            self._keep(LoggedDecision(request_id, at_ms, method, path, decision, caller))

    def _keep(self, noted: LoggedDecision) -> None:
        if self._path is None:
            return
        if len(self._unwritten) >= MAX_UNWRITTEN_DECISIONS:
            self._unwritten.popleft()
            self.dropped_decisions += 1
        self._unwritten.append(noted)

    @property
    def _older(self) -> Path | None:
        return None if self._path is None else self._path.with_name("decisions.1.jsonl")

    async def write(self, now_ms: int) -> None:
        """Write what is not written yet. The file becomes the older one at half of the size or the age. Raises OSError: what
        the disk did not take is lost, and counted.
        """
        if self._path is None or self._older is None:
            return
        while self._unwritten:
            some = [self._unwritten.popleft() for _ in range(min(len(self._unwritten), WRITE_BATCH_DECISIONS))]
            lines = [_encode(self.render_entry(noted)) for noted in some]
            try:
                await asyncio.to_thread(append_private, self._path, b"".join(line + b"\n" for line in lines))
            except OSError:
                self.dropped_decisions += len(some)
                raise
            self._began_ms = self._began_ms or now_ms
            if self._tell is not None:
                for noted, line in zip(some, lines, strict=True):
                    self._tell(noted.id, line)
        is_old = bool(self._began_ms) and now_ms - self._began_ms >= self._settings.kept_ms // 2
        if self._path.exists() and (is_old or self._path.stat().st_size >= self._settings.bytes_most // 2):
            self._path.replace(self._older)
            self._began_ms = now_ms

    def render_entry(self, entry: LoggedDecision) -> dict[str, Any]:
        """A decision as people read it: each limit that was looked at, with its counter before and after."""
        decision, caller = entry.decision, entry.caller
        address = caller.address.removeprefix("address:")
        if self._settings.cuts_addresses:
            # Those of IPv6 are counted by their network of 64 bits anyway.
            address = address.rpartition(".")[0] + ".0" if "." in address else address
        told = decision.refusing_charge
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
            "address": address,
            "resource": decision.plan.resource,
            "retry_after_s": decision.retry_after_s,
            "told_by": None if told is None else told.name,
            "banned_until_ms": decision.result.banned_until_ms or None,
            "problem": decision.problem or None,
            "limits": [msgspec.to_builtins(looked) for looked in decision.list_limits()],
        }

    def find(self, request_id: str) -> dict[str, Any] | None:
        for noted in reversed(self._recent):
            if noted.id == request_id:
                return self.render_entry(noted.whole() if isinstance(noted, _Brief) else noted)
        return next((entry for entry in self._written() if entry.get("request_id") == request_id), None)

    def list_recent(self) -> Iterator[LoggedDecision]:
        return (noted.whole() if isinstance(noted, _Brief) else noted for noted in reversed(self._recent))

    def _written(self) -> Iterator[dict[str, Any]]:
        for path in (self._path, self._older):
            if path is None or not path.exists():
                continue
            with path.open("rb") as file:
                for line in file:
                    yield msgspec.json.decode(line)


def append_private(path: Path, text: bytes) -> None:
    """Write behind what is there, in a file for its owner only: it tells who asked for what, and from where."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as file:
        file.write(text)

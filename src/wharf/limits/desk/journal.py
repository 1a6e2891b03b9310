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

from wharf.limits.configuration.settings import DecisionLogSettings
from wharf.limits.core.call import Taken
from wharf.limits.core.caller import Caller
from wharf.limits.core.decision import Decision, decide
from wharf.limits.core.plan import Plan

RECENT_MOST: Final = 10_000
UNWRITTEN_MOST: Final = 50_000
WRITTEN_AT_ONCE: Final = 256
"""Requests are decided between two such parts."""
PATH_CHARACTERS_MOST: Final = 1_024
_FORMS: Final[dict[int, struct.Struct]] = {}
_encode: Final = msgspec.json.Encoder().encode


class Noted(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A decision and what it was about."""

    id: str
    at_ms: int
    method: str
    path: str
    decision: Decision
    caller: Caller


class _Brief(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An admission like most, told by its plan and a few numbers in one piece of memory: of thousands that are kept no
    cache holds each part, and to look for the parts takes longer than the decision did."""

    id: str
    method: str
    path: str
    plan: Plan
    caller: Caller
    numbers: bytes

    def whole(self) -> Noted:
        *befores, at_ms, now_ms, shown_before, shown_end_ms = _form_of(len(self.numbers) // 8 - 4).unpack(self.numbers)
        taken = Taken(True, now_ms, tuple(befores), (), (), (), shown_before, shown_end_ms)
        decision = decide(self.id, self.plan, self.plan.charges, taken)
        return Noted(self.id, at_ms, self.method, self.path, decision, self.caller)


def _form_of(count: int) -> struct.Struct:
    """The count before of each of so many charges, two moments, count and end of the bucket that is shown."""
    form = _FORMS.get(count)
    if form is None:
        form = _FORMS[count] = struct.Struct(f"{count + 4}q")
    return form


class Journal:
    """`folder` None keeps nothing on disk. `tell` hears of every decision that is kept there, as it stands in the file."""

    def __init__(
        self, folder: Path | None, settings: DecisionLogSettings, tell: Callable[[str, bytes], None] | None = None
    ) -> None:
        self.lost = 0
        self._tell = tell
        self._settings = settings
        self._path = folder / "decisions.jsonl" if folder is not None and settings.is_kept else None
        self._recent: deque[Noted | _Brief] = deque(maxlen=RECENT_MOST)
        self._unwritten: deque[Noted] = deque()
        self._admitted = 0
        self._began_ms = 0

    def note(self, noted: Noted) -> None:
        if len(noted.path) > PATH_CHARACTERS_MOST:
            noted = msgspec.structs.replace(noted, path=noted.path[:PATH_CHARACTERS_MOST])
        self._recent.append(noted)
        if noted.decision.is_admitted:
            self._admitted += 1
            if self._admitted % self._settings.one_in:
                return
        self._keep(noted)

    def note_admitted(
        self, request_id: str, at_ms: int, method: str, path: str, decision: Decision, caller: Caller
    ) -> None:
        """`note`, for an admission. No limit was hit in most, no grant helped, no key was one too many."""
        plan, taken = decision.plan, decision.taken
        if taken.hits or taken.keys or taken.banned_until_ms or decision.charges is not plan.charges:
            self.note(Noted(request_id, at_ms, method, path, decision, caller))
            return
        if len(path) > PATH_CHARACTERS_MOST:
            path = path[:PATH_CHARACTERS_MOST]
        befores = taken.befores
        numbers = (_FORMS.get(len(befores)) or _form_of(len(befores))).pack(
            *befores, at_ms, taken.now_ms, taken.shown_before, taken.shown_end_ms
        )
        self._recent.append(_Brief(request_id, method, path, plan, caller, numbers))
        self._admitted += 1
        if not self._admitted % self._settings.one_in:
            self._keep(Noted(request_id, at_ms, method, path, decision, caller))

    def _keep(self, noted: Noted) -> None:
        if self._path is None:
            return
        if len(self._unwritten) >= UNWRITTEN_MOST:
            self._unwritten.popleft()
            self.lost += 1
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
            some = [self._unwritten.popleft() for _ in range(min(len(self._unwritten), WRITTEN_AT_ONCE))]
            lines = [_encode(self.told(noted)) for noted in some]
            try:
                await asyncio.to_thread(append, self._path, b"".join(line + b"\n" for line in lines))
            except OSError:
                self.lost += len(some)
                raise
            self._began_ms = self._began_ms or now_ms
            if self._tell is not None:
                for noted, line in zip(some, lines, strict=True):
                    self._tell(noted.id, line)
        is_old = bool(self._began_ms) and now_ms - self._began_ms >= self._settings.kept_ms // 2
        if self._path.exists() and (is_old or self._path.stat().st_size >= self._settings.bytes_most // 2):
            self._path.replace(self._older)
            self._began_ms = now_ms

    def told(self, noted: Noted) -> dict[str, Any]:
        """A decision as people read it: each limit that was looked at, with its counter before and after."""
        decision, caller = noted.decision, noted.caller
        address = caller.address.removeprefix("address:")
        if self._settings.cuts_addresses:
            # Those of IPv6 are counted by their network of 64 bits anyway.
            address = address.rpartition(".")[0] + ".0" if "." in address else address
        told = decision.told
        return {
            "request_id": noted.id,
            "at_ms": noted.at_ms,
            "verdict": decision.verdict.value,
            "method": noted.method,
            "path": noted.path,
            "endpoint": decision.plan.endpoint,
            "caller": caller.owner,
            "credential": caller.kind.value,
            "app": caller.app,
            "address": address,
            "resource": decision.plan.resource,
            "retry_after_s": decision.retry_after_s,
            "told_by": None if told is None else told.name,
            "banned_until_ms": decision.taken.banned_until_ms or None,
            "problem": decision.problem or None,
            "limits": [msgspec.to_builtins(looked) for looked in decision.looked_at()],
        }

    def find(self, request_id: str) -> dict[str, Any] | None:
        for noted in reversed(self._recent):
            if noted.id == request_id:
                return self.told(noted.whole() if isinstance(noted, _Brief) else noted)
        return next((entry for entry in self._written() if entry.get("request_id") == request_id), None)

    def recent(self) -> Iterator[Noted]:
        return (noted.whole() if isinstance(noted, _Brief) else noted for noted in reversed(self._recent))

    def _written(self) -> Iterator[dict[str, Any]]:
        for path in (self._path, self._older):
            if path is None or not path.exists():
                continue
            with path.open("rb") as file:
                for line in file:
                    yield msgspec.json.decode(line)


def append(path: Path, text: bytes) -> None:
    """Write behind what is there, in a file for its owner only: it tells who asked for what, and from where."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as file:
        file.write(text)

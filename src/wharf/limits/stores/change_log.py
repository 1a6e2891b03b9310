"""Counters that can be put back to the last answer that was given, also after a process was killed.

What a call changed is written, as it stands then, behind the last save before anybody is told; a frame read twice changes
nothing. The kernel keeps what was written when the process ends; only a machine that fails loses the last moments.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import Rule
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.stores.snapshot import BanRows, CounterFileHeader, CounterRows, encode_frame, read_frames

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1


class TrackedCounters(Counters):
    """Counters that know what changed and is not written yet."""

    def __init__(self, rules: Sequence[Rule] = (), *, max_keys: int = 1_000_000) -> None:
        super().__init__(rules, max_keys=max_keys)
        self.on_change: Callable[[], object] | None = None
        """Told of the first change since something was written, or tried to be."""
        self.has_notified = False
        self.changed_keys: dict[str, set[str]] = {}
        """Keys by rule."""
        self.changed_bans: set[str] = set()

    def _note(self, charges: Iterable[Charge], keys: tuple[str, ...] = (), bans: Iterable[str] = ()) -> None:
        if not self.has_notified and self.on_change is not None:
            self.has_notified = True
            self.on_change()
        for index, charge in enumerate(charges):
            self.changed_keys.setdefault(charge.name, set()).add(keys[index] if keys else charge.key)
        self.changed_bans.update(bans)

    def take(self, call: StoreCall, now_ms: int) -> TakeResult:
        taken = super().take(call, now_ms)
        if taken.is_admitted:
            self._note(call.charges, taken.keys)
        else:
            self._note((), bans=(call.plan.ban_subject,))
        return taken

    def refund(self, request_id: str, now_ms: int, *, is_fault: bool) -> bool:
        answered = self._find(request_id)
        is_done = super().refund(request_id, now_ms, is_fault=is_fault)
        if is_done and answered is not None:
            self._note(answered.call.charges[:1], answered.taken.keys[:1])
        return is_done

    def add_usage(self, charges: Iterable[Charge], amount: int, now_ms: int) -> tuple[Charge, ...]:
        charged = super().add_usage(charges, amount, now_ms)
        self._note(charged)
        return charged

    def reset(self, charges: Iterable[Charge]) -> None:
        charges = tuple(charges)
        super().reset(charges)
        self._note(charges)

    def ban(self, subject: str, until_ms: int) -> None:
        super().ban(subject, until_ms)
        self._note((), bans=(subject,))


class ChangeLog:
    """The files behind a save: `<name>.1`, `<name>.2`, … in their order. A save begins a new one and ends the others."""

    def __init__(self, snapshot_path: Path) -> None:
        self._begins = f"{snapshot_path.name}.changes."
        self._folder = snapshot_path.parent
        self._number = 0
        self._file: int | None = None
        self._length = 0
        self._is_failing = False

    def _files(self) -> list[tuple[int, Path]]:
        found = [(path.name.removeprefix(self._begins), path) for path in self._folder.glob(f"{self._begins}*")]
        return sorted((int(number), path) for number, path in found if number.isdigit())

    def load_into(self, counters: Counters) -> None:
        for number, path in self._files():
            self._number = max(self._number, number)
            with path.open("rb") as file:
                for rows in read_frames(file, path.name, can_be_torn=True):
                    rows.load_into(counters)

    def start_file(self) -> int:
        """Write to a new file from now on. Returns its number: `end_before` it is for whoever saved what came before. Raises
        OSError; then the file before is still the one."""
        number = self._number + 1
        path = self._folder / f"{self._begins}{number}"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            length = _append(file, encode_frame(CounterFileHeader(FORMAT_VERSION)), behind=0)
        except OSError:
            os.close(file)
            raise
        self.close()
        self._number, self._file, self._length = number, file, length
        return number

    def delete_before(self, number: int) -> None:
        for old, path in self._files():
            if old < number:
                path.unlink()

    def write_changes(self, counters: TrackedCounters) -> None:
        """Write what changed, as it stands now. What is not taken by the disk stays noted, for the next time."""
        counters.has_notified = False
        if self._file is None or not (counters.changed_keys or counters.changed_bans):
            return
        parts: list[bytes] = []
        for name, keys in counters.changed_keys.items():
            table = counters.tables.get(name)
            if table is not None and name not in counters.unsaved_rules:
                parts.append(encode_frame(CounterRows(name, [(key, table.dump_row(key) or ()) for key in keys])))
        if counters.changed_bans:
            bans = counters.bans
            parts.append(encode_frame(BanRows([(who, bans[who]) for who in counters.changed_bans if who in bans])))
        try:
            self._length = _append(self._file, b"".join(parts), behind=self._length)
            self._is_failing = False
        except OSError as problem:
            if not self._is_failing:
                log.error("changes of counters cannot be written, and would be lost with this process: %s", problem)
            self._is_failing = True
            return
        counters.changed_keys.clear()
        counters.changed_bans.clear()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _append(file: int, data: bytes, *, behind: int) -> int:
    """Write all of it or nothing: behind a part of a frame nothing could be read any more. Returns how long the file is then.
    Raises OSError."""
    written = os.write(file, data)
    if written < len(data):
        os.ftruncate(file, behind)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return behind + written

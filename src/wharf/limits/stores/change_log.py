"""The log of counter changes since the last snapshot, so that a killed process loses no reply that it sent.

Before a reply is sent, the new values of changed counters are appended to a file. Frames (length and msgpack value) hold values, not differences,
so reading one twice is harmless. The data survives the process; if the machine fails, the last seconds can be lost.
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
from wharf.limits.stores.snapshot import BanRows, CounterFileHeader, CounterRows, read_frames
from wharf.world.framing import encode_frame

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1


class TrackedCounters(Counters):
    """Counters in memory that record which of them changed since the last write to the change log."""

    def __init__(self, rules: Sequence[Rule] = (), *, max_keys: int = 1_000_000) -> None:
        super().__init__(rules, max_keys=max_keys)
        self.on_change: Callable[[], object] | None = None
        """Called on the first change after a write, or after an attempt to write."""
        self.has_notified = False
        """Whether `on_change` was called since the last write."""
        self.changed_keys: dict[str, set[str]] = {}
        """Changed keys by rule."""
        self.changed_bans: set[str] = set()

    def _record_change(self, charges: Iterable[Charge], keys: tuple[str, ...] = (), bans: Iterable[str] = ()) -> None:
        """Record that the counters of these charges and the bans of these subjects changed; call `on_change` if it is due.

        If `keys` is not empty, it has the counter key of each charge instead of the charge itself.
        """
        if not self.has_notified and self.on_change is not None:
            self.has_notified = True
            self.on_change()
        for index, charge in enumerate(charges):
            self.changed_keys.setdefault(charge.name, set()).add(keys[index] if keys else charge.key)
        self.changed_bans.update(bans)

    def take(self, call: StoreCall, now_ms: int) -> TakeResult:
        """Check all limits of a request, charge all of them or none, and record which counters and bans changed."""
        result = super().take(call, now_ms)
        if result.is_admitted:
            self._record_change(call.charges, result.keys)
        else:
            self._record_change((), bans=(call.plan.ban_subject,))
        return result

    def refund(self, request_id: str, now_ms: int, *, is_fault: bool) -> bool:
        """Refund the primary charge of a request, and record that its counter changed. Return whether it was refunded.

        `is_fault` is set if the reason is a 5xx reply.
        """
        entry = self._results.find(request_id)
        is_done = super().refund(request_id, now_ms, is_fault=is_fault)
        if is_done and entry is not None:
            self._record_change(entry.call.charges[:1], entry.result.keys[:1])
        return is_done

    def add_usage(self, charges: Iterable[Charge], amount: int, now_ms: int) -> tuple[Charge, ...]:
        """Charge an amount that is known only after the request, and record what changed. Return the charges used."""
        charged = super().add_usage(charges, amount, now_ms)
        self._record_change(charged)
        return charged

    def reset(self, charges: Iterable[Charge]) -> None:
        """Set the counters of these charges to zero, and record what changed."""
        charges = tuple(charges)
        super().reset(charges)
        self._record_change(charges)

    def ban(self, subject: str, until_ms: int) -> None:
        super().ban(subject, until_ms)
        self._record_change((), bans=(subject,))


class ChangeLog:
    """The numbered files that follow a snapshot, `<name>.changes.1`, `<name>.changes.2` and so on.

    Each snapshot starts a new file and makes the earlier ones obsolete.
    """

    def __init__(self, snapshot_path: Path) -> None:
        self._name_prefix = f"{snapshot_path.name}.changes."
        self._folder = snapshot_path.parent
        self._number = 0
        self._file: int | None = None
        self._length = 0
        self._is_failing = False

    def _list_files(self) -> list[tuple[int, Path]]:
        """Return the number and path of each file of the log, in the order of the numbers."""
        found = [
            (path.name.removeprefix(self._name_prefix), path) for path in self._folder.glob(f"{self._name_prefix}*")
        ]
        return sorted((int(number), path) for number, path in found if number.isdigit())

    def load_into(self, counters: Counters) -> None:
        """Load the changes in all files of the log into the counters, in the order of the files."""
        for number, path in self._list_files():
            self._number = max(self._number, number)
            with path.open("rb") as file:
                for rows in read_frames(file, path.name, can_be_torn=True):
                    rows.load_into(counters)

    def start_file(self) -> int:
        """Write changes to a new file from now on, and return its number.

        After the next snapshot is saved, pass that number to `delete_before`. Raises `OSError`; the previous file then
        stays in use.
        """
        number = self._number + 1
        path = self._folder / f"{self._name_prefix}{number}"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            length = _append_or_undo(file, encode_frame(CounterFileHeader(FORMAT_VERSION)), end=0)
        except OSError:
            os.close(file)
            raise
        self.close()
        self._number, self._file, self._length = number, file, length
        return number

    def delete_before(self, number: int) -> None:
        """Delete the files with lower numbers, which the latest snapshot made obsolete."""
        for file_number, path in self._list_files():
            if file_number < number:
                path.unlink()

    def write_changes(self, counters: TrackedCounters) -> None:
        """Append the current values of changed counters and bans to the file.

        If writing fails, log the first failure and keep the changes for the next call.
        """
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
            parts.append(
                encode_frame(
                    BanRows([(subject, bans[subject]) for subject in counters.changed_bans if subject in bans])
                )
            )
        try:
            self._length = _append_or_undo(self._file, b"".join(parts), end=self._length)
            self._is_failing = False
        except OSError as problem:
            if not self._is_failing:
                log.error("cannot write counter changes path=%s error=%s", self._folder, problem)
            self._is_failing = True
            return
        counters.changed_keys.clear()
        counters.changed_bans.clear()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _append_or_undo(file: int, data: bytes, *, end: int) -> int:
    """Append all data to a file or nothing, and return the new length of the file. `end` is its length before.

    A partial frame would make later frames unreadable, so it is cut off. Raises `OSError` if writing fails.
    """
    written = os.write(file, data)
    if written < len(data):
        os.ftruncate(file, end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return end + written

"""Checks each reply to a read against the history of the log.

A default read returns a state that the log had between the request and the reply. A stale read returns any earlier
state. The index of one client's reads never falls. A blocking query returns soon after the change that it waited for.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from simulation.cluster import ServerProcess
from simulation.record_history import NO_LATER_INDEX, RecordHistory
from simulation.timeline import InvariantViolation
from wharf.cluster.state import Table

MAX_STALE_DELAY_S: Final = 9.5
"""How long after a change a stale blocking query may return: the longest network delays, and a margin."""
MAX_DEFAULT_DELAY_S: Final = MAX_STALE_DELAY_S + 8.0
"""The same for a default read, which may first wait for a leader and for the log."""


class CheckedRead(msgspec.Struct, frozen=True, kw_only=True):
    """A read that a client sent: its tables, its options, and when."""

    client: str
    subject: str
    tables: Sequence[Table[Any]]
    key: str = ""  # The key of the record in the first table; empty for a list.
    is_stale: bool = False
    index: int = 0
    started_s: float = 0.0
    log_head: int = 0  # The index of the log when the read was sent.


class CheckedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply: its index (0 if it has none), and the version of each record by key."""

    index: int
    records: dict[str, int]
    ended_s: float


class ReadChecker:
    """Raises `InvariantViolation` if a reply does not agree with the history of the log."""

    def __init__(self, history: RecordHistory) -> None:
        self.checked_count = 0
        self._history = history
        self._last_indexes: dict[tuple[str, str], int] = {}

    def check_reply(self, read: CheckedRead, reply: CheckedReply, server: ServerProcess | None) -> None:
        """Check one reply. `server` is the process that sent it, or `None` if that process was restarted meanwhile."""
        self.checked_count += 1
        self._require_growing_index(read, reply)
        self._require_one_state(read, reply)
        if read.index and server is not None:
            self._require_prompt(read, reply, server)

    def _require_growing_index(self, read: CheckedRead, reply: CheckedReply) -> None:
        """Require that the index is not below the awaited one, nor below that of the client's last reply."""
        if not reply.index:
            return
        subjects = (read.client, read.key)
        if reply.index < read.index:
            raise InvariantViolation(
                f"{read.client} waited on {read.subject} from index {read.index} and the reply has index {reply.index}",
                *subjects,
            )
        if read.is_stale:
            return
        last_index = self._last_indexes.get((read.client, read.subject), 0)
        if reply.index < last_index:
            raise InvariantViolation(
                f"{read.client} read {read.subject} at {last_index} and then at {reply.index}", *subjects
            )
        self._last_indexes[read.client, read.subject] = reply.index

    def _require_one_state(self, read: CheckedRead, reply: CheckedReply) -> None:
        """Require that the reply shows one state of the log that the read may return."""
        low = 1 if read.is_stale else max(1, read.log_head)
        high = self._history.replica.index
        if reply.index:
            candidates = [max(low, reply.index)]  # This state lasts until the tables change again.
        else:
            versions = self._history.list_versions(read.tables[0], read.key)
            candidates = [low, *(index for index, _ in versions if low < index <= high)]
        reasons = [reason for index in candidates if (reason := self._find_difference(read, reply, index))]
        if len(reasons) == len(candidates):
            raise InvariantViolation(
                f"{read.client} read {read.subject} ({'stale' if read.is_stale else 'default'}) and got "
                f"index {reply.index} and {_format_records(reply.records)}: no state of the log from {low} to {high} matches "
                f"({'; '.join(dict.fromkeys(reasons[-3:]))})",
                read.client, *read.key.split("\0"),
            )  # fmt: skip

    def _find_difference(self, read: CheckedRead, reply: CheckedReply, index: int) -> str:
        """Return how the reply differs from the state at this index; empty if it does not."""
        history, table = self._history, read.tables[0]
        if index > history.replica.index:
            return f"the log ends at index {history.replica.index}"
        if read.key:
            record = history.get_record(table, read.key, index)
            version = record.modify_index if record is not None else 0
            if reply.records.get(read.key, 0) != version:
                return f"at {index} its version is {version}"
            if not reply.index:
                return ""
            expected = version or history.find_last_table_change(table, index)
            return "" if reply.index == expected else f"at {index} its index is {expected}"
        last = max(history.find_last_table_change(each_table, index) for each_table in read.tables)
        if reply.index != last:
            return f"at {index} the index of the list is {last}"
        for key in history.list_keys(table):
            record = history.get_record(table, key, index)
            version = record.modify_index if record is not None else 0
            if reply.records.get(key, 0) != version:
                return f"at {index} {key!r} has version {version}, not {reply.records.get(key, 0)}"
        return ""

    def _require_prompt(self, read: CheckedRead, reply: CheckedReply, server: ServerProcess) -> None:
        """Require that a blocking query returns soon after its server has applied the awaited change."""
        history = self._history
        if read.key:
            change = history.find_next_change(read.tables[0], read.key, read.index)
        else:
            change = min(history.find_next_table_change(table, read.index) for table in read.tables)
        if change == NO_LATER_INDEX or server.paused_until_s > read.started_s:
            return
        applied_s = next((at_s for index, at_s in server.applied_indexes if index >= change), None)
        if applied_s is None:
            return
        waited_s = reply.ended_s - max(applied_s, read.started_s)
        if waited_s > (MAX_STALE_DELAY_S if read.is_stale else MAX_DEFAULT_DELAY_S):
            raise InvariantViolation(
                f"{read.client} waited on {read.subject} at {server.name} from index {read.index}; the change at "
                f"{change} was applied at {applied_s:.3f} s and the reply came {waited_s:.1f} s later",
                read.client, *read.key.split("\0"),
            )  # fmt: skip


def _format_records(records: dict[str, int]) -> str:
    return (
        f"{len(records)} records" if len(records) > 3 else str({key[-20:]: version for key, version in records.items()})
    )

"""What a reply to a read may say, judged by one who saw everything.

A default read shows one state of the log between its call and its reply; a stale one some state that there was. A
client's index never goes back. A reply to a blocking query comes soon after the change that it waited for.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from simulation.cluster import ServerProcess
from simulation.record_history import NO_LATER_INDEX, RecordHistory
from simulation.timeline import InvariantViolation
from wharf.cluster.state import Table

MAX_STALE_DELAY_S: Final = 9.5
"""How long after a change a waiting client may go without a reply: the longest delays of the weather, and some."""
MAX_DEFAULT_DELAY_S: Final = MAX_STALE_DELAY_S + 8.0
"""A default read may first have to wait for a leader and for the log."""


class CheckedRead(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of which tables, and how."""

    client: str
    subject: str
    tables: Sequence[Table[Any]]
    key: str = ""  # Of the one record asked for, in the first table; else a list.
    is_stale: bool = False
    index: int = 0
    began_s: float = 0.0
    log_head: int = 0  # Where the log stood when it was asked.


class CheckedReply(msgspec.Struct, frozen=True, kw_only=True):
    """`records`: key to version, as the reply shows them. `index` 0: the reply shows none."""

    index: int
    records: dict[str, int]
    ended_s: float


class ReadChecker:
    def __init__(self, history: RecordHistory) -> None:
        self.checked_count = 0
        self._witness = history
        self._heard: dict[tuple[str, str], int] = {}

    def check_reply(self, read: CheckedRead, reply: CheckedReply, server: ServerProcess | None) -> None:
        """`server` is the process that answered, if it is the same that was asked and lived all the while."""
        self.checked_count += 1
        self._require_forward(read, reply)
        self._require_one_state(read, reply)
        if read.index and server is not None:
            self._require_prompt(read, reply, server)

    def _require_forward(self, question: CheckedRead, told: CheckedReply) -> None:
        if not told.index:
            return
        about = (question.client, question.key)
        if told.index < question.index:
            raise InvariantViolation(
                f"{question.client} waited on {question.subject} from index {question.index} and was told {told.index}",
                *about,
            )
        if question.is_stale:
            return
        heard = self._heard.get((question.client, question.subject), 0)
        if told.index < heard:
            raise InvariantViolation(
                f"{question.client} read {question.subject} at {heard} and then at {told.index}", *about
            )
        self._heard[question.client, question.subject] = told.index

    def _require_one_state(self, question: CheckedRead, told: CheckedReply) -> None:
        low = 1 if question.is_stale else max(1, question.log_head)
        high = self._witness.replica.index
        if told.index:
            candidates = [max(low, told.index)]  # Nothing of it changes before the tables change again.
        else:
            versions = self._witness.list_versions(question.tables[0], question.key)
            candidates = [low, *(index for index, _ in versions if low < index <= high)]
        reasons = [why for index in candidates if (why := self._why_not(question, told, index))]
        if len(reasons) == len(candidates):
            raise InvariantViolation(
                f"{question.client} read {question.subject} ({'stale' if question.is_stale else 'default'}) and was told "
                f"index {told.index} and {_shown(told.records)}: no state of the log from {low} to {high} says that "
                f"({'; '.join(dict.fromkeys(reasons[-3:]))})",
                question.client, *question.key.split("\0"),
            )  # fmt: skip

    def _why_not(self, question: CheckedRead, told: CheckedReply, index: int) -> str:
        """Why the reply does not show the state at this index; nothing if it does."""
        witness, table = self._witness, question.tables[0]
        if index > witness.replica.index:
            return f"the log has come to {witness.replica.index} only"
        if question.key:
            record = witness.get_record(table, question.key, index)
            version = record.modify_index if record is not None else 0
            if told.records.get(question.key, 0) != version:
                return f"at {index} its version is {version}"
            if not told.index:
                return ""
            expected = version or witness.find_last_table_change(table, index)
            return "" if told.index == expected else f"at {index} its index is {expected}"
        last = max(witness.find_last_table_change(each, index) for each in question.tables)
        if told.index != last:
            return f"at {index} the index of the list is {last}"
        for key in witness.list_keys(table):
            record = witness.get_record(table, key, index)
            version = record.modify_index if record is not None else 0
            if told.records.get(key, 0) != version:
                return f"at {index} {key!r} has version {version}, not {told.records.get(key, 0)}"
        return ""

    def _require_prompt(self, question: CheckedRead, told: CheckedReply, server: ServerProcess) -> None:
        witness = self._witness
        if question.key:
            change = witness.find_next_change(question.tables[0], question.key, question.index)
        else:
            change = min(witness.find_next_table_change(table, question.index) for table in question.tables)
        if change == NO_LATER_INDEX or server.paused_until_s > question.began_s:
            return
        applied_s = next((at_s for index, at_s in server.applied_indexes if index >= change), None)
        if applied_s is None:
            return
        waited_s = told.ended_s - max(applied_s, question.began_s)
        if waited_s > (MAX_STALE_DELAY_S if question.is_stale else MAX_DEFAULT_DELAY_S):
            raise InvariantViolation(
                f"{question.client} waited on {question.subject} at {server.name} from index {question.index}; the change at "
                f"{change} was there at {applied_s:.3f} s and the reply came {waited_s:.1f} s later",
                question.client, *question.key.split("\0"),
            )  # fmt: skip


def _shown(records: dict[str, int]) -> str:
    return f"{len(records)} records" if len(records) > 3 else str({key[-20:]: at for key, at in records.items()})

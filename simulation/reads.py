"""What a reply to a read may say, judged by one who saw everything.

A default read shows one state of the log between its call and its reply; a stale one some state that there was. A
client's index never goes back. A reply to a blocking query comes soon after the change that it waited for.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from simulation.cluster import ServerProcess
from simulation.story import Broken
from simulation.witness import NEVER, Witness
from wharf.state import Table

LATE_STALE_S: Final = 9.5
"""How long after a change a waiting client may go without a reply: the longest delays of the weather, and some."""
LATE_DEFAULT_S: Final = LATE_STALE_S + 8.0
"""A default read may first have to wait for a leader and for the log."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of which tables, and how."""

    client: str
    what: str
    tables: Sequence[Table[Any]]
    key: str = ""  # Of the one record asked for, in the first table; else a list.
    is_stale: bool = False
    index: int = 0
    began_s: float = 0.0
    head: int = 0  # Where the log stood when it was asked.


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """`records`: key to version, as the reply shows them. `index` 0: the reply shows none."""

    index: int
    records: dict[str, int]
    ended_s: float


class Judge:
    def __init__(self, witness: Witness) -> None:
        self.judged = 0
        self._witness = witness
        self._heard: dict[tuple[str, str], int] = {}

    def judge(self, question: Question, told: Told, server: ServerProcess | None) -> None:
        """`server` is the process that answered, if it is the same that was asked and lived all the while."""
        self.judged += 1
        self._require_forward(question, told)
        self._require_one_state(question, told)
        if question.index and server is not None:
            self._require_prompt(question, told, server)

    def _require_forward(self, question: Question, told: Told) -> None:
        if not told.index:
            return
        about = (question.client, question.key)
        if told.index < question.index:
            raise Broken(
                f"{question.client} waited on {question.what} from index {question.index} and was told {told.index}",
                *about,
            )
        if question.is_stale:
            return
        heard = self._heard.get((question.client, question.what), 0)
        if told.index < heard:
            raise Broken(f"{question.client} read {question.what} at {heard} and then at {told.index}", *about)
        self._heard[question.client, question.what] = told.index

    def _require_one_state(self, question: Question, told: Told) -> None:
        low = 1 if question.is_stale else max(1, question.head)
        high = self._witness.replica.index
        if told.index:
            candidates = [max(low, told.index)]  # Nothing of it changes before the tables change again.
        else:
            versions = self._witness.versions(question.tables[0], question.key)
            candidates = [low, *(index for index, _ in versions if low < index <= high)]
        reasons = [why for index in candidates if (why := self._why_not(question, told, index))]
        if len(reasons) == len(candidates):
            raise Broken(
                f"{question.client} read {question.what} ({'stale' if question.is_stale else 'default'}) and was told "
                f"index {told.index} and {_shown(told.records)}: no state of the log from {low} to {high} says that "
                f"({'; '.join(dict.fromkeys(reasons[-3:]))})",
                question.client, *question.key.split("\0"),
            )  # fmt: skip

    def _why_not(self, question: Question, told: Told, index: int) -> str:
        """Why the reply does not show the state at this index; nothing if it does."""
        witness, table = self._witness, question.tables[0]
        if index > witness.replica.index:
            return f"the log has come to {witness.replica.index} only"
        if question.key:
            record = witness.at(table, question.key, index)
            version = record.modify_index if record is not None else 0
            if told.records.get(question.key, 0) != version:
                return f"at {index} its version is {version}"
            if not told.index:
                return ""
            expected = version or witness.last_table_change(table, index)
            return "" if told.index == expected else f"at {index} its index is {expected}"
        last = max(witness.last_table_change(each, index) for each in question.tables)
        if told.index != last:
            return f"at {index} the index of the list is {last}"
        for key in witness.keys(table):
            record = witness.at(table, key, index)
            version = record.modify_index if record is not None else 0
            if told.records.get(key, 0) != version:
                return f"at {index} {key!r} has version {version}, not {told.records.get(key, 0)}"
        return ""

    def _require_prompt(self, question: Question, told: Told, server: ServerProcess) -> None:
        witness = self._witness
        if question.key:
            change = witness.next_change(question.tables[0], question.key, question.index)
        else:
            change = min(witness.next_table_change(table, question.index) for table in question.tables)
        if change == NEVER or server.halted_until_s > question.began_s:
            return
        applied_s = next((at_s for index, at_s in server.applied if index >= change), None)
        if applied_s is None:
            return
        waited_s = told.ended_s - max(applied_s, question.began_s)
        if waited_s > (LATE_STALE_S if question.is_stale else LATE_DEFAULT_S):
            raise Broken(
                f"{question.client} waited on {question.what} at {server.name} from index {question.index}; the change at "
                f"{change} was there at {applied_s:.3f} s and the reply came {waited_s:.1f} s later",
                question.client, *question.key.split("\0"),
            )  # fmt: skip


def _shown(records: dict[str, int]) -> str:
    return f"{len(records)} records" if len(records) > 3 else str({key[-20:]: at for key, at in records.items()})

"""What operators decide about the whole cluster: how it schedules, and when its servers count as healthy.

Each configuration is one record and a whole document: what a writer leaves out is off.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from wharf.model import autopilot, scheduler_configuration
from wharf.model.autopilot import DEFAULT_CONFIGURATION, AutopilotConfiguration
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.refusal import invalid
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.operations.decision import Decision
from wharf.state import Replica, Table
from wharf.state.tables import AUTOPILOT_CONFIGURATION, SCHEDULER_CONFIGURATION

C = TypeVar("C", SchedulerConfiguration, AutopilotConfiguration)


class ConfigurationWritten(msgspec.Struct, frozen=True):
    """`is_updated` false: the document had another version than the caller expected, and nothing was written."""

    index: int
    is_updated: bool


def set_scheduler_configuration(
    snapshot: Replica, wanted: SchedulerConfiguration, *, expected: int | None = None, cause: str = ""
) -> Decision[ConfigurationWritten]:
    """Replace the whole document. `expected`: only if it is still of this version."""
    _refuse(scheduler_configuration.problems(wanted))
    write = "scheduler-configured"
    return _set(snapshot, SCHEDULER_CONFIGURATION, wanted, write=write, expected=expected, cause=cause)


def set_autopilot_configuration(
    snapshot: Replica, wanted: AutopilotConfiguration, *, expected: int | None = None, cause: str = ""
) -> Decision[ConfigurationWritten]:
    """Replace the whole document. `expected`: only if it is still of this version; 0 while none was ever stored."""
    _refuse(autopilot.problems(wanted))
    write = "autopilot-configured"
    return _set(snapshot, AUTOPILOT_CONFIGURATION, wanted, write=write, expected=expected, cause=cause)


def autopilot_configuration(snapshot: Replica) -> AutopilotConfiguration:
    """What is in force, stored or not."""
    return snapshot.get(AUTOPILOT_CONFIGURATION) or DEFAULT_CONFIGURATION


def _set(
    snapshot: Replica, table: Table[Any], wanted: C, *, write: str, expected: int | None, cause: str
) -> Decision[ConfigurationWritten]:
    stored = snapshot.get(table)
    if expected is not None and expected != snapshot.version(table):
        return Decision(None, lambda index: ConfigurationWritten(index, False))
    # Who created it and when is not for the writer to say.
    record = msgspec.structs.replace(wanted, create_index=THIS if stored is None else stored.create_index)
    return Decision(
        Write(write, Cause(CauseKind.REQUEST, cause), [table.put(record)], [snapshot.as_seen(table)]),
        lambda index: ConfigurationWritten(index, True),
    )


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise invalid("; ".join(problems))

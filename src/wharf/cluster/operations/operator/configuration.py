"""Cluster-wide configuration that operators set: the scheduler configuration and the autopilot configuration.

Each is one record that is replaced as a whole: a setting that the request leaves out is off.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import AUTOPILOT_CONFIGURATION, SCHEDULER_CONFIGURATION
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.operator import autopilot, scheduler_configuration
from wharf.contract.model.operator.autopilot import DEFAULT_AUTOPILOT_CONFIGURATION, AutopilotConfiguration
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import invalid_request

C = TypeVar("C", SchedulerConfiguration, AutopilotConfiguration)


class ConfigurationWriteResult(msgspec.Struct, frozen=True):
    """The result of a request to replace a configuration."""

    index: int  # The log index of the write.
    is_updated: bool  # False: the stored version is not the expected one, so nothing was written.


def set_scheduler_configuration(
    snapshot: Replica, requested: SchedulerConfiguration, *, expected_version: int | None = None, cause: str = ""
) -> Decision[ConfigurationWriteResult]:
    """Return the decision that replaces the scheduler configuration. Raises if it is invalid.

    With `expected_version`, nothing is written unless the stored one has this version.
    """
    _raise_problems(scheduler_configuration.list_scheduler_configuration_problems(requested))
    write = "scheduler-configured"
    return _set_configuration(
        snapshot, SCHEDULER_CONFIGURATION, requested, write_kind=write, expected_version=expected_version, cause=cause
    )


def set_autopilot_configuration(
    snapshot: Replica, requested: AutopilotConfiguration, *, expected_version: int | None = None, cause: str = ""
) -> Decision[ConfigurationWriteResult]:
    """Return the decision that replaces the autopilot configuration. Raises if it is invalid.

    With `expected_version`, nothing is written unless the stored one has this version; 0 means that none was ever
    stored.
    """
    _raise_problems(autopilot.list_autopilot_problems(requested))
    write = "autopilot-configured"
    return _set_configuration(
        snapshot, AUTOPILOT_CONFIGURATION, requested, write_kind=write, expected_version=expected_version, cause=cause
    )


def get_autopilot_configuration(snapshot: Replica) -> AutopilotConfiguration:
    """Return the stored autopilot configuration, or the default one."""
    return snapshot.get(AUTOPILOT_CONFIGURATION) or DEFAULT_AUTOPILOT_CONFIGURATION


def _set_configuration(
    snapshot: Replica, table: Table[Any], requested: C, *, write_kind: str, expected_version: int | None, cause: str
) -> Decision[ConfigurationWriteResult]:
    """Return the decision that replaces the only record of this table.

    With `expected_version`, nothing is written unless the stored record has this version.
    """
    stored = snapshot.get(table)
    if expected_version is not None and expected_version != snapshot.get_version(table):
        return Decision(None, lambda index: ConfigurationWriteResult(index, False))
    # The caller cannot set the creation index.
    record = msgspec.structs.replace(requested, create_index=WRITE_INDEX if stored is None else stored.create_index)
    return Decision(
        Write(
            write_kind,
            Cause(CauseKind.REQUEST, cause),
            [table.build_put(record)],
            [snapshot.build_key_condition(table)],
        ),
        lambda index: ConfigurationWriteResult(index, True),
    )


def _raise_problems(problems: Sequence[str]) -> None:
    """Raise an error that lists the problems, if there are any."""
    if problems:
        raise invalid_request("; ".join(problems))

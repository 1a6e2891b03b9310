"""Scaling policies, scaling events, and the scale status of a job's groups. Nothing here scales a job."""

from enum import StrEnum
from typing import Any, Final

import msgspec

from wharf.contract.model.record import Record

UNSET_MAX_COUNT: Final = -1
"""The `max` of a policy that sets none."""


class ScalingKind(StrEnum):
    """What a scaling policy changes."""

    HORIZONTAL = "horizontal"  # The count of a group; only this is supported.
    VERTICAL_CPU = "vertical_cpu"  # The MHz of a task.
    VERTICAL_MEM = "vertical_mem"  # The memory of a task.


class ScalingPolicy(Record):
    """The limits of the count of a group, and settings for an external autoscaler."""

    id: str = ""
    """The ID of the policy.

    Servers set it and keep it in later versions of the job.

    Set by: servers
    """
    type: str = ScalingKind.HORIZONTAL
    """What the policy scales.

    Values:
        horizontal: the count of the group
    Default: `horizontal`
    Example: horizontal
    """
    target: dict[str, str] | None = None
    """The namespace, job and group that the policy scales.

    Servers set it.

    Set by: servers
    """
    policy: dict[str, object] | None = None
    """Settings for the autoscaler, which Wharf stores unchanged.

    Default: none
    Example: {"cooldown": "1m"}
    """
    min: int = 0
    """The smallest count.

    `wharf job scale` refuses a smaller one.

    Unit: allocations
    Default: the count of the group
    Limits: 0 to `Max`
    Example: 1
    """
    max: int = UNSET_MAX_COUNT
    """The largest count.

    `wharf job scale` refuses a larger one.

    Unit: allocations
    Default: none; required
    Limits: at least `Min`
    Example: 10
    """
    enabled: bool = True
    """Whether an autoscaler may change the count.

    It does not affect `wharf job scale`.
    """
    create_index: int = 0
    """The log index at which the policy was created.

    Set by: servers
    """
    modify_index: int = 0
    """The log index of its last change.

    Set by: servers
    """


MAX_SCALING_EVENTS = 20
"""Events stored for each group, the newest; limits the size of the record."""


class ScalingEvent(Record):
    """One change of a group's count, or a message of the autoscaler about the group."""

    time: int = 0  # ns since the epoch
    count: int | None = None  # The new count; null: only a message.
    previous_count: int = 0  # The count before the change.
    message: str = ""
    error: bool = False  # The message reports a failure.
    meta: dict[str, Any] | None = None  # Data of the autoscaler, stored unchanged.
    eval_id: str | None = None  # The evaluation of the change.
    create_index: int = 0


class JobScalingEvents(Record):
    """The stored scaling events of one job, newest first."""

    namespace: str
    job_id: str
    scaling_events: dict[str, tuple[ScalingEvent, ...]] = msgspec.field(default_factory=dict)  # By group name.
    create_index: int = 0
    modify_index: int = 0


class GroupScaleStatus(Record):
    """The numbers of allocations of a group, and its scaling events. Ended allocations and canaries are not counted."""

    desired: int = 0  # The count in the job.
    placed: int = 0  # Allocations that exist.
    running: int = 0
    healthy: int = 0
    unhealthy: int = 0
    events: tuple[ScalingEvent, ...] | None = None


class JobScaleStatus(Record):
    """The numbers of allocations of each group of a job."""

    job_id: str
    namespace: str
    job_create_index: int = 0
    job_modify_index: int = 0
    job_stopped: bool = False
    task_groups: dict[str, GroupScaleStatus] = {}  # By group name.

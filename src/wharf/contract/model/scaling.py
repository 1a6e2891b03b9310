"""Scaling policies, scaling events, and the scale status of a job's groups. Nothing here scales a job."""

from enum import StrEnum
from typing import Any, Final

import msgspec

from wharf.contract.model.record import Record

UNSET_MAX_COUNT: Final = -1
"""The `max` of a policy that sets none."""


class ScalingKind(StrEnum):
    """The dimension that a policy scales. Only the count of a group (horizontal) is supported."""

    HORIZONTAL = "horizontal"
    VERTICAL_CPU = "vertical_cpu"
    VERTICAL_MEM = "vertical_mem"


class ScalingPolicy(Record):
    """The limits of a group's count, and an opaque policy for an autoscaler. The server sets id, target and indexes."""

    id: str = ""
    type: str = ScalingKind.HORIZONTAL
    target: dict[str, str] | None = None
    policy: dict[str, object] | None = None
    min: int = 0
    max: int = UNSET_MAX_COUNT
    enabled: bool = True
    create_index: int = 0
    modify_index: int = 0


MAX_SCALING_EVENTS = 20
"""Events stored for each group, the newest; limits the size of the record."""


class ScalingEvent(Record):
    """One change of a group's count, or a message of the autoscaler about the group."""

    time: int = 0  # ns since the epoch
    count: int | None = None  # Null: only a message.
    previous_count: int = 0
    message: str = ""
    error: bool = False
    # Data of the autoscaler, stored unchanged.
    meta: dict[str, Any] | None = None
    eval_id: str | None = None
    create_index: int = 0


class JobScalingEvents(Record):
    """The stored scaling events of one job by group, newest first."""

    namespace: str
    job_id: str
    scaling_events: dict[str, tuple[ScalingEvent, ...]] = msgspec.field(default_factory=dict)
    create_index: int = 0
    modify_index: int = 0


class GroupScaleStatus(Record):
    """The counts of a group's allocations, without terminal ones and canaries, and its scaling events."""

    desired: int = 0
    placed: int = 0
    running: int = 0
    healthy: int = 0
    unhealthy: int = 0
    events: tuple[ScalingEvent, ...] | None = None


class JobScaleStatus(Record):
    """The scale status of a job's groups."""

    job_id: str
    namespace: str
    job_create_index: int = 0
    job_modify_index: int = 0
    job_stopped: bool = False
    task_groups: dict[str, GroupScaleStatus] = {}

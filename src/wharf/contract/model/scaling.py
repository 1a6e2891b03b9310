"""The bounds within which a group's count may be scaled, and the opaque policy that an autoscaler reads.

Scaling events: who scaled which group when, and what came of it.

How the groups of a job stand: what is wanted of each, what is there, and who scaled it lately.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec

from wharf.contract.model.record import Record

UNSET_MAX_COUNT: Final = -1


class ScalingKind(StrEnum):
    """What a policy scales. Only the count of a group (horizontal) is supported."""

    HORIZONTAL = "horizontal"
    VERTICAL_CPU = "vertical_cpu"
    VERTICAL_MEM = "vertical_mem"


class ScalingPolicy(Record):
    """A policy as a group carries it and as the table of policies lists it. The server sets id, target and indexes."""

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
"""For each group, the newest."""


class ScalingEvent(Record):
    time: int = 0  # ns since the epoch
    count: int | None = None  # Null: only a message.
    previous_count: int = 0
    message: str = ""
    error: bool = False
    # Opaque to us: whatever the autoscaler said, kept as it came.
    meta: dict[str, Any] | None = None
    eval_id: str | None = None
    create_index: int = 0


class JobScalingEvents(Record):
    """All kept events of one job, by group, newest first."""

    namespace: str
    job_id: str
    scaling_events: dict[str, tuple[ScalingEvent, ...]] = msgspec.field(default_factory=dict)
    create_index: int = 0
    modify_index: int = 0


class GroupScaleStatus(Record):
    """What has ended, and what only tries a new version out, is not counted."""

    desired: int = 0
    placed: int = 0
    running: int = 0
    healthy: int = 0
    unhealthy: int = 0
    events: tuple[ScalingEvent, ...] | None = None


class JobScaleStatus(Record):
    job_id: str
    namespace: str
    job_create_index: int = 0
    job_modify_index: int = 0
    job_stopped: bool = False
    task_groups: dict[str, GroupScaleStatus] = {}

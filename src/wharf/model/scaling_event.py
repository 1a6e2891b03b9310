"""Scaling events: who scaled which group when, and what came of it."""

from typing import Any

import msgspec

from wharf.model.record import Record

MAX_EVENTS_KEPT = 20
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

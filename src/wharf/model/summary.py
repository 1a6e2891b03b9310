"""Job summaries: how many allocations of each group, and how many children, stand where.

One writer keeps them, because Complete and Failed depend on history: they never go down.
"""

import msgspec

from wharf.model.record import Record


class GroupSummary(Record):
    queued: int = 0
    complete: int = 0
    failed: int = 0
    running: int = 0
    starting: int = 0
    lost: int = 0
    unknown: int = 0


class ChildrenSummary(Record):
    pending: int = 0
    running: int = 0
    dead: int = 0


class JobSummary(Record):
    job_id: str
    namespace: str
    summary: dict[str, GroupSummary] = msgspec.field(default_factory=dict)
    children: ChildrenSummary | None = None
    create_index: int = 0
    modify_index: int = 0

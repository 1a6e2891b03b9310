"""How the groups of a job stand: what is wanted of each, what is there, and who scaled it lately."""

from wharf.model.record import Record
from wharf.model.scaling_event import ScalingEvent


class GroupScale(Record):
    """What has ended, and what only tries a new version out, is not counted."""

    desired: int = 0
    placed: int = 0
    running: int = 0
    healthy: int = 0
    unhealthy: int = 0
    events: tuple[ScalingEvent, ...] | None = None


class JobScale(Record):
    job_id: str
    namespace: str
    job_create_index: int = 0
    job_modify_index: int = 0
    job_stopped: bool = False
    task_groups: dict[str, GroupScale] = {}

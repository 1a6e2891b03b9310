"""Bodies of what a node answers itself: metadata, restarts, signals, files, figures.

What a node tells of its machine and of its tasks is as free as the machine is: such replies are maps.
"""

from typing import Any

import msgspec

from wharf.model.record import Record


class NodeMetaApplyRequest(Record):
    """A null takes a key away."""

    node_id: str = ""
    meta: dict[str, str | None] | None = None


class NodeMetaResponse(Record):
    """What jobs see, and what of it was set while the node ran and what its configuration says."""

    meta: dict[str, str] | None = None
    dynamic: dict[str, str | None] | None = None
    static: dict[str, str] | None = None


class AllocRestartRequest(Record):
    task_name: str = ""
    all_tasks: bool = False


class AllocSignalRequest(Record):
    task: str = ""
    signal: str = ""


class AllocPauseRequest(Record):
    task: str = ""
    schedule_state: str = ""


class AllocPauseState(Record):
    schedule_state: str = ""


class IndexResponse(Record):
    index: int = 0


class NodeIdentityRequest(Record):
    node_id: str = ""


class AllocFileInfo(Record):
    name: str = ""
    is_dir: bool = False
    size: int = 0
    file_mode: str = ""
    mod_time: str = ""
    content_type: str | msgspec.UnsetType = msgspec.UNSET


Figures = dict[str, Any]
"""Whatever the machine measures, by name."""

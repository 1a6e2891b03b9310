"""One task that is to be prepared, with all that is known of it."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.node.drivers.port import View
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues, resolve_text

CONTAINER_FOLDERS = {"alloc": "/alloc", "local": "/local", "secrets": "/secrets"}


class TaskSetupError(Exception):
    """Why a task cannot be prepared: a sentence for its owner."""

    def __init__(self, why: str, event_type: TaskEventType, detail_name: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.event_type = event_type
        self.detail_name = detail_name
        self.is_final = is_final


def map_task_folders(folders: TaskFolders, view: View) -> TaskFolders:
    """As the task itself finds them."""
    return folders if view is View.HOST else TaskFolders(Path("/"), Path("/alloc"))


class ConfinedPath(NamedTuple):
    """A path below a folder that may not be left."""

    root: Path
    path: str


class TaskContext(msgspec.Struct, frozen=True):
    allocation_id: str
    namespace: str
    region: str
    task: Task
    folders: TaskFolders
    view: View
    environment: dict[str, str]
    reference_values: ReferenceValues
    """Of the node, and the environment's."""
    payload: bytes = b""

    def resolve_text(self, text: str) -> str:
        return resolve_text(text, self.reference_values)

    def resolve_path(self, path: str) -> ConfinedPath:
        """Where the task's owner means, whether named as on the node, as the task sees it, or from the task's folder.

        A path that leads out of both folders is found below one of them nevertheless: what writes there refuses it.
        """
        path = self.resolve_text(path)
        for root, seen in ((self.folders.shared, "/alloc"), (self.folders.task, "/")):
            for start in (f"{root}/", f"{seen.rstrip('/')}/" if self.view is not View.HOST else ""):
                if start and path.startswith(start):
                    return ConfinedPath(root, path.removeprefix(start))
        if path.startswith("../alloc/"):
            return ConfinedPath(self.folders.shared, path.removeprefix("../alloc/"))
        return ConfinedPath(self.folders.task, path)

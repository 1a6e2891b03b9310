"""One task that is to be prepared, with all that is known of it."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from wharf.model.task import Task
from wharf.model.task_state import TaskEventType
from wharf.node.agent.folders import TaskFolders
from wharf.node.agent.interpolation import Facts, resolve_text
from wharf.node.drivers.port import View

SEEN_AT = {"alloc": "/alloc", "local": "/local", "secrets": "/secrets"}


class NotReady(Exception):
    """Why a task cannot be prepared: a sentence for its owner."""

    def __init__(self, why: str, kind: TaskEventType, detail: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.kind = kind
        self.detail = detail
        self.is_final = is_final


def seen_folders(folders: TaskFolders, view: View) -> TaskFolders:
    """As the task itself finds them."""
    return folders if view is View.HOST else TaskFolders(Path("/"), Path("/alloc"))


class Spot(NamedTuple):
    """A path below a folder that may not be left."""

    root: Path
    path: str


class TaskWork(msgspec.Struct, frozen=True):
    allocation_id: str
    namespace: str
    region: str
    task: Task
    folders: TaskFolders
    view: View
    environment: dict[str, str]
    facts: Facts
    """Of the node, and the environment's."""
    payload: bytes = b""

    def resolved(self, text: str) -> str:
        return resolve_text(text, self.facts)

    def spot(self, path: str) -> Spot:
        """Where the task's owner means, whether named as on the node, as the task sees it, or from the task's folder.

        A path that leads out of both folders is found below one of them nevertheless: what writes there refuses it.
        """
        path = self.resolved(path)
        for root, seen in ((self.folders.shared, "/alloc"), (self.folders.task, "/")):
            for start in (f"{root}/", f"{seen.rstrip('/')}/" if self.view is not View.HOST else ""):
                if start and path.startswith(start):
                    return Spot(root, path.removeprefix(start))
        if path.startswith("../alloc/"):
            return Spot(self.folders.shared, path.removeprefix("../alloc/"))
        return Spot(self.folders.task, path)

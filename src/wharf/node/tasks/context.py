"""Everything that is known about a task while it is prepared."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.node.drivers.port import View
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues, ResolutionLimit, resolve_text


class TaskSetupError(Exception):
    """The error of a task that cannot be prepared; its text is for the owner of the task."""

    def __init__(
        self,
        reason: str,
        event_type: TaskEventType = TaskEventType.SETUP_FAILURE,
        detail_name: str = "setup_error",
        *,
        is_final: bool = False,
    ) -> None:
        """Create the error. `event_type` is the type of the event in the task's history.

        The event has the reason in its detail `detail_name`. `is_final`: another attempt would fail in the same way.
        """
        super().__init__(reason)
        self.event_type = event_type
        self.detail_name = detail_name
        self.is_final = is_final


def build_reference_error(problem: str) -> TaskSetupError:
    """Return the error of a task whose references cannot be resolved; another attempt would fail too."""
    return TaskSetupError(problem, TaskEventType.FAILED_VALIDATION, "validation_error", is_final=True)


def map_task_folders(folders: TaskFolders, view: View) -> TaskFolders:
    """Return the folders under the paths at which the task itself sees them."""
    return folders if view is View.HOST else TaskFolders(Path("/"), Path("/alloc"))


class ConfinedPath(NamedTuple):
    """A path relative to a folder that it must not leave."""

    root: Path
    path: str


class TaskContext(msgspec.Struct, frozen=True):
    """The input for the preparation of one task: its ids, folders, variables and references."""

    allocation_id: str
    namespace: str
    region: str
    task: Task
    folders: TaskFolders
    view: View
    environment: dict[str, str]
    reference_values: ReferenceValues
    """What `${...}` references mean: values of the node and variables of the task."""
    payload: bytes = b""  # of the job's dispatch
    job_id: str = ""

    def resolve_text(self, text: str, place: str, limit: ResolutionLimit | None = None) -> str:
        """Return the text with all references resolved. Raises `TaskSetupError` if the result is too long.

        `place` names the text in the job. Texts that are used together share `limit`.
        """
        limit = limit or ResolutionLimit()
        resolved = resolve_text(text, self.reference_values, None, limit, place)
        if limit.problem:
            raise build_reference_error(limit.problem)
        return resolved

    def resolve_path(self, path: str, place: str, limit: ResolutionLimit | None = None) -> ConfinedPath:
        """Return the folder and the relative path for a path in the job.

        The path may be absolute on the node, absolute as the task sees it, or relative to the task's folder. A path
        that leads out of both folders is returned below one of them; writing there is refused. Raises `TaskSetupError`
        as `resolve_text` does.
        """
        path = self.resolve_text(path, place, limit)
        for root, task_path in ((self.folders.shared, "/alloc"), (self.folders.task, "/")):
            for start in (f"{root}/", f"{task_path.rstrip('/')}/" if self.view is not View.HOST else ""):
                if start and path.startswith(start):
                    return ConfinedPath(root, path.removeprefix(start))
        if path.startswith("../alloc/"):
            return ConfinedPath(self.folders.shared, path.removeprefix("../alloc/"))
        return ConfinedPath(self.folders.task, path)

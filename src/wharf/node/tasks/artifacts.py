"""The payload of a dispatch and the artifacts of a task, put there once in the task's life."""

import pwd
import re
from collections.abc import Callable
from typing import Final

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.artifacts import ArtifactError, ArtifactRequest, fetch_artifact
from wharf.node.artifacts.confined_folder import ConfinedFolder
from wharf.node.tasks.context import TaskContext, TaskSetupError

USERINFO_PATTERN: Final = re.compile(r"//[^/@\s]*@")
QUERY_PATTERN: Final = re.compile(r"(//[^\s?]*)\?[^\s:]*")
FETCHED_MARKER_FILE: Final = ".fetched"
"""In the agent's own folder of the task: a task that begins again finds what it had."""

TaskEventRecorder = Callable[..., None]
"""(kind, message, **details): an event of the task."""


async def write_payload(work: TaskContext) -> None:
    wanted = work.task.dispatch_payload
    if wanted is None or not wanted.file:
        return
    try:
        ConfinedFolder(work.folders.local).replace_file(wanted.file, work.payload, 0o755)
    except (ArtifactError, OSError) as error:
        why = f"the dispatch payload cannot be written: {error}"
        raise TaskSetupError(why, TaskEventType.SETUP_FAILURE, "setup_error", is_final=True) from error


async def fetch_artifacts(work: TaskContext, say: TaskEventRecorder) -> None:
    """Raises TaskSetupError."""
    artifacts = work.task.artifacts or ()
    done = work.folders.task / "private" / FETCHED_MARKER_FILE
    if not artifacts or done.exists():
        return
    say(TaskEventType.DOWNLOADING_ARTIFACTS)
    for artifact in artifacts:
        spot = work.resolve_path(artifact.relative_dest)
        wanted = ArtifactRequest(
            source=work.resolve_text(artifact.getter_source),
            options=_resolved(work, artifact.getter_options),
            headers=_resolved(work, artifact.getter_headers),
            mode=artifact.getter_mode,
            is_insecure=artifact.getter_insecure,
            destination=spot.path,
        )
        try:
            await fetch_artifact(wanted, spot.root, owner=_owner(work.task.user) if artifact.chown else None)
        except ArtifactError as error:
            source = redact_urls(artifact.getter_source)
            why = redact_urls(str(error)).removeprefix(f"{source}: ")
            raise TaskSetupError(
                f"failed to download artifact {source}: {why}",
                TaskEventType.FAILED_ARTIFACT_DOWNLOAD,
                "download_error",
                is_final=error.is_permanent,
            ) from error
    done.touch()


def redact_urls(text: str) -> str:
    """Addresses in it without who asks, and without their queries: everybody may read it who may read the job's state."""
    return QUERY_PATTERN.sub(r"\1", USERINFO_PATTERN.sub("//", text))


def _resolved(work: TaskContext, said: dict[str, str] | None) -> dict[str, str]:
    return {name: work.resolve_text(value) for name, value in (said or {}).items()}


def _owner(user: str) -> tuple[int, int] | None:
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid

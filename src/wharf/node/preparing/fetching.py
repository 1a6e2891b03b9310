"""The payload of a dispatch and the artifacts of a task, put there once in the task's life."""

import pwd
import re
from collections.abc import Callable
from typing import Final

from wharf.model.task_state import TaskEventType
from wharf.node.artifacts import ArtifactError, Wanted, fetch
from wharf.node.artifacts.inside import Inside
from wharf.node.preparing.work import NotReady, TaskWork

WHO_ASKS: Final = re.compile(r"//[^/@\s]*@")
QUERY: Final = re.compile(r"(//[^\s?]*)\?[^\s:]*")
FETCHED: Final = ".fetched"
"""In the agent's own folder of the task: a task that begins again finds what it had."""

Say = Callable[..., None]
"""(kind, message, **details): an event of the task."""


async def put_payload(work: TaskWork) -> None:
    wanted = work.task.dispatch_payload
    if wanted is None or not wanted.file:
        return
    try:
        Inside(work.folders.local).replace(wanted.file, work.payload, 0o755)
    except (ArtifactError, OSError) as error:
        why = f"the dispatch payload cannot be written: {error}"
        raise NotReady(why, TaskEventType.SETUP_FAILURE, "setup_error", is_final=True) from error


async def fetch_artifacts(work: TaskWork, say: Say) -> None:
    """Raises NotReady."""
    artifacts = work.task.artifacts or ()
    done = work.folders.task / "private" / FETCHED
    if not artifacts or done.exists():
        return
    say(TaskEventType.DOWNLOADING_ARTIFACTS)
    for artifact in artifacts:
        spot = work.spot(artifact.relative_dest)
        wanted = Wanted(
            source=work.resolved(artifact.getter_source),
            options=_resolved(work, artifact.getter_options),
            headers=_resolved(work, artifact.getter_headers),
            mode=artifact.getter_mode,
            is_insecure=artifact.getter_insecure,
            destination=spot.path,
        )
        try:
            await fetch(wanted, spot.root, owner=_owner(work.task.user) if artifact.chown else None)
        except ArtifactError as error:
            source = without_secrets(artifact.getter_source)
            why = without_secrets(str(error)).removeprefix(f"{source}: ")
            raise NotReady(
                f"failed to download artifact {source}: {why}",
                TaskEventType.FAILED_ARTIFACT_DOWNLOAD,
                "download_error",
                is_final=error.is_lasting,
            ) from error
    done.touch()


def without_secrets(text: str) -> str:
    """Addresses in it without who asks, and without their queries: everybody may read it who may read the job's state."""
    return QUERY.sub(r"\1", WHO_ASKS.sub("//", text))


def _resolved(work: TaskWork, said: dict[str, str] | None) -> dict[str, str]:
    return {name: work.resolved(value) for name, value in (said or {}).items()}


def _owner(user: str) -> tuple[int, int] | None:
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid

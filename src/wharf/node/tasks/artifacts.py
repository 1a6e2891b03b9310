"""Writes the dispatch payload of a task and fetches its artifacts, once in the life of the task."""

import asyncio
import pwd
import re
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.artifacts import ArtifactError, ArtifactRequest, fetch_artifact
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.fair_queue import ItemOwner
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.interpolation import ResolutionLimit

USERINFO_PATTERN: Final = re.compile(r"//[^/@\s]*@")
"""Matches credentials in a URL."""
QUERY_PATTERN: Final = re.compile(r"(//[^\s?]*)\?[^\s:]*")
"""Matches the query of a URL, which may contain secrets."""
FETCHED_MARKER: Final = "private/.fetched"
"""A file below the task's folder: its artifacts were fetched, so a restarted task keeps them."""

MAX_FETCHES_PER_ALLOCATION: Final = 8
"""How many artifacts of an allocation are fetched at a time; limits its connections and open files."""


class FetchPermits:
    """Limits how many artifacts of each allocation are fetched at a time."""

    def __init__(self) -> None:
        self._semaphores: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def find_semaphore(self, allocation_id: str) -> asyncio.Semaphore:
        """Return what a fetch for this allocation must acquire."""
        semaphore = self._semaphores.get(allocation_id)
        if semaphore is None:
            semaphore = self._semaphores[allocation_id] = asyncio.Semaphore(MAX_FETCHES_PER_ALLOCATION)
        return semaphore


TaskEventRecorder = Callable[..., None]
"""`(event_type, message, **details)`: adds an event to the history of the task."""


async def write_payload(context: TaskContext) -> None:
    """Write the payload of the job's dispatch to the file that the task requests.

    Does nothing if the task requests none. Raises `TaskSetupError`.
    """
    payload_config = context.task.dispatch_payload
    if payload_config is None or not payload_config.file:
        return
    try:
        ConfinedFolder(context.folders.local).replace_file(payload_config.file, context.payload, 0o755)
    except (ConfinedPathError, OSError) as error:
        reason = f"cannot write the dispatch payload: {error}"
        raise TaskSetupError(reason, is_final=True) from error


async def fetch_artifacts(context: TaskContext, record_event: TaskEventRecorder, permits: FetchPermits) -> None:
    """Fetch all artifacts of the task, unless that was done before a restart of the task. Raises `TaskSetupError`."""
    permit = permits.find_semaphore(context.allocation_id)
    artifacts = context.task.artifacts or ()
    if not artifacts or _is_fetched(context):
        return
    record_event(TaskEventType.DOWNLOADING_ARTIFACTS)
    limit = ResolutionLimit()
    for number, artifact in enumerate(artifacts):
        place = f"artifact[{number}]"
        destination = context.resolve_path(artifact.relative_dest, f"{place}.destination", limit)
        request = ArtifactRequest(
            source=context.resolve_text(artifact.getter_source, f"{place}.source", limit),
            options=_resolve_values(context, artifact.getter_options, limit, f"{place}.options"),
            headers=_resolve_values(context, artifact.getter_headers, limit, f"{place}.headers"),
            mode=artifact.getter_mode,
            is_insecure=artifact.getter_insecure,
            destination=destination.path,
        )
        try:
            async with permit:
                await fetch_artifact(
                    request,
                    destination.root,
                    owner=_find_owner(context.task.user) if artifact.chown else None,
                    thread_owner=ItemOwner(context.namespace, context.job_id, context.allocation_id),
                )
        except ArtifactError as error:
            source = redact_urls(artifact.getter_source)
            reason = redact_urls(str(error)).removeprefix(f"{source}: ")
            raise TaskSetupError(
                f"failed to download artifact {source}: {reason}",
                TaskEventType.FAILED_ARTIFACT_DOWNLOAD,
                "download_error",
                is_final=error.is_permanent,
            ) from error
    try:
        ConfinedFolder(context.folders.task).replace_file(FETCHED_MARKER, b"", 0o600)
    except (ConfinedPathError, OSError) as error:
        raise TaskSetupError(f"cannot store that the artifacts are downloaded: {error}") from error


def _is_fetched(context: TaskContext) -> bool:
    """Return whether the artifacts were fetched before a restart of the task. Raises `TaskSetupError`."""
    try:
        return ConfinedFolder(context.folders.task).exists(FETCHED_MARKER)
    except (ConfinedPathError, OSError) as error:
        raise TaskSetupError(f"cannot read whether the artifacts are downloaded: {error}") from error


def redact_urls(text: str) -> str:
    """Return the text without credentials and queries in its URLs, because users without access to them may read it."""
    return QUERY_PATTERN.sub(r"\1", USERINFO_PATTERN.sub("//", text))


def _resolve_values(
    context: TaskContext, values: dict[str, str] | None, limit: ResolutionLimit, place: str
) -> dict[str, str]:
    """Return a copy of the mapping with all references in its values resolved. Raises `TaskSetupError`."""
    return {name: context.resolve_text(value, f"{place}.{name[:100]}", limit) for name, value in (values or {}).items()}


def _find_owner(user: str) -> tuple[int, int] | None:
    """Return (user id, group id) of the named user of this machine; `None` if it does not exist."""
    try:
        user_entry = pwd.getpwnam(user)
    except (KeyError, ValueError):  # Unknown, or a text that is no name.
        return None
    return user_entry.pw_uid, user_entry.pw_gid

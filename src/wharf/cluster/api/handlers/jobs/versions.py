"""Endpoints of job versions: list them with their differences, tag them, mark them stable, revert to one."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Final

import msgspec

from wharf.cluster.api.handlers.jobs.specification import (
    build_register_response,
    has_management_token,
    hide_warnings,
    require_job_permissions,
)
from wharf.cluster.api.replies.pieces import PIECE_WEIGHT, LazyList, measure_weight
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import (
    ActionHandler,
    ActionResult,
    DeferredValue,
    MissingRecord,
    ReadHandler,
)
from wharf.cluster.operations.jobs import registration, submissions, versions
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_VERSIONS, JOBS, VERSIONS_OF_JOB
from wharf.cluster.state.watches import watch_index, watch_key
from wharf.contract.model.acl import permissions
from wharf.contract.model.jobs.diff import compare_jobs
from wharf.contract.model.jobs.job import Job, VersionTag
from wharf.contract.model.refusal import Refusal, invalid_request, not_found
from wharf.contract.wire.jobs.messages import (
    JobIndexReply,
    JobRevertRequest,
    JobStableRequest,
    JobVersions,
    VersionTagRequest,
    VersionTagResponse,
)

DIFFS_LIMIT_ADVICE: Final = "read the versions without `diffs`, delete tags of versions that are not needed, or set `job_tracked_versions` lower"


def list_job_versions(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """List the stored versions of the job, newest first; with `diffs`, also their differences."""
    key = (options.namespace, request.get_path_value("job_id"))
    job_versions = versions.list_versions(replica, *key)
    watched = [watch_key(JOBS, *key), watch_index(VERSIONS_OF_JOB, *key)]
    if not job_versions:
        return ReadResult(MissingRecord("job versions not found"), replica.get_last_change(JOBS, JOB_VERSIONS), watched)
    index = max(version.modify_index for version in job_versions)
    listed = tuple(job_versions)
    if not request.get_flag("diffs"):
        return ReadResult(JobVersions(versions=listed, diffs=None, index=index), index, watched)
    pairs = _list_compared_pairs(request, job_versions)
    sensitive = submissions.list_sensitive_versions(replica, *key)
    return ReadResult(
        DeferredValue(partial(_compare_versions, listed, pairs, sensitive, index), DIFFS_LIMIT_ADVICE), index, watched
    )


def _compare_versions(
    listed: tuple[Job, ...],
    pairs: list[tuple[Job, Job]],
    sensitive: submissions.SensitiveVersions,
    index: int,
    is_over: Callable[[], bool],
) -> object:
    """Return the versions with the differences of the pairs, which are computed one by one while they are encoded."""
    hidden = submissions.find_hidden_fields(sensitive)
    diffs = LazyList(lambda: (compare_jobs(older, newer, is_over, hidden) for older, newer in pairs))
    return msgspec.structs.replace(JobVersions(versions=listed, diffs=None, index=index), diffs=diffs)


def _list_compared_pairs(request: Request, job_versions: list[Job]) -> list[tuple[Job, Job]]:
    """Return the pairs of job versions whose differences are requested, the older version of each first.

    With `diff_tag` or `diff_version`, each version is compared with that version; otherwise each with the version
    before it. Raises `Refusal` if the named version does not exist.
    """
    tag = request.get_text("diff_tag")
    if tag:
        base = next(
            (each for each in job_versions if each.version_tag is not None and each.version_tag.name == tag), None
        )
        if base is None:
            raise not_found(f'tag "{tag}" not found')
    elif request.query.get("diff_version"):
        number = request.get_number("diff_version")
        base = next((each for each in job_versions if each.version == number), None)
        if base is None:
            raise not_found(f"version {number} not found")
    else:
        return [(older, newer) for newer, older in pairwise(job_versions)]
    return [(base, version) for version in job_versions]


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"job.versions": list_job_versions}


LARGE_JOB_WEIGHT: Final = 4 * PIECE_WEIGHT
"""The weight above which a copy of the process registers a version again: one of 1,000 groups takes 34 ms."""


def reverts_to_large_job(replica: Replica, request: Request) -> bool:
    """Return whether the request registers a large version again. Its body is small, but its work is that of a large one."""
    try:
        body = request.decode_body(JobRevertRequest)
        namespace = resolve_namespace(request, body.namespace)
    except Refusal:
        return False  # The handler refuses it, too.
    target = versions.find_version(replica, namespace, request.get_path_value("job_id"), max(0, body.job_version))
    return target is not None and measure_weight(target, LARGE_JOB_WEIGHT) > LARGE_JOB_WEIGHT


class JobVersionActions:
    """Changes job versions, and reverts jobs to them."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def tag_version(self, request: Request) -> ActionResult:
        """Give a version of the job the tag of the path. The body selects the version; by default the latest."""
        body = request.decode_body(VersionTagRequest)
        namespace = resolve_namespace(request, body.namespace)
        job_id, name = request.get_path_value("job_id"), request.get_path_value("tag")
        request.require_permission(namespace=namespace)
        result = await self._server.writer.execute(
            lambda snapshot, context: versions.set_version_tag(
                snapshot,
                namespace,
                job_id,
                VersionTag(name=name, description=body.description),
                context,
                version=body.version,
                is_latest=body.latest,
                cause=request.id,
            )
        )
        return ActionResult(VersionTagResponse.of(result.tag, result.index))

    async def untag_version(self, request: Request) -> ActionResult:
        """Remove the tag of the path from the version that has it."""
        job_id, name = request.get_path_value("job_id"), request.get_path_value("tag")
        result = await self._server.writer.execute(
            lambda snapshot, _context: versions.delete_version_tag(
                snapshot, request.namespace, job_id, name, cause=request.id
            )
        )
        tag = result.tag
        if not request.has_permission(permissions.READ_JOB, namespace=request.namespace):
            tag = msgspec.structs.replace(tag, description="")  # Another caller may have written it.
        return ActionResult(VersionTagResponse.of(tag, result.index))

    async def revert_job(self, request: Request) -> ActionResult:
        """Register an earlier version of the job again, as a new version."""
        body = request.decode_body(JobRevertRequest)
        namespace, job_id = resolve_namespace(request, body.namespace), request.get_path_value("job_id")
        _check_job_id(body.job_id, job_id)
        request.require_permission(namespace=namespace)
        await self._server.reader.catch_up()
        target = versions.find_version(self._server.replica, namespace, job_id, max(0, body.job_version))
        if target is not None:
            require_job_permissions(request, target)
        settings = self._server.job_settings
        result = await self._server.writer.execute(
            lambda snapshot, context: registration.revert_job(
                snapshot,
                namespace,
                job_id,
                body.job_version,
                context,
                settings,
                expected_version=body.enforce_prior_version,
                accessor_id=request.caller.accessor_id,
                is_management=has_management_token(request),
                cause=request.id,
            )
        )
        result = hide_warnings(request, result, namespace)
        return ActionResult(build_register_response(result), result.index)

    async def mark_version_stable(self, request: Request) -> ActionResult:
        """Mark a version of the job as stable or, if the body says so, as not stable.

        A failed deployment reverts its job to the last stable version.
        """
        body = request.decode_body(JobStableRequest)
        namespace, job_id = resolve_namespace(request, body.namespace), request.get_path_value("job_id")
        _check_job_id(body.job_id, job_id)
        request.require_permission(namespace=namespace)
        result = await self._server.writer.execute(
            lambda snapshot, _context: versions.set_version_stability(
                snapshot, namespace, job_id, body.job_version, is_stable=body.stable, cause=request.id
            )
        )
        return ActionResult(JobIndexReply(index=result.index), result.index)


def resolve_namespace(request: Request, body_namespace: str) -> str:
    """Return the namespace of the query, else of the body, else `default`."""
    return request.query.get("namespace") or body_namespace or "default"


def _check_job_id(body_id: str, job_id: str) -> None:
    """Raise a `Refusal` unless the body names the job of the path."""
    if not body_id:
        raise invalid_request("JobID must be specified")
    if body_id != job_id:
        raise invalid_request("Job ID does not match")


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = JobVersionActions(server)
    return {
        "job.tag": actions.tag_version,
        "job.untag": actions.untag_version,
        "job.revert": actions.revert_job,
        "job.stable": actions.mark_version_stable,
    }

"""Versions of a job: reading them and how they differ, tagging them, calling them stable, going back to one."""

from itertools import pairwise
from typing import Final

from wharf.cluster.api.handlers.jobs.specification import (
    build_register_response,
    has_management_token,
    require_job_permissions,
)
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler
from wharf.cluster.operations.jobs import registration, versions
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import JOB_VERSIONS, JOBS, VERSIONS_OF_JOB
from wharf.contract.model.jobs.diff import compare_jobs
from wharf.contract.model.jobs.job import Job, VersionTag
from wharf.contract.model.jobs.plan import JobDiff
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.wire.jobs.messages import (
    JobIndexReply,
    JobRevertRequest,
    JobStableRequest,
    JobVersions,
    VersionTagRequest,
    VersionTagResponse,
)


def list_job_versions(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    key = (options.namespace, request.get_path_value("job_id"))
    found = versions.list_versions(replica, *key)
    watched = [watch.watch_key(JOBS, *key), watch.watch_index(VERSIONS_OF_JOB, *key)]
    if not found:
        return ReadResult(MissingRecord("job versions not found"), replica.get_last_change(JOBS, JOB_VERSIONS), watched)
    index = max(version.modify_index for version in found)
    diffs = _diffs(request, found) if request.get_flag("diffs") else None
    return ReadResult(JobVersions(versions=tuple(found), diffs=diffs, index=index), index, watched)


def _diffs(request: Request, found: list[Job]) -> tuple[JobDiff, ...]:
    """Each version against the one before it, or all against one that is named."""
    tag = request.get_text("diff_tag")
    if tag:
        base = next((each for each in found if each.version_tag is not None and each.version_tag.name == tag), None)
        if base is None:
            raise not_found(f'tag "{tag}" not found')
    elif request.query.get("diff_version"):
        number = request.get_number("diff_version")
        base = next((each for each in found if each.version == number), None)
        if base is None:
            raise not_found(f"version {number} not found")
    else:
        return tuple(compare_jobs(older, newer) for newer, older in pairwise(found))
    return tuple(compare_jobs(base, version) for version in found)


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"job.versions": list_job_versions}


class JobVersionActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def tag_version(self, request: Request) -> ActionResult:
        asked = request.decode_body(VersionTagRequest)
        namespace = resolve_namespace(request, asked.namespace)
        job_id, name = request.get_path_value("job_id"), request.get_path_value("tag")
        request.require_permission(namespace=namespace)
        done = await self._server.writer.execute(
            lambda snapshot, moment: versions.set_version_tag(
                snapshot,
                namespace,
                job_id,
                VersionTag(name=name, description=asked.description),
                moment,
                version=asked.version,
                is_latest=asked.latest,
                cause=request.id,
            )
        )
        return ActionResult(VersionTagResponse.of(done.tag, done.index))

    async def untag_version(self, request: Request) -> ActionResult:
        job_id, name = request.get_path_value("job_id"), request.get_path_value("tag")
        done = await self._server.writer.execute(
            lambda snapshot, _moment: versions.delete_version_tag(
                snapshot, request.namespace, job_id, name, cause=request.id
            )
        )
        return ActionResult(VersionTagResponse.of(done.tag, done.index))

    async def revert_job(self, request: Request) -> ActionResult:
        asked = request.decode_body(JobRevertRequest)
        namespace, job_id = resolve_namespace(request, asked.namespace), request.get_path_value("job_id")
        _check_job_id(asked.job_id, job_id)
        request.require_permission(namespace=namespace)
        await self._server.reader.catch_up()
        wanted = versions.find_version(self._server.replica, namespace, job_id, max(0, asked.job_version))
        if wanted is not None:
            require_job_permissions(request, wanted)
        settings = self._server.job_settings
        done = await self._server.writer.execute(
            lambda snapshot, moment: registration.revert_job(
                snapshot,
                namespace,
                job_id,
                asked.job_version,
                moment,
                settings,
                expected_version=asked.enforce_prior_version,
                accessor_id=request.caller.accessor_id,
                is_management=has_management_token(request),
                cause=request.id,
            )
        )
        return ActionResult(build_register_response(done), done.index)

    async def mark_version_stable(self, request: Request) -> ActionResult:
        asked = request.decode_body(JobStableRequest)
        namespace, job_id = resolve_namespace(request, asked.namespace), request.get_path_value("job_id")
        _check_job_id(asked.job_id, job_id)
        request.require_permission(namespace=namespace)
        done = await self._server.writer.execute(
            lambda snapshot, _moment: versions.set_version_stability(
                snapshot, namespace, job_id, asked.job_version, is_stable=asked.stable, cause=request.id
            )
        )
        return ActionResult(JobIndexReply(index=done.index), done.index)


def resolve_namespace(request: Request, body_namespace: str) -> str:
    """The query goes before the body."""
    return request.query.get("namespace") or body_namespace or "default"


def _check_job_id(given: str, job_id: str) -> None:
    if not given:
        raise invalid_request("JobID must be specified")
    if given != job_id:
        raise invalid_request("Job ID does not match")


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = JobVersionActions(server)
    return {
        "job.tag": writes.tag_version,
        "job.untag": writes.untag_version,
        "job.revert": writes.revert_job,
        "job.stable": writes.mark_version_stable,
    }

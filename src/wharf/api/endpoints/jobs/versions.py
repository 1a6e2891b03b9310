"""Versions of a job: reading them and how they differ, tagging them, calling them stable, going back to one."""

from itertools import pairwise
from typing import Final

from wharf.api.answers import Act, Done, Missing, Reading
from wharf.api.endpoints.jobs.submitting import is_management, register_response, require_rights
from wharf.api.request import ReadOptions, Request
from wharf.model.diff import diff
from wharf.model.job import Job, VersionTag
from wharf.model.plan import JobDiff
from wharf.model.refusal import invalid, unknown
from wharf.operations import jobs, versions
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import JOB_VERSIONS, JOBS, VERSIONS_OF_JOB
from wharf.wire.job_bodies import (
    IndexReply,
    JobRevertRequest,
    JobStableRequest,
    JobVersions,
    TagRequest,
    TagResponse,
)


def job_versions(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = (options.namespace, request.value("job_id"))
    found = versions.versions_of(replica, *key)
    watched = [watch.one(JOBS, *key), watch.those(VERSIONS_OF_JOB, *key)]
    if not found:
        return Found(Missing("job versions not found"), replica.last_change(JOBS, JOB_VERSIONS), watched)
    index = max(version.modify_index for version in found)
    diffs = _diffs(request, found) if request.flag("diffs") else None
    return Found(JobVersions(versions=tuple(found), diffs=diffs, index=index), index, watched)


def _diffs(request: Request, found: list[Job]) -> tuple[JobDiff, ...]:
    """Each version against the one before it, or all against one that is named."""
    tag = request.text("diff_tag")
    if tag:
        base = next((each for each in found if each.version_tag is not None and each.version_tag.name == tag), None)
        if base is None:
            raise unknown(f'tag "{tag}" not found')
    elif request.query.get("diff_version"):
        number = request.number("diff_version")
        base = next((each for each in found if each.version == number), None)
        if base is None:
            raise unknown(f"version {number} not found")
    else:
        return tuple(diff(older, newer) for newer, older in pairwise(found))
    return tuple(diff(base, version) for version in found)


READS: Final[dict[str, Reading]] = {"job.versions": job_versions}


class VersionWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def tag(self, request: Request) -> Done:
        asked = request.read_body(TagRequest)
        namespace = namespace_of(request, asked.namespace)
        job_id, name = request.value("job_id"), request.value("tag")
        request.require(namespace=namespace)
        done = await self._server.writer.write(
            lambda snapshot, moment: versions.set_tag(
                snapshot,
                namespace,
                job_id,
                VersionTag(name=name, description=asked.description),
                moment,
                version=asked.version,
                latest=asked.latest,
                cause=request.id,
            )
        )
        return Done(TagResponse.of(done.tag, done.index))

    async def untag(self, request: Request) -> Done:
        job_id, name = request.value("job_id"), request.value("tag")
        done = await self._server.writer.write(
            lambda snapshot, _moment: versions.delete_tag(snapshot, request.namespace, job_id, name, cause=request.id)
        )
        return Done(TagResponse.of(done.tag, done.index))

    async def revert(self, request: Request) -> Done:
        asked = request.read_body(JobRevertRequest)
        namespace, job_id = namespace_of(request, asked.namespace), request.value("job_id")
        _check_job_id(asked.job_id, job_id)
        request.require(namespace=namespace)
        await self._server.reader.catch_up()
        wanted = versions.version_of(self._server.replica, namespace, job_id, max(0, asked.job_version))
        if wanted is not None:
            require_rights(request, wanted)
        settings = self._server.job_settings
        done = await self._server.writer.write(
            lambda snapshot, moment: jobs.revert(
                snapshot,
                namespace,
                job_id,
                asked.job_version,
                moment,
                settings,
                enforced_version=asked.enforce_prior_version,
                accessor_id=request.caller.accessor_id,
                is_management=is_management(request),
                cause=request.id,
            )
        )
        return Done(register_response(done), done.index)

    async def mark_stable(self, request: Request) -> Done:
        asked = request.read_body(JobStableRequest)
        namespace, job_id = namespace_of(request, asked.namespace), request.value("job_id")
        _check_job_id(asked.job_id, job_id)
        request.require(namespace=namespace)
        done = await self._server.writer.write(
            lambda snapshot, _moment: versions.mark_stable(
                snapshot, namespace, job_id, asked.job_version, stable=asked.stable, cause=request.id
            )
        )
        return Done(IndexReply(index=done.index), done.index)


def namespace_of(request: Request, of_body: str) -> str:
    """The query goes before the body."""
    return request.query.get("namespace") or of_body or "default"


def _check_job_id(given: str, job_id: str) -> None:
    if not given:
        raise invalid("JobID must be specified")
    if given != job_id:
        raise invalid("Job ID does not match")


def acts_of(server: Server) -> dict[str, Act]:
    writes = VersionWrites(server)
    return {
        "job.tag": writes.tag,
        "job.untag": writes.untag,
        "job.revert": writes.revert,
        "job.stable": writes.mark_stable,
    }

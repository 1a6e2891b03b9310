"""Client methods for jobs."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec

from wharf.contract.client.calls import (
    CallOptions,
    CallSpec,
    ListOptions,
    ListSpec,
    ReadOptions,
    ReadSpec,
    WriteOptions,
)
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.explanations import JobExplanation
from wharf.contract.model.jobs.array_views import JobArrays
from wharf.contract.model.jobs.job import Job, JobSummary, Submission
from wharf.contract.model.jobs.step_outputs import JobOutputs
from wharf.contract.model.scaling import JobScaleStatus
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.timelines import JobTimeline
from wharf.contract.wire.jobs import messages

JobDocument = Job | Mapping[str, Any]
"""A job record, or a job as JSON data, which servers decode and validate."""


class JobMethods(MethodGroup[M]):
    """The methods of `client.jobs`. Each describes a call, which the client then sends."""

    @list_method("job.list")
    def list(
        self, *, meta: bool = False, progress: bool = False, sort: str = "", **options: Unpack[ListOptions]
    ) -> ListSpec[messages.JobStub]:
        """List jobs. `sort`: `changed` lists the last change first.

        `meta`: include the metadata of each job. `progress`: include the states of runs and of the elements of arrays.
        """
        return ListSpec(options, meta=meta, progress=progress, sort=sort)

    @list_method("job.statuses")
    def list_statuses(
        self, *, include_children: bool = False, **options: Unpack[ListOptions]
    ) -> ListSpec[messages.JobStatusOverview]:
        """List the statuses of jobs, the newest change first.

        `include_children`: list children of periodic and parameterized jobs too.
        """
        return ListSpec(options, include_children=include_children)

    @list_method("job.statuses-of")
    def list_statuses_of(
        self, jobs: Sequence[messages.JobName], *, include_children: bool = False, **options: Unpack[ListOptions]
    ) -> ListSpec[messages.JobStatusOverview]:
        """List the statuses of the named jobs; unknown jobs are omitted.

        `include_children`: list children of periodic and parameterized jobs too.
        """
        body = messages.JobStatusesRequest(jobs=tuple(jobs), include_children=include_children)
        return ListSpec(options, body=body)

    @call_method("job.register")
    def register(
        self,
        job: JobDocument,
        *,
        enforce_index: int | None = None,
        submission: messages.JobSource | None = None,
        preserve_counts: bool = False,
        preserve_resources: bool = False,
        eval_priority: int = 0,
        policy_override: bool = False,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[messages.JobRegisterResponse]:
        """Register a job: create it, or store a new version of it.

        `enforce_index`: refuse unless the stored job has this JobModifyIndex; 0: refuse if the job exists. `submission`
        is the source text to store. `preserve_counts` and `preserve_resources`: keep these values of the stored job.
        `eval_priority` is the priority of the evaluation; 0: that of the job.
        """
        body = messages.JobRegisterRequest(
            enforce_index=enforce_index is not None,
            job_modify_index=enforce_index or 0,
            submission=submission,
            preserve_counts=preserve_counts,
            preserve_resources=preserve_resources,
            eval_priority=eval_priority,
            policy_override=policy_override,
        )
        return CallSpec(options, body=_add_job(body, job))

    @call_method("job.update")
    def update(
        self, job_id: str, request: messages.JobRegisterRequest, **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.JobRegisterResponse]:
        """Register the job in `request`, whose ID must be `job_id`."""
        return CallSpec(options, job_id, body=request)

    @call_method("job.parse")
    def parse(
        self, source: str, *, canonicalize: bool = False, variables: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[dict[str, Any]]:
        """Convert the text of a job file in HCL to the JSON of a job, with null for fields that the file does not set.

        `canonicalize`: fill in defaults. `variables` is the text of a values file.
        """
        body = messages.JobParseRequest(job_hcl=source, canonicalize=canonicalize, variables=variables)
        return CallSpec(options, body=body)

    @call_method("job.validate")
    def validate(self, job: JobDocument, **options: Unpack[CallOptions]) -> CallSpec[messages.JobValidateResponse]:
        """Validate a job without registering it."""
        return CallSpec(options, body=_add_job(messages.JobValidateRequest(), job))

    @call_method("job.plan")
    def plan(
        self,
        job_id: str,
        job: JobDocument,
        *,
        diff: bool = True,
        sensitive_fields: tuple[str, ...] | None = None,
        policy_override: bool = False,
        **options: Unpack[CallOptions],
    ) -> CallSpec[messages.JobPlanResponse]:
        """Show what registering a job would change, without registering it.

        `diff`: include the differences to the stored version. `sensitive_fields`: JSON pointers of fields whose values the
        differences do not show.
        """
        body = messages.JobPlanRequest(diff=diff, sensitive_fields=sensitive_fields, policy_override=policy_override)
        return CallSpec(options, job_id, body=_add_job(body, job))

    @read_method("job.read")
    def read(self, job_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[Job]:
        """Read the current version of the job with this ID."""
        return ReadSpec(options, job_id)

    @read_method("job.summary")
    def summary(self, job_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[JobSummary]:
        """Read the number of allocations of a job by group and state."""
        return ReadSpec(options, job_id)

    @list_method("job.allocations")
    def allocations(
        self,
        job_id: str,
        *,
        all: bool = False,
        newest: int | None = None,
        failed: bool = False,
        **options: Unpack[ReadOptions],
    ) -> ListSpec[AllocationStub]:
        """List the allocations of a job. `all`: include those of purged jobs with the same name.

        `newest`: list only this number of the newest allocations, the newest first; with `failed`, only those that failed.
        """
        return ListSpec(options, job_id, all=all, newest=newest, failed=failed)

    @read_method("job.timeline")
    def timeline(
        self, job_id: str, *, limit: int | None = None, before: str = "", **options: Unpack[ReadOptions]
    ) -> ReadSpec[JobTimeline]:
        """Read when the allocations of a job waited, started and ended, the newest first.

        `before`: the `next_token` of the previous page.
        """
        return ReadSpec(options, job_id, limit=limit, before=before)

    @list_method("job.evaluations")
    def evaluations(self, job_id: str, **options: Unpack[ReadOptions]) -> ListSpec[Evaluation]:
        """List the evaluations of a job."""
        return ListSpec(options, job_id)

    @list_method("job.deployments")
    def deployments(self, job_id: str, *, all: bool = False, **options: Unpack[ReadOptions]) -> ListSpec[Deployment]:
        """List the deployments of a job. `all`: include those of purged jobs with the same name."""
        return ListSpec(options, job_id, all=all)

    @read_method("job.deployment")
    def deployment(self, job_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[Deployment | None]:
        """Read the newest deployment of a job; None if it has no deployment."""
        return ReadSpec(options, job_id)

    @list_method("job.services")
    def services(self, job_id: str, **options: Unpack[ReadOptions]) -> ListSpec[ServiceRegistration]:
        """List the services that a job has registered."""
        return ListSpec(options, job_id)

    @read_method("job.submission")
    def submission(self, job_id: str, *, version: int, **options: Unpack[ReadOptions]) -> ReadSpec[Submission]:
        """Read the source text of a version of a job."""
        return ReadSpec(options, job_id, version=version)

    @list_method("job.actions")
    def actions(self, job_id: str, **options: Unpack[ReadOptions]) -> ListSpec[messages.JobAction]:
        """List the actions of a job: named commands that can run inside its tasks."""
        return ListSpec(options, job_id)

    @read_method("job.explain")
    def explain(self, job_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[JobExplanation]:
        """Explain the placement and the current state of a job."""
        return ReadSpec(options, job_id)

    @read_method("job.versions")
    def versions(
        self,
        job_id: str,
        *,
        diffs: bool = False,
        diff_version: int | None = None,
        diff_tag: str = "",
        **options: Unpack[ReadOptions],
    ) -> ReadSpec[messages.JobVersions]:
        """List the stored versions of a job.

        `diffs`: include the differences between consecutive versions, or to the version `diff_version` or with tag
        `diff_tag`.
        """
        return ReadSpec(options, job_id, diffs=diffs, diff_version=diff_version, diff_tag=diff_tag)

    @call_method("job.tag")
    def tag(
        self,
        job_id: str,
        tag: str,
        *,
        version: int | None = None,
        description: str = "",
        **options: Unpack[WriteOptions],
    ) -> CallSpec[messages.VersionTagResponse]:
        """Give a version of a job a tag. Without `version`, tag the newest version."""
        body = messages.VersionTagRequest(version=version or 0, latest=version is None, description=description)
        return CallSpec(options, job_id, tag, body=body)

    @call_method("job.untag")
    def untag(self, job_id: str, tag: str, **options: Unpack[WriteOptions]) -> CallSpec[messages.VersionTagResponse]:
        """Remove this tag from the version of the job that has it."""
        return CallSpec(options, job_id, tag)

    @call_method("job.revert")
    def revert(
        self,
        job_id: str,
        version: int,
        *,
        enforce_prior_version: int | None = None,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[messages.JobRegisterResponse]:
        """Register an earlier version of a job again.

        `enforce_prior_version`: refuse unless this is the current version.
        """
        body = messages.JobRevertRequest(
            job_id=job_id, job_version=version, enforce_prior_version=enforce_prior_version
        )
        return CallSpec(options, job_id, body=body)

    @call_method("job.stable")
    def mark_stable(
        self, job_id: str, version: int, *, stable: bool = True, **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.JobIndexReply]:
        """Set whether a version of a job is stable, so that auto-revert may return to it."""
        return CallSpec(
            options, job_id, body=messages.JobStableRequest(job_id=job_id, job_version=version, stable=stable)
        )

    @call_method("job.deregister")
    def deregister(
        self,
        job_id: str,
        *,
        purge: bool = False,
        eval_priority: int | None = None,
        no_shutdown_delay: bool = False,
        everywhere: bool = False,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[messages.JobDeregisterResponse]:
        """Stop a job.

        `purge`: also delete it. `eval_priority` is the priority of the evaluation. `no_shutdown_delay`: skip the
        shutdown delays of groups and tasks. `everywhere`: stop a multi-region job in all regions.
        """
        return CallSpec(
            options,
            job_id,
            purge=purge,
            eval_priority=eval_priority,
            no_shutdown_delay=no_shutdown_delay,
            extra_query={"global": everywhere},
        )

    @call_method("job.evaluate")
    def evaluate(
        self, job_id: str, *, force_reschedule: bool = False, **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.JobRegisterResponse]:
        """Create an evaluation of a job. `force_reschedule`: replace its failed allocations now."""
        eval_options = messages.EvaluateOptions(force_reschedule=force_reschedule)
        return CallSpec(options, job_id, body=messages.JobEvaluateRequest(job_id=job_id, eval_options=eval_options))

    @call_method("job.force-periodic")
    def force_periodic(self, job_id: str, **options: Unpack[WriteOptions]) -> CallSpec[messages.PeriodicForceResponse]:
        """Launch a periodic job now."""
        return CallSpec(options, job_id)

    @call_method("job.dispatch")
    def dispatch(
        self,
        job_id: str,
        *,
        payload: bytes | None = None,
        meta: Mapping[str, str] | None = None,
        id_prefix_template: str = "",
        priority: int = 0,
        idempotency_token: str = "",
        **options: Unpack[WriteOptions],
    ) -> CallSpec[messages.JobDispatchResponse]:
        """Run a parameterized job: create a child job with this payload and metadata.

        `id_prefix_template` begins the child's ID. `priority` 0: that of the parent. While a child with the same
        `idempotency_token` exists, no second one is created.
        """
        body = messages.JobDispatchRequest(
            job_id=job_id,
            payload=payload,
            meta=dict(meta) if meta is not None else None,
            id_prefix_template=id_prefix_template,
            priority=priority,
        )
        return CallSpec(options, job_id, body=body, idempotency_token=idempotency_token)

    @call_method("job.dispatch-payload")
    def dispatch_payload(
        self, job_id: str, payload: bytes, *, idempotency_token: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.JobDispatchResponse]:
        """Run a parameterized job: create a child job with this payload, sent as the request body.

        While a child with the same `idempotency_token` exists, no second one is created.
        """
        return CallSpec(options, job_id, body=payload, idempotency_token=idempotency_token)

    @read_method("job.scale-status")
    def scale_status(self, job_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[JobScaleStatus]:
        """Read the desired and actual counts of a job's groups, and their scaling events."""
        return ReadSpec(options, job_id)

    @call_method("job.scale")
    def scale(
        self,
        job_id: str,
        group: str,
        count: int | None,
        *,
        message: str = "",
        error: bool = False,
        meta: Mapping[str, Any] | None = None,
        enforce_index: int = 0,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[messages.JobRegisterResponse]:
        """Set the count of a group. Without a count, only record a scaling event with the message.

        `error`: the event reports an error. `meta` is stored in the event. `enforce_index`: refuse unless the stored
        job has this JobModifyIndex; 0: no check.
        """
        body = messages.ScalingRequest(
            count=count,
            target={"Job": job_id, "Group": group},
            message=message,
            error=error,
            meta=dict(meta) if meta is not None else None,
            job_modify_index=enforce_index,
        )
        return CallSpec(options, job_id, body=body)

    @read_method("job.arrays")
    def arrays(self, job_id: str, *, attempt: int = 0, **options: Unpack[ReadOptions]) -> ReadSpec[JobArrays]:
        """Read the state of each element of a job's arrays, and their attempts.

        `attempt`: include the states of the elements in this attempt.
        """
        return ReadSpec(options, job_id, attempt=attempt)

    @read_method("job.outputs")
    def outputs(self, job_id: str, *, group: str = "", **options: Unpack[ReadOptions]) -> ReadSpec[JobOutputs]:
        """Read the text outputs of the steps of a job that have ended.

        `group`: only those of this step.
        """
        return ReadSpec(options, job_id, group=group)

    @call_method("job.rerun")
    def rerun(
        self, job_id: str, *, failed: bool = False, indexes: str = "", group: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.JobRerunResponse]:
        """Run elements of a job's arrays again: those that failed or were canceled, or those with these indexes.

        `indexes` is a text such as `3,7-9`. `group`: only elements of this group.
        """
        body = messages.JobRerunRequest(job_id=job_id, group=group, failed=failed, indexes=indexes)
        return CallSpec(options, job_id, body=body)

    @call_method("job.stop-elements")
    def stop_elements(
        self, job_id: str, indexes: str, *, group: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.JobStopElementsResponse]:
        """Stop elements of an array: they are canceled, whether they run or have not begun.

        `indexes` is a text such as `3,7-9`. `group` is needed if the job has several arrays.
        """
        body = messages.JobStopElementsRequest(job_id=job_id, group=group, indexes=indexes)
        return CallSpec(options, job_id, body=body)


def _add_job(request: msgspec.Struct, job: JobDocument) -> msgspec.Struct | dict[str, Any]:
    """Return the request body with the job in it: a struct, or a dict if the job is JSON data."""
    if isinstance(job, Job):
        return msgspec.structs.replace(request, job=job)
    return {**msgspec.to_builtins(request), "Job": job}

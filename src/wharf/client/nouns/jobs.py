"""What can be asked about jobs."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec

from wharf.client.calls import Call, CallOptions, Listing, ListOptions, Read, ReadOptions, WriteOptions
from wharf.client.methods import M, Noun, calls, lists, reads
from wharf.model.allocation import AllocationStub
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation
from wharf.model.explanation import Explanation
from wharf.model.job import Job
from wharf.model.registration import ServiceRegistration
from wharf.model.scale_status import JobScale
from wharf.model.submission import Submission
from wharf.model.summary import JobSummary
from wharf.wire import job_bodies, shapes

JobDocument = Job | Mapping[str, Any]
"""A job, or the document of one as it stands in a file: servers read that, and say what is wrong with it."""


class Jobs(Noun[M]):
    @lists("job.list")
    def list(self, *, meta: bool = False, **options: Unpack[ListOptions]) -> Listing[shapes.JobStub]:
        return Listing(options, meta=meta)

    @lists("job.statuses")
    def statuses(
        self, *, include_children: bool = False, **options: Unpack[ListOptions]
    ) -> Listing[job_bodies.JobStatusOverview]:
        return Listing(options, include_children=include_children)

    @lists("job.statuses-of")
    def statuses_of(
        self, jobs: Sequence[job_bodies.JobName], *, include_children: bool = False, **options: Unpack[ListOptions]
    ) -> Listing[job_bodies.JobStatusOverview]:
        body = job_bodies.JobStatusesRequest(jobs=tuple(jobs), include_children=include_children)
        return Listing(options, body=body)

    @calls("job.register")
    def register(
        self,
        job: JobDocument,
        *,
        enforce_index: int | None = None,
        submission: shapes.JobSource | None = None,
        preserve_counts: bool = False,
        preserve_resources: bool = False,
        eval_priority: int = 0,
        policy_override: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Call[shapes.JobRegisterResponse]:
        """`enforce_index`: only over this JobModifyIndex; 0: only where there is no such job."""
        body = shapes.JobRegisterRequest(
            enforce_index=enforce_index is not None,
            job_modify_index=enforce_index or 0,
            submission=submission,
            preserve_counts=preserve_counts,
            preserve_resources=preserve_resources,
            eval_priority=eval_priority,
            policy_override=policy_override,
        )
        return Call(options, body=_with_job(body, job))

    @calls("job.update")
    def update(
        self, job_id: str, request: shapes.JobRegisterRequest, **options: Unpack[WriteOptions]
    ) -> Call[shapes.JobRegisterResponse]:
        return Call(options, job_id, body=request)

    @calls("job.parse")
    def parse(
        self, source: str, *, canonicalize: bool = False, variables: str = "", **options: Unpack[CallOptions]
    ) -> Call[Job]:
        body = job_bodies.JobParseRequest(job_hcl=source, canonicalize=canonicalize, variables=variables)
        return Call(options, body=body)

    @calls("job.validate")
    def validate(self, job: JobDocument, **options: Unpack[CallOptions]) -> Call[job_bodies.JobValidateResponse]:
        return Call(options, body=_with_job(job_bodies.JobValidateRequest(), job))

    @calls("job.plan")
    def plan(
        self,
        job_id: str,
        job: JobDocument,
        *,
        diff: bool = True,
        policy_override: bool = False,
        **options: Unpack[CallOptions],
    ) -> Call[job_bodies.JobPlanResponse]:
        body = job_bodies.JobPlanRequest(diff=diff, policy_override=policy_override)
        return Call(options, job_id, body=_with_job(body, job))

    @reads("job.read")
    def read(self, job_id: str, **options: Unpack[ReadOptions]) -> Read[Job]:
        return Read(options, job_id)

    @reads("job.summary")
    def summary(self, job_id: str, **options: Unpack[ReadOptions]) -> Read[JobSummary]:
        return Read(options, job_id)

    @lists("job.allocations")
    def allocations(self, job_id: str, *, all: bool = False, **options: Unpack[ReadOptions]) -> Listing[AllocationStub]:
        """`all`: also of earlier jobs of that name."""
        return Listing(options, job_id, all=all)

    @lists("job.evaluations")
    def evaluations(self, job_id: str, **options: Unpack[ReadOptions]) -> Listing[Evaluation]:
        return Listing(options, job_id)

    @lists("job.deployments")
    def deployments(self, job_id: str, *, all: bool = False, **options: Unpack[ReadOptions]) -> Listing[Deployment]:
        return Listing(options, job_id, all=all)

    @reads("job.deployment")
    def deployment(self, job_id: str, **options: Unpack[ReadOptions]) -> Read[Deployment | None]:
        """The latest one."""
        return Read(options, job_id)

    @lists("job.services")
    def services(self, job_id: str, **options: Unpack[ReadOptions]) -> Listing[ServiceRegistration]:
        return Listing(options, job_id)

    @reads("job.submission")
    def submission(self, job_id: str, *, version: int, **options: Unpack[ReadOptions]) -> Read[Submission]:
        return Read(options, job_id, version=version)

    @lists("job.actions")
    def actions(self, job_id: str, **options: Unpack[ReadOptions]) -> Listing[job_bodies.JobAction]:
        return Listing(options, job_id)

    @reads("job.explain")
    def explain(self, job_id: str, **options: Unpack[ReadOptions]) -> Read[Explanation]:
        """Why its work is where it is, or nowhere."""
        return Read(options, job_id)

    @reads("job.versions")
    def versions(
        self,
        job_id: str,
        *,
        diffs: bool = False,
        diff_version: int | None = None,
        diff_tag: str = "",
        **options: Unpack[ReadOptions],
    ) -> Read[job_bodies.JobVersions]:
        return Read(options, job_id, diffs=diffs, diff_version=diff_version, diff_tag=diff_tag)

    @calls("job.tag")
    def tag(
        self,
        job_id: str,
        tag: str,
        *,
        version: int | None = None,
        description: str = "",
        **options: Unpack[WriteOptions],
    ) -> Call[job_bodies.TagResponse]:
        """Without a version the latest one."""
        body = job_bodies.TagRequest(version=version or 0, latest=version is None, description=description)
        return Call(options, job_id, tag, body=body)

    @calls("job.untag")
    def untag(self, job_id: str, tag: str, **options: Unpack[WriteOptions]) -> Call[job_bodies.TagResponse]:
        return Call(options, job_id, tag)

    @calls("job.revert")
    def revert(
        self,
        job_id: str,
        version: int,
        *,
        enforce_prior_version: int | None = None,
        **options: Unpack[WriteOptions],
    ) -> Call[shapes.JobRegisterResponse]:
        body = job_bodies.JobRevertRequest(
            job_id=job_id, job_version=version, enforce_prior_version=enforce_prior_version
        )
        return Call(options, job_id, body=body)

    @calls("job.stable")
    def stable(
        self, job_id: str, version: int, *, stable: bool = True, **options: Unpack[WriteOptions]
    ) -> Call[job_bodies.IndexReply]:
        return Call(
            options, job_id, body=job_bodies.JobStableRequest(job_id=job_id, job_version=version, stable=stable)
        )

    @calls("job.deregister")
    def deregister(
        self,
        job_id: str,
        *,
        purge: bool = False,
        eval_priority: int | None = None,
        no_shutdown_delay: bool = False,
        everywhere: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Call[shapes.JobDeregisterResponse]:
        """`everywhere`: in all regions of a job of several."""
        return Call(
            options,
            job_id,
            purge=purge,
            eval_priority=eval_priority,
            no_shutdown_delay=no_shutdown_delay,
            more={"global": everywhere},
        )

    @calls("job.evaluate")
    def evaluate(
        self, job_id: str, *, force_reschedule: bool = False, **options: Unpack[WriteOptions]
    ) -> Call[shapes.JobRegisterResponse]:
        chosen = job_bodies.EvaluateOptions(force_reschedule=force_reschedule)
        return Call(options, job_id, body=job_bodies.JobEvaluateRequest(job_id=job_id, eval_options=chosen))

    @calls("job.force-periodic")
    def force_periodic(self, job_id: str, **options: Unpack[WriteOptions]) -> Call[job_bodies.PeriodicForceResponse]:
        return Call(options, job_id)

    @calls("job.dispatch")
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
    ) -> Call[job_bodies.JobDispatchResponse]:
        """`idempotency_token`: while a job that was dispatched with it is there, no second one is made."""
        body = job_bodies.JobDispatchRequest(
            job_id=job_id,
            payload=payload,
            meta=dict(meta) if meta is not None else None,
            id_prefix_template=id_prefix_template,
            priority=priority,
        )
        return Call(options, job_id, body=body, idempotency_token=idempotency_token)

    @calls("job.dispatch-payload")
    def dispatch_payload(
        self, job_id: str, payload: bytes, *, idempotency_token: str = "", **options: Unpack[WriteOptions]
    ) -> Call[job_bodies.JobDispatchResponse]:
        """The payload is the body as it is."""
        return Call(options, job_id, body=payload, idempotency_token=idempotency_token)

    @reads("job.scale-status")
    def scale_status(self, job_id: str, **options: Unpack[ReadOptions]) -> Read[JobScale]:
        return Read(options, job_id)

    @calls("job.scale")
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
    ) -> Call[shapes.JobRegisterResponse]:
        """Without a count it only tells of something that a scaler did or could not do."""
        body = job_bodies.ScalingRequest(
            count=count,
            target={"Job": job_id, "Group": group},
            message=message,
            error=error,
            meta=dict(meta) if meta is not None else None,
            job_modify_index=enforce_index,
        )
        return Call(options, job_id, body=body)


def _with_job(request: msgspec.Struct, job: JobDocument) -> msgspec.Struct | dict[str, Any]:
    if isinstance(job, Job):
        return msgspec.structs.replace(request, job=job)
    return {**msgspec.to_builtins(request), "Job": job}

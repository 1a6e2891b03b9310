"""What a person can do with a job: scale, dispatch, launch, evaluate, restart, stop and start it."""

import msgspec

from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus, PayloadRequirement
from wharf.contract.wire.jobs.states import JobState


class ScaledGroup(msgspec.Struct, frozen=True):
    """A group with its count."""

    name: str
    count: int


class MetaField(msgspec.Struct, frozen=True):
    """A key of metadata that a dispatch must or may set."""

    key: str
    is_required: bool


class DispatchForm(msgspec.Struct, frozen=True):
    """What a dispatch of a parameterized job takes."""

    fields: tuple[MetaField, ...]
    takes_payload: bool
    needs_payload: bool


class ActionsView(msgspec.Struct, frozen=True):
    """The actions of a job."""

    job_id: str
    namespace: str
    index: int
    """The index of the job that the page shows: a form is refused if the job has changed since."""
    is_stopped: bool
    is_ended: bool
    """Whether it has ended by itself, so that there is nothing to stop."""
    groups: tuple[ScaledGroup, ...]
    """Those that can be scaled: not those of a system job, which runs on each node, or of a template, which runs nothing itself,
    and no arrays."""
    dispatch: DispatchForm | None
    launches: tuple[str, ...]
    """The times of a periodic job, as cron expressions."""
    can_restart: bool
    can_replace: bool
    """Whether failed allocations can be replaced without their delay: only those of groups that are rescheduled."""
    once: str
    """Makes the second submission of the same form no second dispatch."""


class Repetition(msgspec.Struct, frozen=True):
    """How a batch job that has failed can run again."""

    button: str
    question: str
    consequence: str
    is_complete: bool
    """Whether all of its allocations run again, as a new version; otherwise only those that failed."""
    index: int
    """The index of the job that the page shows: a form is refused if the job has changed since."""


def find_repetition(job: Job, state: JobState) -> Repetition | None:
    """Return how a batch job that has failed can run again; `None` for other jobs.

    Runs and jobs with arrays have forms of their own.
    """
    is_template = job.is_periodic or job.is_parameterized
    if state is not JobState.FAILED or job.type != "batch" or is_template or job.has_steps or job.has_arrays:
        return None
    if all(_is_rescheduled(group) for group in job.groups):
        return Repetition(
            "Run what failed again",
            f"Run what failed of {job.id} again?",
            "Each failed allocation gets a replacement at once, without its delay. Those that completed do not run again.",
            is_complete=False,
            index=job.job_modify_index,
        )
    return Repetition(
        f"Run all of {job.id} again",
        f"Run all of {job.id} again?",
        "A group of it has no reschedule attempts, so its failed allocations cannot be replaced alone. The job is stopped and"
        " started as a new version: all of its allocations run again, also those that completed.",
        is_complete=True,
        index=job.job_modify_index,
    )


def build_actions_view(job: Job, once: str) -> ActionsView:
    """Return the actions that make sense for a job."""
    template = job.parameterized_job if job.is_parameterized else None
    is_template = job.is_periodic or job.is_parameterized
    specs = () if job.periodic is None else (*(job.periodic.specs or ()), job.periodic.spec)
    return ActionsView(
        job_id=job.id,
        namespace=job.namespace,
        index=job.job_modify_index,
        is_stopped=job.stop,
        is_ended=job.status is JobStatus.DEAD,
        groups=()
        if is_template or job.type in ("system", "sysbatch")
        else tuple(ScaledGroup(group.name, group.count) for group in job.groups if group.array is None),
        dispatch=None
        if template is None
        else DispatchForm(
            tuple(
                MetaField(key, is_required)
                for keys, is_required in ((template.meta_required, True), (template.meta_optional, False))
                for key in keys or ()
            ),
            takes_payload=template.payload != PayloadRequirement.FORBIDDEN,
            needs_payload=template.payload == PayloadRequirement.REQUIRED,
        ),
        launches=tuple(dict.fromkeys(spec for spec in specs if spec)),
        can_restart=not is_template and not job.stop and job.status is not JobStatus.DEAD,
        can_replace=not is_template and has_rescheduling(job),
        once=once,
    )


def has_rescheduling(job: Job) -> bool:
    """Return whether servers replace failed allocations of any group of a job."""
    return any(_is_rescheduled(group) for group in job.groups)


def _is_rescheduled(group: TaskGroup) -> bool:
    return group.reschedule_policy is not None and group.reschedule_policy.is_enabled

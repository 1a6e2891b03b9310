"""The job record and the records that belong to a job: submission, summary and purge.

Tasks and groups are in `groups`; validation and canonical form have modules of their own.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

import msgspec

from wharf.contract.model.jobs import inheritance
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Spread
from wharf.contract.model.jobs.group_policies import MigratePolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE
from wharf.contract.model.record import Record

DEFAULT_REGION: Final = "global"

JobKey: TypeAlias = tuple[str, str]
"""Namespace and id of a job."""


class JobType(StrEnum):
    """How a job is scheduled. `CORE` is internal work of the servers and cannot be submitted."""

    SERVICE = "service"
    BATCH = "batch"
    SYSTEM = "system"
    SYSBATCH = "sysbatch"
    CORE = "_core"


class JobStatus(StrEnum):
    """The status of a job. Only the leader changes it (jobs.md 4)."""

    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"


class MissedLaunchPolicy(StrEnum):
    """What happens to launches that were missed while there was no leader."""

    ONCE = "once"  # One launch replaces all missed ones.
    NONE = "none"
    ALL = "all"  # Every missed launch is made, with its own launch time.


class Periodic(Record):
    """When children of the job are launched. `spec` is the deprecated form with one cron expression, `specs` the new one."""

    enabled: bool = True
    spec: str = ""
    specs: tuple[str, ...] | None = None
    spec_type: str = "cron"
    prohibit_overlap: bool = False
    max_running: int = 0  # How many children may run at the same time; others wait. 0 means no limit.
    time_zone: str = "UTC"
    missed: str = MissedLaunchPolicy.ONCE


class PayloadRequirement(StrEnum):
    """Whether a dispatch carries a payload."""

    OPTIONAL = "optional"
    REQUIRED = "required"
    FORBIDDEN = "forbidden"


class Parameterized(Record):
    """Makes the job a template: each dispatch creates a child job from it."""

    payload: str = PayloadRequirement.OPTIONAL
    meta_required: tuple[str, ...] | None = None
    meta_optional: tuple[str, ...] | None = None
    max_running: int = 0  # As in `Periodic`.


class MultiregionStrategy(Record):
    """How a deployment proceeds through the regions."""

    max_parallel: int = 0
    on_failure: str = ""


class MultiregionRegion(Record):
    """What differs in the job of one region."""

    name: str = ""
    count: int = 1
    datacenters: tuple[str, ...] | None = None
    node_pool: str = ""
    meta: dict[str, str] | None = None


class Multiregion(Record):
    """One job in several regions. Decoded only so that validation can reject it with a clear message."""

    strategy: MultiregionStrategy | None = None
    regions: tuple[MultiregionRegion, ...] | None = None


class UILink(Record):
    """A link shown on the job's page."""

    label: str = ""
    url: str = msgspec.field(default="", name="Url")


class UI(Record):
    """Additional content of the job's page in a web interface."""

    description: str = ""
    links: tuple[UILink, ...] | None = None


class VersionTag(Record):
    """A name for a version of a job, which protects the version from garbage collection. `tagged_time` is ns since 1970."""

    name: str = ""
    description: str = ""
    tagged_time: int = 0


class Job(Record):
    """A job: its specification, and the fields that only the server sets (the last block)."""

    id: str
    name: str = ""
    namespace: str = DEFAULT_NAMESPACE
    region: str = DEFAULT_REGION
    type: str = JobType.SERVICE
    priority: int = 0
    all_at_once: bool = False
    datacenters: tuple[str, ...] | None = None
    node_pool: str = ""
    constraints: tuple[Constraint, ...] | None = None
    affinities: tuple[Affinity, ...] | None = None
    spreads: tuple[Spread, ...] | None = None
    task_groups: tuple[TaskGroup, ...] | None = None
    update: UpdatePolicy | None = None
    periodic: Periodic | None = None
    parameterized_job: Parameterized | None = None
    multiregion: Multiregion | None = None
    meta: dict[str, str] | None = None
    ui: UI | None = None
    vault_namespace: str = ""
    consul_namespace: str = ""
    stop: bool = False
    payload: bytes | None = None
    version: int = 0
    version_tag: VersionTag | None = None

    parent_id: str = ""
    dispatched: bool = False
    dispatch_idempotency_token: str = ""
    # Nomad's wire name, because tools read it.
    submitter_accessor_id: str = msgspec.field(default="", name="NomadTokenID")
    status: JobStatus = JobStatus.PENDING
    status_description: str = ""
    stable: bool = False
    submit_time: int = 0
    create_index: int = 0
    modify_index: int = 0
    job_modify_index: int = 0

    # Only the server sets these fields; submitted values are dropped.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({
        "ParentID", "Dispatched", "DispatchIdempotencyToken", "NomadTokenID", "Status", "StatusDescription", "Stable",
        "SubmitTime", "CreateIndex", "ModifyIndex", "JobModifyIndex",
    })  # fmt: skip
    # Copied into the groups, never stored in the job (jobs.md 2.1).
    only_when_submitted: ClassVar[Mapping[str, object]] = {"Reschedule": ReschedulePolicy, "Migrate": MigratePolicy}
    text_when_missing: ClassVar[Mapping[str, str]] = {"ID": "Job ID hasn't been provided"}

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Let groups inherit from the job, and tasks from their group."""
        return inheritance.complete_job(submitted)

    @property
    def groups(self) -> tuple[TaskGroup, ...]:
        """The task groups; empty if the field is null."""
        return self.task_groups or ()

    @property
    def runs_on_every_node(self) -> bool:
        """Whether each feasible node runs the job: its type is system or sysbatch."""
        return self.type in (JobType.SYSTEM, JobType.SYSBATCH)

    @property
    def is_finite(self) -> bool:
        """Whether its allocations end by themselves: its type is batch or sysbatch."""
        return self.type in (JobType.BATCH, JobType.SYSBATCH)

    @property
    def is_periodic(self) -> bool:
        """Whether the job launches children at set times."""
        return self.periodic is not None

    @property
    def is_parameterized(self) -> bool:
        """Whether the job is a template for dispatches. A dispatched child has the block as well, but is not a template."""
        return self.parameterized_job is not None and not self.dispatched

    @property
    def is_active_periodic(self) -> bool:
        """Whether the leader must launch children: the job is periodic, enabled, not stopped and not waiting for a dispatch."""
        return self.periodic is not None and self.periodic.enabled and not self.stop and not self.is_parameterized

    def find_group(self, name: str) -> TaskGroup | None:
        """Return the group with this name, or `None`."""
        return next((group for group in self.groups if group.name == name), None)


class Submission(Record):
    """The source text of a version of a job, with its variables."""

    namespace: str
    job_id: str
    version: int = 0
    job_modify_index: int = 0
    source: str = ""
    format: str = ""  # "hcl2" or "json"
    variable_flags: dict[str, str] | None = None
    variables: str = ""
    create_index: int = 0
    modify_index: int = 0


class GroupSummary(Record):
    """Allocations of a group by status. Complete and failed count ended allocations and never decrease."""

    queued: int = 0
    complete: int = 0
    failed: int = 0
    running: int = 0
    starting: int = 0
    lost: int = 0
    unknown: int = 0


class ChildrenSummary(Record):
    """Children of a periodic or parameterized job by status."""

    pending: int = 0
    running: int = 0
    dead: int = 0


class JobSummary(Record):
    """Counts of a job's allocations and children by status.

    Only one writer maintains it, because some counts depend on history: they never decrease.
    """

    job_id: str
    namespace: str
    summary: dict[str, GroupSummary] = msgspec.field(default_factory=dict)
    children: ChildrenSummary | None = None
    create_index: int = 0
    modify_index: int = 0


class JobPurge(Record):
    """A purge in progress: the job is deleted, and its allocations and evaluations are being deleted in steps.

    The record is written together with the deletion of the job, so that a new leader can continue the purge. It is deleted with the
    last of the job's records.
    """

    namespace: str
    job_id: str
    job_create_index: int = 0
    """Distinguishes the purged job from a new job with the same name, which may be registered during the purge."""
    eval_id: str = ""
    """The evaluation that stops the job's allocations; the purge does not cancel it like the others."""
    create_index: int = 0
    modify_index: int = 0

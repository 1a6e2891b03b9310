"""A job: what a team wants to run, as it is submitted, kept by version, and shown.

Submissions: the source text that a version of a job was made from, with its variables.

Job summaries: how many allocations of each group, and how many children, stand where.

One writer keeps them, because Complete and Failed depend on history: they never go down.

Purges under way: a job is gone, and what it left is being taken away step by step.

The intent is recorded with the job's own removal, so that whoever leads next goes on where the last one stopped.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from wharf.contract.model.jobs import inheritance
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Spread
from wharf.contract.model.jobs.group_policies import MigratePolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.record import Record

DEFAULT_NAMESPACE: Final = "default"
DEFAULT_NODE_POOL: Final = "default"
ALL_NODE_POOL: Final = "all"
DEFAULT_REGION: Final = "global"


class JobType(StrEnum):
    """How a job is scheduled. `CORE` is the servers' own work and can not be submitted."""

    SERVICE = "service"
    BATCH = "batch"
    SYSTEM = "system"
    SYSBATCH = "sysbatch"
    CORE = "_core"


class JobStatus(StrEnum):
    """Where a job is in its life. The leader alone changes it (jobs.md 4)."""

    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"


class MissedLaunchPolicy(StrEnum):
    """What becomes of launches whose time passed while nobody led."""

    ONCE = "once"  # One is made for all of them.
    NONE = "none"
    ALL = "all"  # Each is made, as of its own time.


class Periodic(Record):
    """When children of the job are launched. `spec` is the old form with one time table, `specs` the new one."""

    enabled: bool = True
    spec: str = ""
    specs: tuple[str, ...] | None = None
    spec_type: str = "cron"
    prohibit_overlap: bool = False
    max_running: int = 0  # How many children may run at the same time; the others wait. 0: any number.
    time_zone: str = "UTC"
    missed: str = MissedLaunchPolicy.ONCE


class PayloadRequirement(StrEnum):
    """Whether a dispatch carries a payload."""

    OPTIONAL = "optional"
    REQUIRED = "required"
    FORBIDDEN = "forbidden"


class Parameterized(Record):
    """The job is a template: each dispatch makes a child of it."""

    payload: str = PayloadRequirement.OPTIONAL
    meta_required: tuple[str, ...] | None = None
    meta_optional: tuple[str, ...] | None = None
    max_running: int = 0  # As of a periodic job.


class MultiregionStrategy(Record):
    """How a deployment moves through regions."""

    max_parallel: int = 0
    on_failure: str = ""


class MultiregionRegion(Record):
    """What a region changes in the job."""

    name: str = ""
    count: int = 1
    datacenters: tuple[str, ...] | None = None
    node_pool: str = ""
    meta: dict[str, str] | None = None


class Multiregion(Record):
    """One job in several regions. It is read so that it can be refused with a sentence."""

    strategy: MultiregionStrategy | None = None
    regions: tuple[MultiregionRegion, ...] | None = None


class UILink(Record):
    """A link shown on the job's page."""

    label: str = ""
    url: str = msgspec.field(default="", name="Url")


class UI(Record):
    """What the job's page says beside the facts."""

    description: str = ""
    links: tuple[UILink, ...] | None = None


class VersionTag(Record):
    """A name that keeps a version of a job from being collected. `tagged_time` is nanoseconds since 1970, UTC."""

    name: str = ""
    description: str = ""
    tagged_time: int = 0


class Job(Record):
    """A job. Beside the specification it holds what only the server sets (the last block)."""

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
    # The wire's name is the peer's: tools read it.
    submitter_accessor_id: str = msgspec.field(default="", name="NomadTokenID")
    status: JobStatus = JobStatus.PENDING
    status_description: str = ""
    stable: bool = False
    submit_time: int = 0
    create_index: int = 0
    modify_index: int = 0
    job_modify_index: int = 0

    # What only the server sets is not taken from a submitted job.
    ignored_when_submitted: ClassVar[frozenset[str]] = frozenset({
        "ParentID", "Dispatched", "DispatchIdempotencyToken", "NomadTokenID", "Status", "StatusDescription", "Stable",
        "SubmitTime", "CreateIndex", "ModifyIndex", "JobModifyIndex",
    })  # fmt: skip
    # Handed down to the groups, never stored on the job (jobs.md 2.1).
    only_when_submitted: ClassVar[Mapping[str, object]] = {"Reschedule": ReschedulePolicy, "Migrate": MigratePolicy}
    text_when_missing: ClassVar[Mapping[str, str]] = {"ID": "Job ID hasn't been provided"}

    @classmethod
    def complete_submission(cls, given: dict[str, object]) -> dict[str, object]:
        """Groups inherit from the job, tasks from their group."""
        return inheritance.complete_job(given)

    @property
    def groups(self) -> tuple[TaskGroup, ...]:
        """The groups, none where there are none."""
        return self.task_groups or ()

    @property
    def is_periodic(self) -> bool:
        """Launches children by time."""
        return self.periodic is not None

    @property
    def is_parameterized(self) -> bool:
        """Is a template for dispatches (a dispatched child carries the block too, but is none)."""
        return self.parameterized_job is not None and not self.dispatched

    @property
    def is_active_periodic(self) -> bool:
        """The leader must launch its children: periodic, enabled, not stopped, not waiting for a dispatch."""
        return self.periodic is not None and self.periodic.enabled and not self.stop and not self.is_parameterized

    def find_group(self, name: str) -> TaskGroup | None:
        """The group of that name."""
        return next((group for group in self.groups if group.name == name), None)


class Submission(Record):
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
    queued: int = 0
    complete: int = 0
    failed: int = 0
    running: int = 0
    starting: int = 0
    lost: int = 0
    unknown: int = 0


class ChildrenSummary(Record):
    pending: int = 0
    running: int = 0
    dead: int = 0


class JobSummary(Record):
    job_id: str
    namespace: str
    summary: dict[str, GroupSummary] = msgspec.field(default_factory=dict)
    children: ChildrenSummary | None = None
    create_index: int = 0
    modify_index: int = 0


class JobPurge(Record):
    """What is left of one life of a job. Its record ends with the last thing that it names."""

    namespace: str
    job_id: str
    job_create_index: int = 0
    """Tells this life of the job from the next one, which may begin before this purge ends."""
    eval_id: str = ""
    """The evaluation that stops the job's work: it is not closed with the others."""
    create_index: int = 0
    modify_index: int = 0

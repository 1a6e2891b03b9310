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
    """How a job is scheduled."""

    SERVICE = "service"  # Runs until it is stopped.
    BATCH = "batch"  # Runs to its end.
    SYSTEM = "system"  # Runs on every matching node until it is stopped.
    SYSBATCH = "sysbatch"  # Runs once to its end on every matching node.
    CORE = "_core"  # Internal work of the servers; cannot be submitted.


class JobStatus(StrEnum):
    """The status of a job. Only the leader changes it (jobs.md 4)."""

    PENDING = "pending"  # An evaluation is open, and nothing runs.
    RUNNING = "running"
    DEAD = "dead"  # Nothing runs, and nothing is left to run.


class MissedLaunchPolicy(StrEnum):
    """What happens to launches of a periodic job that were missed because the cluster had no leader."""

    ONCE = "once"  # One launch replaces all missed ones.
    NONE = "none"  # No missed launch is made up for.
    ALL = "all"  # Every missed launch is made, with its own launch time.


class Periodic(Record):
    """When a periodic job launches children: jobs that are created from it at the times of cron expressions."""

    enabled: bool = True
    spec: str = ""  # One cron expression; deprecated.
    specs: tuple[str, ...] | None = None  # The cron expressions.
    spec_type: str = "cron"  # Always "cron".
    prohibit_overlap: bool = False  # Do not launch while a child runs.
    max_running: int = 0  # How many children may run at the same time; others wait. 0 means no limit.
    time_zone: str = "UTC"  # Of the cron expressions.
    missed: str = MissedLaunchPolicy.ONCE  # A `MissedLaunchPolicy`.


class PayloadRequirement(StrEnum):
    """Whether the dispatch of a job must, may or must not carry a payload: data for its tasks."""

    OPTIONAL = "optional"
    REQUIRED = "required"
    FORBIDDEN = "forbidden"


class Parameterized(Record):
    """The block that makes a job a template: each dispatch creates a child job from it."""

    payload: str = PayloadRequirement.OPTIONAL  # A `PayloadRequirement`.
    meta_required: tuple[str, ...] | None = None  # Keys that a dispatch must set.
    meta_optional: tuple[str, ...] | None = None  # Keys that it may set.
    max_running: int = 0  # How many children may run at the same time; others wait. 0 means no limit.


class MultiregionStrategy(Record):
    """How a deployment of a job in several regions proceeds from region to region."""

    max_parallel: int = 0  # Regions at a time.
    on_failure: str = ""  # What happens to the other regions.


class MultiregionRegion(Record):
    """The fields of a job in several regions that differ in one region."""

    name: str = ""
    count: int = 1
    datacenters: tuple[str, ...] | None = None
    node_pool: str = ""
    meta: dict[str, str] | None = None


class Multiregion(Record):
    """The block of a job in several regions.

    It is decoded only so that validation can reject it with a clear message.
    """

    strategy: MultiregionStrategy | None = None
    regions: tuple[MultiregionRegion, ...] | None = None


class UILink(Record):
    """A link on the job's page in a web interface."""

    label: str = ""
    url: str = msgspec.field(default="", name="Url")


class UI(Record):
    """Additional content of the job's page in a web interface."""

    description: str = ""
    links: tuple[UILink, ...] | None = None


class VersionTag(Record):
    """A name for a version of a job. A tagged version is not deleted by garbage collection."""

    name: str = ""
    description: str = ""
    tagged_time: int = 0  # ns since the epoch


MAX_SEARCHED_GROUPS: Final = 16
"""In jobs with more groups, a group is looked up by name: 1,000 searches among 1,000 groups take 25 ms."""
MAX_REMEMBERED_JOBS: Final = 4
"""Limits the memory of the groups that are remembered by name."""


class Job(Record):
    """A job: its submitted specification, then the fields that only servers set."""

    id: str
    name: str = ""
    namespace: str = DEFAULT_NAMESPACE
    region: str = DEFAULT_REGION
    type: str = JobType.SERVICE  # A `JobType`.
    priority: int = 0  # Higher numbers are scheduled first; 0: the default.
    all_at_once: bool = False  # Place all allocations or none.
    datacenters: tuple[str, ...] | None = None  # Names or patterns.
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
    stop: bool = False  # The job should not run.
    payload: bytes | None = None  # Data of a dispatch, for its tasks.
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
        """Complete a submitted job: groups inherit policies from the job, and tasks from their group.

        Modifies and returns the JSON object.
        """
        return inheritance.complete_job(submitted)

    @property
    def groups(self) -> tuple[TaskGroup, ...]:
        """The task groups; empty if the field is null."""
        return self.task_groups or ()

    @property
    def runs_on_every_node(self) -> bool:
        """Whether the job runs on each node that can run it: its type is system or sysbatch."""
        return self.type in (JobType.SYSTEM, JobType.SYSBATCH)

    @property
    def is_finite(self) -> bool:
        """Whether its allocations end by themselves: its type is batch or sysbatch."""
        return self.type in (JobType.BATCH, JobType.SYSBATCH)

    @property
    def is_periodic(self) -> bool:
        """Whether the job launches children at the times of cron expressions."""
        return self.periodic is not None

    @property
    def is_parameterized(self) -> bool:
        """Whether the job is a template for dispatches.

        A dispatched child inherits the block, but is not a template.
        """
        return self.parameterized_job is not None and not self.dispatched

    @property
    def is_active_periodic(self) -> bool:
        """Whether the leader must launch children of the job.

        It is periodic, enabled, not stopped and not a template for dispatches.
        """
        return self.periodic is not None and self.periodic.enabled and not self.stop and not self.is_parameterized

    def find_group(self, name: str) -> TaskGroup | None:
        """Return the group with this name, or `None` if the job has no such group."""
        groups = self.groups
        if len(groups) > MAX_SEARCHED_GROUPS:
            return _get_groups_by_name(groups).get(name)
        return next((group for group in groups if group.name == name), None)


_groups_by_name: Final[dict[int, tuple[tuple[TaskGroup, ...], dict[str, TaskGroup]]]] = {}
"""The groups of the last large jobs that were searched, by the identity of their list."""


def _get_groups_by_name(groups: tuple[TaskGroup, ...]) -> dict[str, TaskGroup]:
    """Return the groups by name. Callers look up one group after the other in the same job."""
    found = _groups_by_name.get(id(groups))
    if found is not None and found[0] is groups:
        return found[1]
    if len(_groups_by_name) >= MAX_REMEMBERED_JOBS:
        _groups_by_name.clear()
    by_name = {group.name: group for group in reversed(groups)}  # The first group of a name counts.
    _groups_by_name[id(groups)] = (groups, by_name)
    return by_name


class Submission(Record):
    """The source text of a version of a job, with the variables that were inserted into it."""

    namespace: str
    job_id: str
    version: int = 0
    job_modify_index: int = 0
    source: str = ""  # The text of the job file.
    format: str = ""  # "hcl2" or "json"
    variable_flags: dict[str, str] | None = None  # Variables from the command line.
    variables: str = ""  # The text of the variables file.
    create_index: int = 0
    modify_index: int = 0


class GroupSummary(Record):
    """The number of a group's allocations in each status.

    `complete` and `failed` count all that ever ended and never decrease.
    """

    queued: int = 0  # Not placed yet.
    complete: int = 0
    failed: int = 0
    running: int = 0
    starting: int = 0  # Placed but not running yet.
    lost: int = 0
    unknown: int = 0


class ChildrenSummary(Record):
    """The number of children of a periodic or parameterized job in each status."""

    pending: int = 0
    running: int = 0
    dead: int = 0


class JobSummary(Record):
    """The number of allocations of each group and of children of a job, by status.

    Only one component may write it, because some numbers depend on history: they never decrease.
    """

    job_id: str
    namespace: str
    summary: dict[str, GroupSummary] = msgspec.field(default_factory=dict)  # By group name.
    children: ChildrenSummary | None = None  # Null: the job does not create children.
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

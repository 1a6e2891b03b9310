"""The job record and the records that belong to a job: submission, summary and purge.

Tasks and groups are in `groups`; validation and canonical form have modules of their own.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

import msgspec

from wharf.contract.model.jobs import inheritance
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Spread
from wharf.contract.model.jobs.group_policies import MigratePolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.steps import Flow, Need
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
    """Whether the servers launch the job at the times of `Specs`.

    Set it to false to pause the schedule without losing it: nothing launches, and the cron expressions are not
    checked.
    """
    spec: str = ""
    """One cron expression.

    Use `Specs` instead, also for a single expression.

    Example: "0 3 * * *"
    Deprecated: use `Specs`
    """
    specs: tuple[str, ...] | None = None
    """The cron expressions at which the job is launched: minute, hour, day of the month, month, day of the week;
    optionally with seconds before and a year after them.

    Names such as `@daily` are allowed too. With several expressions, the job is launched at the times of each
    one; a time that two of them have in common counts once.

    Default: none; an enabled schedule needs at least one expression
    Limits: at most 20 items
    Example: ["0 3 * * *"]
    """
    spec_type: str = "cron"
    """The notation of the schedule.

    HCL has no such argument.

    Values:
        cron: cron expressions
    Example: cron
    """
    prohibit_overlap: bool = False
    """Whether a launch is skipped while an earlier child of the job still runs.

    Use it for jobs that must not run twice at the same time, such as backups. To let launches wait instead of
    skipping them, use `MaxRunning`.
    """
    max_running: int = 0
    """How many children of the job may run at the same time.

    Further children stay pending and start, oldest first, when another one has ended. 0 means no limit. Nomad
    has no such field.

    Unit: children
    Limits: at least 0
    Example: 2
    """
    time_zone: str = "UTC"
    """The time zone of the cron expressions, as a name of the IANA database.

    With daylight saving time, a time that the clock skips does not occur on that day.

    Limits: a name of the IANA database
    Example: Europe/Berlin
    """
    missed: str = MissedLaunchPolicy.ONCE
    """What happens to launches that were due while the cluster had no leader.

    The leader decides it as soon as it is elected. Nomad has no such field.

    Values:
        once: one launch replaces all missed ones
        none: missed launches are dropped
        all: every missed launch is made, each with its own launch time
    Example: none
    """


class PayloadRequirement(StrEnum):
    """Whether the dispatch of a job must, may or must not carry a payload: data for its tasks."""

    OPTIONAL = "optional"
    REQUIRED = "required"
    FORBIDDEN = "forbidden"


class Parameterized(Record):
    """The block that makes a job a template: each dispatch creates a child job from it."""

    payload: str = PayloadRequirement.OPTIONAL
    """Whether a dispatch of the job carries a payload, which is data for its tasks.

    A task receives it as a file, with the block `DispatchPayload`.

    Values:
        optional: a dispatch may have a payload
        required: a dispatch without a payload is refused
        forbidden: a dispatch with a payload is refused
    Example: required
    """
    meta_required: tuple[str, ...] | None = None
    """Keys of metadata that every dispatch must set.

    A dispatch that lacks one is refused. The tasks receive the values as environment variables, such as
    `NOMAD_META_input`.

    Default: none
    Limits: no key of `MetaOptional`
    Example: ["input"]
    """
    meta_optional: tuple[str, ...] | None = None
    """Keys of metadata that a dispatch may set.

    A dispatch with any key that is in neither list is refused.

    Default: none
    Limits: no key of `MetaRequired`
    Example: ["profile"]
    """
    max_running: int = 0
    """How many dispatched children of the job may run at the same time.

    Further children stay pending and start, oldest first, when another one has ended. 0 means no limit. Nomad
    has no such field.

    Unit: children
    Limits: at least 0
    Example: 10
    """


class MultiregionStrategy(Record):
    """How a deployment of a job in several regions proceeds from region to region."""

    max_parallel: int = 0
    """How many regions are updated at a time.

    Unit: regions
    Example: 1
    Effect: refused; submit the job to each region
    """
    on_failure: str = ""
    """What happens to the other regions if the deployment in one region fails.

    Example: fail_all
    Effect: refused; submit the job to each region
    """


class MultiregionRegion(Record):
    """The fields of a job in several regions that differ in one region."""

    name: str = ""
    """The name of the region.

    Example: west
    Effect: refused; submit the job to each region
    """
    count: int = 1
    """The count of groups that set none, in this region.

    Example: 2
    Effect: refused; submit the job to each region
    """
    datacenters: tuple[str, ...] | None = None
    """The datacenters of the region in which the job may run.

    Default: none
    Example: ["dc1"]
    Effect: refused; submit the job to each region
    """
    node_pool: str = ""
    """The node pool of the job in this region.

    Example: default
    Effect: refused; submit the job to each region
    """
    meta: dict[str, str] | None = None
    """Metadata that is added to the metadata of the job in this region.

    Default: none
    Example: {"site": "west"}
    Effect: refused; submit the job to each region
    """


class Multiregion(Record):
    """The block of a job in several regions.

    It is decoded only so that validation can reject it with a clear message.
    """

    strategy: MultiregionStrategy | None = None
    """How a deployment proceeds from region to region.

    Effect: refused; submit the job to each region
    """
    regions: tuple[MultiregionRegion, ...] | None = None
    """The regions of the job, with the fields that differ between them.

    Effect: refused; submit the job to each region
    """


class UILink(Record):
    """A link on the job's page in a web interface."""

    label: str = ""
    """The text of the link.

    Example: Runbook
    """
    url: str = msgspec.field(default="", name="Url")
    """The address of the link.

    Example: https://wiki.example.com/web
    """


class UI(Record):
    """Additional content of the job's page in a web interface."""

    description: str = ""
    """A text about the job for the people who look at it: what it is for, and whom to ask.

    Limits: at most 1,000 UTF-8 bytes
    Example: The public web site. Ask team shop.
    """
    links: tuple[UILink, ...] | None = None
    """Links that help the people who look at the job, such as to its manual or its dashboards."""


class VersionTag(Record):
    """A name for a version of a job. A tagged version is not deleted by garbage collection."""

    name: str = ""
    """The name of the version, by which commands such as `wharf job revert` find it.

    Example: v1.4
    """
    description: str = ""
    """Why the version has a tag.

    Limits: at most 1,000 UTF-8 bytes
    Example: Before the change of the database
    """
    tagged_time: int = 0
    """When the tag was set, in nanoseconds since 1970.

    Servers set it.

    Example: 0
    """


MAX_SEARCHED_GROUPS: Final = 16
"""In jobs with more groups, a group is looked up by name: 1,000 searches among 1,000 groups take 25 ms."""
MAX_REMEMBERED_JOBS: Final = 4
"""Limits the memory of the groups that are remembered by name."""


class Job(Record):
    """A job: what runs, how often and on which nodes. Servers set the fields from `parent_id` on."""

    id: str
    """The ID of the job, which is unique in its namespace.

    To submit a job with the ID of an existing job means to change that job. In HCL, the label of the block
    `job` is the ID; the argument `id` overrides it.

    Default: none; required
    Limits: 1 to 256 UTF-8 bytes, without spaces and control characters, and without a path segment `.` or `..`
    Example: web
    """
    name: str = ""
    """The name that lists show.

    Names of services are built from it. In HCL, it is the label of the block `job` unless `name` is set.

    Default: the ID
    Limits: 1 to 256 UTF-8 bytes
    Example: Web site
    """
    namespace: str = DEFAULT_NAMESPACE
    """The namespace of the job.

    Permissions, quotas and the drivers that a job may use depend on it. The namespace must exist. An explicit
    namespace of the command or the request takes precedence over this field.

    Limits: a namespace that exists
    Example: shop
    """
    region: str = DEFAULT_REGION
    """The region in which the job runs.

    A server of another region forwards the job to a server of this one.

    Default: `global`, which means the region of the server that receives the job
    Limits: a region that exists
    Example: europe
    """
    type: str = JobType.SERVICE
    """How the job is scheduled.

    The type of a job cannot be changed later.

    Values:
        service: runs until you stop it; allocations that end are replaced
        batch: runs to its end; only failed allocations are replaced
        system: runs one allocation on each matching node until you stop it, also on nodes that join later
        sysbatch: runs one allocation to its end on each matching node
    Default: `service`
    Example: batch
    """
    priority: int = 0
    """How important the job is compared with others.

    The scheduler plans jobs with a higher priority first. If preemption is enabled, a job can displace
    allocations of jobs whose priority is lower by at least 10.

    Default: 50 (the setting `server.job_default_priority`)
    Limits: 0 to 100, where 0 means the default; the setting `server.job_max_priority` allows up to 32,766
    Example: 80
    """
    all_at_once: bool = False
    """Whether the scheduler places all allocations of the job or none.

    If one has no capacity, all of them wait. Use it for work that is useless in part, such as a computation on
    a fixed number of machines.
    """
    datacenters: tuple[str, ...] | None = None
    """Names or patterns of the datacenters in which the job may run.

    `*` stands for any text, so `["eu-*"]` selects all datacenters whose name begins with `eu-`.

    Limits: no empty name
    Example: ["eu-*"]
    """
    node_pool: str = ""
    """The node pool in which the job may run.

    The pool `all` contains every node.

    Default: the default pool of the namespace, which is `default` unless it was changed
    Limits: a node pool that exists
    Example: batch
    """
    constraints: tuple[Constraint, ...] | None = None
    """Conditions that a node must satisfy to run any part of the job.

    Groups and tasks can have further ones.
    """
    affinities: tuple[Affinity, ...] | None = None
    """Preferences for nodes, for all groups of the job.

    A node that matches gets a better score; others can still run the job.

    Limits: not for `system` jobs
    """
    spreads: tuple[Spread, ...] | None = None
    """How the allocations of each group are distributed over the values of a node attribute, such as over racks.

    Limits: not for `system` jobs
    """
    task_groups: tuple[TaskGroup, ...] | None = None
    """The groups of the job.

    A group is a set of tasks that run together on one node.

    Default: none; required
    Limits: 1 to 1,000 items, with different names
    """
    update: UpdatePolicy | None = None
    """How a new version of the job replaces the old one, for all groups.

    Each group inherits the fields that its own block `Update` does not set. The stored job itself keeps only
    `Stagger` and `MaxParallel`; the groups have all fields.

    Default: for `service` and `system` jobs, all defaults of the block; none for other types
    Limits: only for `service` and `system` jobs
    """
    depends: tuple[Need, ...] | None = None
    """The other jobs that must have ended before this one begins.

    All steps wait for them. Those with `Final` also begin after all other steps were skipped or canceled. The result of a job is
    known for 30 days after the job was deleted.

    Limits: only for `batch` jobs; at most 100
    """
    flow: Flow | None = None
    """The settings of the runs of a job with steps.

    A periodic or parameterized job with this block is a flow; each launch is a run of it.

    Limits: only for `batch` jobs
    """
    periodic: Periodic | None = None
    """The times at which the servers launch the job.

    A job with this block runs nothing itself; each launch is a child job. The block cannot be added to an
    existing job, or removed from it.

    Limits: only for `batch` and `sysbatch` jobs
    """
    parameterized_job: Parameterized | None = None
    """Makes the job a template: it runs only when it is dispatched, and each dispatch is a child job with its own
    metadata and payload.

    The block cannot be added to an existing job, or removed from it.

    Limits: only for `batch` and `sysbatch` jobs
    """
    multiregion: Multiregion | None = None
    """The regions of a job that runs in several regions.

    Limits: must not be set
    Effect: refused; submit the job to each region
    """
    meta: dict[str, str] | None = None
    """Metadata of your choice.

    Tasks receive it as environment variables (`NOMAD_META_<key>`). Groups and tasks can add keys and override
    values.

    Default: none
    Example: {"team": "shop"}
    """
    ui: UI | None = None
    """A description of the job and links for people who look at it.

    Clients can show them; Wharf stores them.
    """
    vault_namespace: str = ""
    """The namespace in Vault of tasks that set none.

    Example: team
    Effect: none, because Wharf does not use Vault
    """
    consul_namespace: str = ""
    """The namespace in Consul of groups and tasks that set none.

    Example: team
    Effect: none, because Wharf does not use Consul
    """
    stop: bool = False
    """Whether the job is stopped.

    A job that is submitted with true is stored, but runs nothing. `wharf job stop` and `wharf job start` change
    it. HCL has no such argument.
    """
    payload: bytes | None = None
    """The data that came with a dispatch.

    Only dispatched children have it; a submitted job must not.

    Default: none
    Limits: must not be set
    """
    version: int = 0
    """The number of this version of the job.

    Servers count it up with each change. A submitted number that is larger than the stored one is kept.

    Unit: number of changes
    Limits: 0 to 9,007,199,254,740,992
    Example: 3
    """
    version_tag: VersionTag | None = None
    """The tag of this version.

    Set it with `wharf job tag`, not in a job file.
    """

    parent_id: str = ""
    """The ID of the job whose launch or dispatch created this one; empty for other jobs.

    Set by: servers
    """
    dispatched: bool = False
    """Whether a dispatch created the job.

    Set by: servers
    """
    dispatch_idempotency_token: str = ""
    """The token with which the dispatch of this job was requested.

    A second dispatch with it creates no second job.

    Set by: servers
    """
    # Nomad's wire name, because tools read it.
    submitter_accessor_id: str = msgspec.field(default="", name="NomadTokenID")
    """The accessor ID of the ACL token that submitted this version.

    Set by: servers
    """
    status: JobStatus = JobStatus.PENDING
    """Whether the job is pending, running or dead.

    Values:
        pending: an evaluation is open, and nothing runs
        running: allocations run, or a periodic or parameterized job waits for its next launch
        dead: nothing runs, and nothing is left to run
    Set by: servers
    """
    status_description: str = ""
    """Why the job has its status; usually empty.

    Set by: servers
    """
    stable: bool = False
    """Whether a deployment of this version succeeded.

    An automatic rollback returns to the newest stable version.

    Set by: servers
    """
    submit_time: int = 0
    """When this version was submitted, in nanoseconds since 1970.

    Set by: servers
    """
    create_index: int = 0
    """The log index at which the job was created.

    Set by: servers
    """
    modify_index: int = 0
    """The log index of the last change, including changes of its status.

    Set by: servers
    """
    job_modify_index: int = 0
    """The log index at which the specification was last submitted, stopped or scaled.

    Set by: servers
    """

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

    @property
    def has_steps(self) -> bool:
        """Whether the job is a run, or a flow whose children are: something decides when its groups begin."""
        return bool(self.depends) or self.flow is not None or any(group.is_step for group in self.groups)

    @property
    def is_run(self) -> bool:
        """Whether the job has steps that run. Those of a periodic or parameterized job run in its children."""
        return self.has_steps and not self.is_periodic and not self.is_parameterized

    @property
    def has_arrays(self) -> bool:
        """Whether a group of the job has an array."""
        return any(group.array is not None for group in self.groups)

    def without_array_items(self) -> "Job":
        """Return the job as a node needs it: an allocation names its own item, and all items may be large."""
        groups = tuple(
            msgspec.structs.replace(group, array=GroupArray(size=group.array.element_count))
            if group.array is not None and group.array.items
            else group
            for group in self.groups
        )
        return msgspec.structs.replace(self, task_groups=groups)

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
    # JSON pointers of the fields of the job whose values come from sensitive variables.
    sensitive_fields: tuple[str, ...] | None = None
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


class JobEnding(StrEnum):
    """How all elements, steps and allocations of a job ended together."""

    NONE = ""  # It has not ended, or ended without an allocation.
    SUCCEEDED = "succeeded"
    WITH_FAILURES = "succeeded-with-failures"  # A step failed that may fail.
    FAILED = "failed"
    CANCELED = "canceled"
    SKIPPED = "skipped"  # None of its steps ran.


class JobSummary(Record):
    """The number of allocations of each group and of children of a job, by status.

    Only one component may write it, because some numbers depend on history: they never decrease.
    """

    job_id: str
    namespace: str
    summary: dict[str, GroupSummary] = msgspec.field(default_factory=dict)  # By group name.
    children: ChildrenSummary | None = None  # Null: the job does not create children.
    outcome: str = ""  # A `JobEnding`: how the job ended; empty while it has not ended.
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
    parent_id: str = ""
    """The flow or other parent of the purged job. Its next run waits until the tasks of the purged one have stopped."""
    create_index: int = 0
    modify_index: int = 0

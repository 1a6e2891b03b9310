"""Every table of the cluster. A new kind of record gets a declaration here and nothing else in this package."""

import enum
from typing import Any, Final

from wharf.cluster.state.table import Index, ListOrder, SchemaMigration, Table, format_key_part
from wharf.contract.model.acl import tokens
from wharf.contract.model.acl.auth_methods import AuthMethod
from wharf.contract.model.acl.binding_rules import BindingRule
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.acl.sessions import PageSession
from wharf.contract.model.acl.tokens import AclBootstrap, OneTimeToken, Token
from wharf.contract.model.allocations.allocation import (
    REPORT_NUMBERS_PER_INDEX,
    REPORTED_END_STATUSES,
    Allocation,
    ClientStatus,
    DesiredStatus,
)
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskState
from wharf.contract.model.cluster import (
    IdempotencyKey,
    KeyringKey,
    KnownServer,
    Leader,
    Member,
    NodeCapacityVersion,
    RecordFormat,
)
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, ArrayResults
from wharf.contract.model.jobs.job import Job, JobPurge, JobStatus, JobSummary, Submission
from wharf.contract.model.jobs.job_results import JobResult
from wharf.contract.model.jobs.periodic import PeriodicLaunch
from wharf.contract.model.jobs.step_outputs import StepOutputs
from wharf.contract.model.log import join_key
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.operator.autopilot import AutopilotConfiguration
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.quotas import Quota
from wharf.contract.model.scaling import JobScalingEvents, ScalingPolicy
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.variables import Variable
from wharf.contract.model.volumes import HostVolume

# -- jobs and what they create -------------------------------------------------------------------------------------

CHILDREN_OF_JOB: Final = Index[Job]("parent", "namespace", "parent_id")


def _get_unfinished_child(job: Job) -> tuple[str, str, bool] | None:
    """Return the namespace and the parent of a child that has not ended, and whether it has `Flow.Overlap`; `None` for others."""
    if not job.parent_id or job.status is JobStatus.DEAD:
        return None
    return job.namespace, job.parent_id, job.flow is not None and bool(job.flow.overlap)


UNFINISHED_CHILDREN_OF_JOB: Final = Index[Job]("unfinished", compute_value=_get_unfinished_child)
"""The children that have not ended, by namespace, parent and whether they have `Flow.Overlap`.

Most of up to 10,000 retained runs of a flow have ended, so the queue of its runs must not read `CHILDREN_OF_JOB`.
"""
JOBS_OF_POOL: Final = Index[Job]("pool", "node_pool")
JOBS_OF_TYPE: Final = Index[Job]("type", "type")
DISPATCHES_BY_TOKEN: Final = Index[Job]("dispatch", "namespace", "parent_id", "dispatch_idempotency_token")
# A job and its newest version differ only in the status, and children of one job have mostly equal fields.
RECURRING_JOB_FIELDS: Final = (
    "datacenters", "constraints", "task_groups", "update", "periodic", "parameterized_job", "meta",
)  # fmt: skip
JOBS: Final = Table(
    "jobs",
    Job,
    key=("namespace", "id"),
    indexes=(CHILDREN_OF_JOB, UNFINISHED_CHILDREN_OF_JOB, JOBS_OF_POOL, JOBS_OF_TYPE, DISPATCHES_BY_TOKEN),
    write_index_fields=("create_index", "job_modify_index"),
    interned_fields=("namespace", "node_pool", "id", "name", "parent_id"),
    recurring_fields=RECURRING_JOB_FIELDS,
    relative_key=("job_versions", lambda job: join_key(job.namespace, job.id, format_key_part(job.version))),
)

VERSIONS_OF_JOB: Final = Index[Job]("job", "namespace", "id")
JOB_VERSIONS: Final = Table(
    "job_versions",
    Job,
    key=("namespace", "id", "version"),
    indexes=(VERSIONS_OF_JOB,),
    write_index_fields=("create_index", "job_modify_index"),
    interned_fields=("namespace", "node_pool", "id", "name", "parent_id"),
    recurring_fields=RECURRING_JOB_FIELDS,
    relative_key=("jobs", lambda version: join_key(version.namespace, version.id)),
)

SUBMISSIONS_OF_JOB: Final = Index[Submission]("job", "namespace", "job_id")
JOB_SUBMISSIONS: Final = Table(
    "job_submissions",
    Submission,
    key=("namespace", "job_id", "version"),
    indexes=(SUBMISSIONS_OF_JOB,),
    write_index_fields=("create_index", "job_modify_index"),
)

PURGED_CHILDREN_OF_JOB: Final = Index[JobPurge]("parent", "namespace", "parent_id")
JOB_PURGES: Final = Table(
    "job_purges",
    JobPurge,
    key=("namespace", "job_id", "job_create_index"),
    indexes=(PURGED_CHILDREN_OF_JOB,),
    write_index_fields=("create_index", "job_create_index"),
)

JOB_SUMMARIES: Final = Table(
    "job_summaries",
    JobSummary,
    key=("namespace", "job_id"),
    interned_fields=("namespace", "job_id"),
    recurring_fields=("summary", "children"),
    is_adopted=True,
)

EVALUATIONS_OF_JOB: Final = Index[Evaluation]("job", "namespace", "job_id")
EVALUATIONS_BY_STATUS: Final = Index[Evaluation]("status", "status")
EVALUATIONS_BY_QUOTA: Final = Index[Evaluation]("quota", "quota_limit_reached")
"""Evaluations that reached the limit of a quota, by the name of the quota."""


def _get_awaited_lock(evaluation: Evaluation) -> tuple[str, str] | None:
    """Return the namespace and the lock for which an evaluation waits, or `None` if it waits for none.

    The key is empty if it waits for several locks.
    """
    if not evaluation.lock_waits or evaluation.status.is_terminal:
        return None
    first = evaluation.lock_waits[0].key
    return evaluation.namespace, first if all(wait.key == first for wait in evaluation.lock_waits) else ""


EVALUATIONS_BY_LOCK: Final = Index[Evaluation]("lock", compute_value=_get_awaited_lock)
"""Evaluations that wait for a lock, also while they are retried, by namespace and key. Read it with `list_lock_waiters`."""
EVALUATIONS: Final = Table(
    "evaluations",
    Evaluation,
    key=("id",),
    indexes=(EVALUATIONS_OF_JOB, EVALUATIONS_BY_STATUS, EVALUATIONS_BY_QUOTA, EVALUATIONS_BY_LOCK),
    order=ListOrder.CREATED,
    write_index_fields=("create_index", "job_modify_index", "node_modify_index"),
    interned_fields=("namespace", "job_id", "node_id", "status_description"),
    # Most evaluations fail for the same reason as the one before.
    recurring_fields=("failed_tg_allocs", "class_eligibility", "queued_allocations", "plan_annotations"),
    is_adopted=True,
)

ALLOCATIONS_OF_JOB: Final = Index[Allocation]("job", "namespace", "job_id")
ALLOCATIONS_ON_NODE: Final = Index[Allocation]("node", "node_id")
"""All allocations on a node. Nearly all of 120,000 may have ended: read `UNFINISHED_ALLOCATIONS_ON_NODE` instead, or in slices."""


def _get_node_of_unfinished(allocation: Allocation) -> str | None:
    """Return the node of an allocation, or `None` if the node has reported its end."""
    return None if allocation.client_status in REPORTED_END_STATUSES else allocation.node_id


UNFINISHED_ALLOCATIONS_ON_NODE: Final = Index[Allocation]("unfinished", compute_value=_get_node_of_unfinished)
"""The allocations on a node whose end it has not reported: pending, running, unknown and lost ones.

They include all that use resources of the node, also those that should stop. Few are lost, because nothing is placed on a node
that may still run a lost allocation.
"""


def _get_node_of_high_report_number(allocation: Allocation) -> str | None:
    """Return the node of an allocation, or `None` if the log index alone gives a first report number above its number."""
    is_high = allocation.report_number // REPORT_NUMBERS_PER_INDEX > allocation.modify_index
    return allocation.node_id if is_high else None


HIGH_REPORT_NUMBERS_ON_NODE: Final = Index[Allocation]("report-number", compute_value=_get_node_of_high_report_number)
"""The allocations on a node whose report number is higher than those that servers assign at the current log index.

None, unless the log was replaced by an older copy unnoticed, or a node does not number its reports as servers say.
"""
ALLOCATIONS_OF_EVALUATION: Final = Index[Allocation]("evaluation", "eval_id")


class ElementPhase(enum.Enum):
    """Why an allocation of an array is in the index `ELEMENTS_OF_GROUP`."""

    ALIVE = 1  # It has not ended, or its node may still run it.
    AWAITS_RETRY = 2  # It ended without a result, and another allocation will run the element again.


def _get_element_phase(allocation: Allocation) -> tuple[str, str, int, str, ElementPhase] | None:
    """Return the group and the phase of an allocation of an array, or `None` for others and for those that do not count.

    The create index of the job separates it from a purged job with its ID, whose tasks may still be stopping.
    """
    if not allocation.array_attempt:
        return None
    if not allocation.client_status.is_terminal:
        phase = ElementPhase.ALIVE
    elif allocation.next_allocation or allocation.array_result:
        return None
    elif allocation.client_status is ClientStatus.FAILED and allocation.desired_status is DesiredStatus.RUN:
        phase = ElementPhase.AWAITS_RETRY
    elif allocation.reschedule_tracker is not None and allocation.desired_status is not DesiredStatus.RUN:
        # A step with `Retry` has a tracker from the beginning. Its next allocation has to know why this one ended.
        phase = ElementPhase.AWAITS_RETRY
    else:
        return None
    return allocation.namespace, allocation.job_id, allocation.job_create_index, allocation.task_group, phase


ELEMENTS_OF_GROUP: Final = Index[Allocation]("elements", compute_value=_get_element_phase)
"""The allocations of an array that decide what is placed next, by namespace, job, create index of the job, group
and phase.

All others of up to 100,000 have ended, so an evaluation must not read `ALLOCATIONS_OF_JOB`.
"""


def _get_held_lock(allocation: Allocation) -> tuple[str, str] | None:
    """Return the namespace and the lock of which an allocation holds a slot, or `None` if it holds none."""
    if not allocation.lock_key or allocation.client_status in REPORTED_END_STATUSES:
        return None
    return allocation.namespace, allocation.lock_key


LOCK_HOLDERS: Final = Index[Allocation]("lock", compute_value=_get_held_lock)
"""The allocations that hold a slot of a lock, by namespace and key: until their node reports their end.

A lost allocation of a deleted node is in the index too, and holds nothing. Read it with `list_lock_holders`.
"""
ALLOCATIONS: Final = Table(
    "allocations",
    Allocation,
    key=("id",),
    # There is no index by deployment: its allocations are filtered from those of its job. An index may have a million entries.
    indexes=(
        ALLOCATIONS_OF_JOB,
        ALLOCATIONS_ON_NODE,
        UNFINISHED_ALLOCATIONS_ON_NODE,
        HIGH_REPORT_NUMBERS_ON_NODE,
        ALLOCATIONS_OF_EVALUATION,
        ELEMENTS_OF_GROUP,
        LOCK_HOLDERS,
    ),
    order=ListOrder.CREATED,
    write_index_fields=("create_index", "alloc_modify_index", "deployment_status.modify_index"),
    interned_fields=(
        "namespace",
        "eval_id",
        "node_id",
        "node_name",
        "job_id",
        "task_group",
        "deployment_id",
        "signing_key_id",
        "lock_key",
    ),
    shared_fields={"allocated_resources": AllocatedResources, "metrics": AllocMetric},
    packed_fields={"task_states": dict[str, TaskState]},
    is_adopted=True,
)

ATTEMPTS_OF_JOB: Final = Index[ArrayAttempt]("job", "namespace", "job_id")
ARRAY_ATTEMPTS: Final = Table(
    "array_attempts",
    ArrayAttempt,
    key=("namespace", "job_id", "attempt"),
    indexes=(ATTEMPTS_OF_JOB,),
    write_index_fields=("create_index", "job_create_index"),
    is_adopted=True,
    since_format=4,
    # States of steps. Jobs with steps are refused before, so an older server never reads one.
    migrations=(SchemaMigration(5, dict, dict),),
)
RESULTS_OF_ATTEMPT: Final = Index[ArrayResults]("attempt", "namespace", "job_id", "attempt")
ARRAY_RESULTS: Final = Table(
    "array_results",
    ArrayResults,
    key=("namespace", "job_id", "attempt", "group", "chunk"),
    indexes=(RESULTS_OF_ATTEMPT,),
    interned_fields=("namespace", "job_id", "group"),
    is_adopted=True,
    since_format=4,
)

JOB_RESULTS: Final = Table(
    "job_results",
    JobResult,
    key=("namespace", "job_id"),
    write_index_fields=("create_index", "job_create_index"),
    interned_fields=("namespace", "job_id"),
    since_format=5,
)

OUTPUTS_OF_ATTEMPT: Final = Index[StepOutputs]("attempt", "namespace", "job_id", "attempt")
STEP_OUTPUTS: Final = Table(
    "step_outputs",
    StepOutputs,
    key=("namespace", "job_id", "attempt", "group"),
    indexes=(OUTPUTS_OF_ATTEMPT,),
    interned_fields=("namespace", "job_id", "group"),
    is_adopted=True,
    since_format=5,
)

DEPLOYMENTS_OF_JOB: Final = Index[Deployment]("job", "namespace", "job_id")
DEPLOYMENTS: Final = Table(
    "deployments",
    Deployment,
    key=("id",),
    indexes=(DEPLOYMENTS_OF_JOB,),
    order=ListOrder.CREATED,
    write_index_fields=("create_index", "job_modify_index", "job_spec_modify_index", "job_create_index"),
    interned_fields=("namespace", "job_id"),
    recurring_fields=("task_groups", "status_description"),
    is_adopted=True,
)

PERIODIC_LAUNCHES: Final = Table("periodic_launches", PeriodicLaunch, key=("namespace", "id"))


def _get_scaled_job(policy: ScalingPolicy) -> tuple[str, str] | None:
    """Return namespace and id of the job that a policy scales, or `None` if its target is not a job."""
    target = policy.target or {}
    return (target.get("Namespace", ""), target["Job"]) if "Job" in target else None


SCALING_POLICIES_OF_JOB: Final = Index[ScalingPolicy]("job", compute_value=_get_scaled_job)
SCALING_POLICIES: Final = Table("scaling_policies", ScalingPolicy, key=("id",), indexes=(SCALING_POLICIES_OF_JOB,))
SCALING_EVENTS: Final = Table(
    "scaling_events",
    JobScalingEvents,
    key=("namespace", "job_id"),
    write_index_fields=("create_index", "scaling_events.create_index"),
)

REGISTRATIONS_BY_NAME: Final = Index[ServiceRegistration]("name", "namespace", "service_name")
REGISTRATIONS_OF_JOB: Final = Index[ServiceRegistration]("job", "namespace", "job_id")
REGISTRATIONS_OF_ALLOCATION: Final = Index[ServiceRegistration]("allocation", "alloc_id")
REGISTRATIONS_ON_NODE: Final = Index[ServiceRegistration]("node", "node_id")
SERVICES: Final = Table(
    "services",
    ServiceRegistration,
    key=("namespace", "id"),
    indexes=(REGISTRATIONS_BY_NAME, REGISTRATIONS_OF_JOB, REGISTRATIONS_OF_ALLOCATION, REGISTRATIONS_ON_NODE),
    interned_fields=("namespace", "service_name", "node_id", "job_id", "datacenter"),
)

# -- machines ------------------------------------------------------------------------------------------------------

NODES_OF_POOL: Final = Index[Node]("pool", "node_pool")
NODES_BY_SECRET: Final = Index[Node]("secret", "secret_digest")
NODES: Final = Table(
    "nodes",
    Node,
    key=("id",),
    indexes=(NODES_OF_POOL, NODES_BY_SECRET),
    write_index_fields=(
        "create_index",
        "last_missed_heartbeat_index",
        "last_alloc_update_index",
        "events.create_index",
    ),
    interned_fields=("datacenter", "node_class", "node_pool", "computed_class"),
)
NODE_PLACEMENTS: Final = Table(
    "node_placements", NodeCapacityVersion, key=("node_id",), interned_fields=("node_id",), is_adopted=True
)
NODE_POOLS: Final = Table("node_pools", NodePool, key=("name",))
HOST_VOLUMES_ON_NODE: Final = Index[HostVolume]("node", "node_id")
HOST_VOLUMES: Final = Table(
    "host_volumes", HostVolume, key=("namespace", "id"), indexes=(HOST_VOLUMES_ON_NODE,), interned_fields=("node_id",)
)

# -- namespaces, quotas, access control and variables --------------------------------------------------------------

NAMESPACES_WITH_QUOTA: Final = Index[Namespace]("quota", "quota")
NAMESPACES: Final = Table("namespaces", Namespace, key=("name",), indexes=(NAMESPACES_WITH_QUOTA,))
QUOTAS: Final = Table("quotas", Quota, key=("name",))
ACL_POLICIES: Final = Table("acl_policies", Policy, key=("name",))
TOKENS_BY_SECRET: Final = Index[Token]("secret", "secret_digest")
TOKENS_BY_SEALING_KEY: Final = Index[Token]("key", "sealed_with")
TOKENS_BY_EXPIRY: Final = Index[Token]("expiry", compute_value=tokens.get_expiration_hour)
ACL_TOKENS: Final = Table(
    "acl_tokens",
    Token,
    key=("accessor_id",),
    indexes=(TOKENS_BY_SECRET, TOKENS_BY_SEALING_KEY, TOKENS_BY_EXPIRY),
    order=ListOrder.CREATED,
)
ACL_BOOTSTRAP: Final = Table("acl_bootstrap", AclBootstrap, key=())
ROLES_BY_NAME: Final = Index[Role]("name", "name")
ACL_ROLES: Final = Table("acl_roles", Role, key=("id",), indexes=(ROLES_BY_NAME,))
AUTH_METHODS_BY_SEALING_KEY: Final = Index[AuthMethod]("key", "sealed_with")
ACL_AUTH_METHODS: Final = Table("acl_auth_methods", AuthMethod, key=("name",), indexes=(AUTH_METHODS_BY_SEALING_KEY,))
BINDING_RULES_OF_METHOD: Final = Index[BindingRule]("method", "auth_method")
ACL_BINDING_RULES: Final = Table("acl_binding_rules", BindingRule, key=("id",), indexes=(BINDING_RULES_OF_METHOD,))
ONE_TIME_TOKENS_OF_TOKEN: Final = Index[OneTimeToken]("token", "accessor_id")
ONE_TIME_TOKENS: Final = Table(
    "one_time_tokens", OneTimeToken, key=("secret_digest",), indexes=(ONE_TIME_TOKENS_OF_TOKEN,)
)
PAGE_SESSIONS_OF_TOKEN: Final = Index[PageSession]("token", "accessor_id")
PAGE_SESSIONS: Final = Table(
    "page_sessions", PageSession, key=("secret_digest",), indexes=(PAGE_SESSIONS_OF_TOKEN,), since_format=3
)
VARIABLES_BY_SEALING_KEY: Final = Index[Variable]("key", "key_id")
VARIABLES: Final = Table("variables", Variable, key=("namespace", "path"), indexes=(VARIABLES_BY_SEALING_KEY,))

# -- the cluster itself --------------------------------------------------------------------------------------------

SCHEDULER_CONFIGURATION: Final = Table("scheduler_configuration", SchedulerConfiguration, key=())
AUTOPILOT_CONFIGURATION: Final = Table("autopilot_configuration", AutopilotConfiguration, key=())
MEMBERS: Final = Table("members", Member, key=("id",))
KNOWN_SERVERS: Final = Table("known_servers", KnownServer, key=("id",), since_format=2)
LEADER: Final = Table("leader", Leader, key=())
KEYRING_KEYS_BY_STATE: Final = Index[KeyringKey]("state", "state")
KEYRING: Final = Table("keyring", KeyringKey, key=("key_id",), indexes=(KEYRING_KEYS_BY_STATE,))
CLUSTER_FORMAT: Final = Table("format", RecordFormat, key=())
IDEMPOTENCY_KEYS_BY_SEALING_KEY: Final = Index[IdempotencyKey]("sealed-with", "sealed_with")
LARGE_SEALED_REPLY_BYTES: Final = 1_024
"""Larger stored replies count separately, because fewer of them fit into the memory of a server."""
IDEMPOTENCY_KEYS_OF_CALLER: Final = Index[IdempotencyKey](
    "caller",
    compute_value=lambda record: (record.caller, len(record.answer_sealed) > LARGE_SEALED_REPLY_BYTES),
)
IDEMPOTENCY_KEYS: Final = Table(
    "idempotency_keys",
    IdempotencyKey,
    key=("scope", "key"),
    indexes=(IDEMPOTENCY_KEYS_BY_SEALING_KEY, IDEMPOTENCY_KEYS_OF_CALLER),
    order=ListOrder.CREATED,
)

ALL_TABLES: Final[tuple[Table[Any], ...]] = (
    JOBS, JOB_VERSIONS, JOB_SUBMISSIONS, JOB_PURGES, JOB_SUMMARIES, EVALUATIONS, ALLOCATIONS, DEPLOYMENTS, PERIODIC_LAUNCHES,
    SCALING_POLICIES, SCALING_EVENTS, SERVICES, NODES, NODE_PLACEMENTS, NODE_POOLS, HOST_VOLUMES, NAMESPACES, QUOTAS,
    ACL_POLICIES, ACL_TOKENS, ACL_BOOTSTRAP, ACL_ROLES, ACL_AUTH_METHODS, ACL_BINDING_RULES, ONE_TIME_TOKENS, VARIABLES,
    SCHEDULER_CONFIGURATION, AUTOPILOT_CONFIGURATION, MEMBERS, LEADER, KEYRING, CLUSTER_FORMAT, IDEMPOTENCY_KEYS,
    KNOWN_SERVERS, PAGE_SESSIONS, ARRAY_ATTEMPTS, ARRAY_RESULTS, JOB_RESULTS, STEP_OUTPUTS,
)  # fmt: skip

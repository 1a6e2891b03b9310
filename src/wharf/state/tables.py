"""Every table of the cluster. A new kind of record gets a declaration here and nothing else in this package."""

from typing import Any, Final

from wharf.model import token
from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import Allocation
from wharf.model.auth_method import AuthMethod
from wharf.model.autopilot import AutopilotConfiguration
from wharf.model.binding_rule import BindingRule
from wharf.model.changes import join_key
from wharf.model.cluster import Format, IdempotencyKey, KeyringKey, Leader, Member, NodePlacement
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation
from wharf.model.host_volume import HostVolume
from wharf.model.job import Job
from wharf.model.metric import AllocMetric
from wharf.model.namespace import Namespace
from wharf.model.node import Node
from wharf.model.node_pool import NodePool
from wharf.model.periodic import PeriodicLaunch
from wharf.model.policy import Policy
from wharf.model.purge import JobPurge
from wharf.model.quota import Quota
from wharf.model.registration import ServiceRegistration
from wharf.model.role import Role
from wharf.model.scaling import ScalingPolicy
from wharf.model.scaling_event import JobScalingEvents
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.model.submission import Submission
from wharf.model.summary import JobSummary
from wharf.model.task_state import TaskState
from wharf.model.token import Bootstrap, OneTimeToken, Token
from wharf.model.variable import Variable
from wharf.state.table import Index, Order, Table, key_part

# -- work ----------------------------------------------------------------------------------------------------------

CHILDREN_OF_JOB: Final = Index[Job]("parent", "namespace", "parent_id")
JOBS_OF_POOL: Final = Index[Job]("pool", "node_pool")
JOBS_OF_TYPE: Final = Index[Job]("type", "type")
DISPATCHES_BY_TOKEN: Final = Index[Job]("dispatch", "namespace", "parent_id", "dispatch_idempotency_token")
# A job and its newest version say the same but for the status, and children say what their siblings say.
RECURRING_IN_JOBS: Final = (
    "datacenters", "constraints", "task_groups", "update", "periodic", "parameterized_job", "meta",
)  # fmt: skip
JOBS: Final = Table(
    "jobs",
    Job,
    key=("namespace", "id"),
    indexes=(CHILDREN_OF_JOB, JOBS_OF_POOL, JOBS_OF_TYPE, DISPATCHES_BY_TOKEN),
    stamped=("create_index", "job_modify_index"),
    interned=("namespace", "node_pool", "id", "name", "parent_id"),
    recurring=RECURRING_IN_JOBS,
    kin=("job_versions", lambda job: join_key(job.namespace, job.id, key_part(job.version))),
)

VERSIONS_OF_JOB: Final = Index[Job]("job", "namespace", "id")
JOB_VERSIONS: Final = Table(
    "job_versions",
    Job,
    key=("namespace", "id", "version"),
    indexes=(VERSIONS_OF_JOB,),
    stamped=("create_index", "job_modify_index"),
    interned=("namespace", "node_pool", "id", "name", "parent_id"),
    recurring=RECURRING_IN_JOBS,
    kin=("jobs", lambda version: join_key(version.namespace, version.id)),
)

SUBMISSIONS_OF_JOB: Final = Index[Submission]("job", "namespace", "job_id")
SUBMISSIONS: Final = Table(
    "job_submissions",
    Submission,
    key=("namespace", "job_id", "version"),
    indexes=(SUBMISSIONS_OF_JOB,),
    stamped=("create_index", "job_modify_index"),
)

JOB_PURGES: Final = Table(
    "job_purges",
    JobPurge,
    key=("namespace", "job_id", "job_create_index"),
    stamped=("create_index", "job_create_index"),
)

SUMMARIES: Final = Table(
    "job_summaries",
    JobSummary,
    key=("namespace", "job_id"),
    interned=("namespace", "job_id"),
    recurring=("summary", "children"),
)

EVALUATIONS_OF_JOB: Final = Index[Evaluation]("job", "namespace", "job_id")
EVALUATIONS_BY_STATUS: Final = Index[Evaluation]("status", "status")
EVALUATIONS: Final = Table(
    "evaluations",
    Evaluation,
    key=("id",),
    indexes=(EVALUATIONS_OF_JOB, EVALUATIONS_BY_STATUS),
    order=Order.CREATED,
    stamped=("create_index", "job_modify_index", "node_modify_index"),
    interned=("namespace", "job_id", "node_id", "status_description"),
    # Most fail for the reason for which the one before failed.
    recurring=("failed_tg_allocs", "class_eligibility", "queued_allocations", "plan_annotations"),
)

ALLOCATIONS_OF_JOB: Final = Index[Allocation]("job", "namespace", "job_id")
ALLOCATIONS_ON_NODE: Final = Index[Allocation]("node", "node_id")
ALLOCATIONS_OF_EVALUATION: Final = Index[Allocation]("evaluation", "eval_id")
ALLOCATIONS: Final = Table(
    "allocations",
    Allocation,
    key=("id",),
    # No index by deployment: its allocations are found among its job's. Each index costs a million entries.
    indexes=(ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, ALLOCATIONS_OF_EVALUATION),
    order=Order.CREATED,
    stamped=("create_index", "alloc_modify_index", "deployment_status.modify_index"),
    interned=("namespace", "eval_id", "node_id", "node_name", "job_id", "task_group", "deployment_id"),
    shared={"allocated_resources": AllocatedResources, "metrics": AllocMetric},
    packed={"task_states": dict[str, TaskState]},
    is_adopted=True,
)

DEPLOYMENTS_OF_JOB: Final = Index[Deployment]("job", "namespace", "job_id")
DEPLOYMENTS: Final = Table(
    "deployments",
    Deployment,
    key=("id",),
    indexes=(DEPLOYMENTS_OF_JOB,),
    order=Order.CREATED,
    stamped=("create_index", "job_modify_index", "job_spec_modify_index", "job_create_index"),
    interned=("namespace", "job_id"),
    recurring=("task_groups", "status_description"),
)

PERIODIC_LAUNCHES: Final = Table("periodic_launches", PeriodicLaunch, key=("namespace", "id"))


def _scaled_job(policy: ScalingPolicy) -> tuple[str, str] | None:
    target = policy.target or {}
    return (target.get("Namespace", ""), target["Job"]) if "Job" in target else None


POLICIES_OF_JOB: Final = Index[ScalingPolicy]("job", computed=_scaled_job)
SCALING_POLICIES: Final = Table("scaling_policies", ScalingPolicy, key=("id",), indexes=(POLICIES_OF_JOB,))
SCALING_EVENTS: Final = Table(
    "scaling_events",
    JobScalingEvents,
    key=("namespace", "job_id"),
    stamped=("create_index", "scaling_events.create_index"),
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
    interned=("namespace", "service_name", "node_id", "job_id", "datacenter"),
)

# -- machines ------------------------------------------------------------------------------------------------------

NODES_OF_POOL: Final = Index[Node]("pool", "node_pool")
NODES_BY_SECRET: Final = Index[Node]("secret", "secret_digest")
NODES: Final = Table(
    "nodes",
    Node,
    key=("id",),
    indexes=(NODES_OF_POOL, NODES_BY_SECRET),
    stamped=("create_index", "last_missed_heartbeat_index", "last_alloc_update_index", "events.create_index"),
    interned=("datacenter", "node_class", "node_pool", "computed_class"),
)
NODE_PLACEMENTS: Final = Table(
    "node_placements", NodePlacement, key=("node_id",), interned=("node_id",), is_adopted=True
)
NODE_POOLS: Final = Table("node_pools", NodePool, key=("name",))
HOST_VOLUMES_ON_NODE: Final = Index[HostVolume]("node", "node_id")
HOST_VOLUMES: Final = Table(
    "host_volumes", HostVolume, key=("namespace", "id"), indexes=(HOST_VOLUMES_ON_NODE,), interned=("node_id",)
)

# -- people and their rights ---------------------------------------------------------------------------------------

NAMESPACES_WITH_QUOTA: Final = Index[Namespace]("quota", "quota")
NAMESPACES: Final = Table("namespaces", Namespace, key=("name",), indexes=(NAMESPACES_WITH_QUOTA,))
QUOTAS: Final = Table("quotas", Quota, key=("name",))
ACL_POLICIES: Final = Table("acl_policies", Policy, key=("name",))
TOKENS_BY_SECRET: Final = Index[Token]("secret", "secret_digest")
TOKENS_SEALED_WITH: Final = Index[Token]("key", "sealed_with")
TOKENS_BY_EXPIRY: Final = Index[Token]("expiry", computed=token.expires_in_hour)
ACL_TOKENS: Final = Table(
    "acl_tokens",
    Token,
    key=("accessor_id",),
    indexes=(TOKENS_BY_SECRET, TOKENS_SEALED_WITH, TOKENS_BY_EXPIRY),
    order=Order.CREATED,
)
ACL_BOOTSTRAP: Final = Table("acl_bootstrap", Bootstrap, key=())
ROLES_BY_NAME: Final = Index[Role]("name", "name")
ACL_ROLES: Final = Table("acl_roles", Role, key=("id",), indexes=(ROLES_BY_NAME,))
METHODS_SEALED_WITH: Final = Index[AuthMethod]("key", "sealed_with")
ACL_AUTH_METHODS: Final = Table("acl_auth_methods", AuthMethod, key=("name",), indexes=(METHODS_SEALED_WITH,))
RULES_OF_METHOD: Final = Index[BindingRule]("method", "auth_method")
ACL_BINDING_RULES: Final = Table("acl_binding_rules", BindingRule, key=("id",), indexes=(RULES_OF_METHOD,))
ONE_TIME_TOKENS: Final = Table("one_time_tokens", OneTimeToken, key=("secret_digest",))
VARIABLES_SEALED_WITH: Final = Index[Variable]("key", "key_id")
VARIABLES: Final = Table("variables", Variable, key=("namespace", "path"), indexes=(VARIABLES_SEALED_WITH,))

# -- the cluster itself --------------------------------------------------------------------------------------------

SCHEDULER_CONFIGURATION: Final = Table("scheduler_configuration", SchedulerConfiguration, key=())
AUTOPILOT_CONFIGURATION: Final = Table("autopilot_configuration", AutopilotConfiguration, key=())
MEMBERS: Final = Table("members", Member, key=("id",))
LEADER: Final = Table("leader", Leader, key=())
KEYS_BY_STATE: Final = Index[KeyringKey]("state", "state")
KEYRING: Final = Table("keyring", KeyringKey, key=("key_id",), indexes=(KEYS_BY_STATE,))
FORMAT: Final = Table("format", Format, key=())
IDEMPOTENCY_KEYS_SEALED_WITH: Final = Index[IdempotencyKey]("sealed-with", "sealed_with")
IDEMPOTENCY_KEYS: Final = Table(
    "idempotency_keys", IdempotencyKey, key=("scope", "key"), indexes=(IDEMPOTENCY_KEYS_SEALED_WITH,)
)

ALL_TABLES: Final[tuple[Table[Any], ...]] = (
    JOBS, JOB_VERSIONS, SUBMISSIONS, JOB_PURGES, SUMMARIES, EVALUATIONS, ALLOCATIONS, DEPLOYMENTS, PERIODIC_LAUNCHES,
    SCALING_POLICIES, SCALING_EVENTS, SERVICES, NODES, NODE_PLACEMENTS, NODE_POOLS, HOST_VOLUMES, NAMESPACES, QUOTAS,
    ACL_POLICIES, ACL_TOKENS, ACL_BOOTSTRAP, ACL_ROLES, ACL_AUTH_METHODS, ACL_BINDING_RULES, ONE_TIME_TOKENS, VARIABLES,
    SCHEDULER_CONFIGURATION, AUTOPILOT_CONFIGURATION, MEMBERS, LEADER, KEYRING, FORMAT, IDEMPOTENCY_KEYS,
)  # fmt: skip

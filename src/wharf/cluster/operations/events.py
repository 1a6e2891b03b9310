"""What a batch of the log tells those who listen: which records it touched, under which topic, type and key.

Pure, and without a word of how it crosses the wire. One commit gives one type to everything it touched, by its kind.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from wharf.cluster.access import Rights
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    ACL_POLICIES,
    ACL_ROLES,
    ACL_TOKENS,
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    HOST_VOLUMES,
    JOBS,
    NODE_POOLS,
    NODES,
    SERVICES,
    VARIABLES,
)
from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.permissions import Permission
from wharf.contract.model.refusal import invalid_request

WILDCARD: Final = "*"
"""Every topic, every key, every namespace."""


class EventTopic(StrEnum):
    JOB = "Job"
    EVALUATION = "Evaluation"
    ALLOCATION = "Allocation"
    DEPLOYMENT = "Deployment"
    NODE = "Node"
    NODE_POOL = "NodePool"
    SERVICE = "Service"
    VARIABLE = "Variable"
    HOST_VOLUME = "HostVolume"
    TOKEN = "ACLToken"
    POLICY = "ACLPolicy"
    ROLE = "ACLRole"
    AUTH_METHOD = "ACLAuthMethod"
    BINDING_RULE = "ACLBindingRule"


TOPIC_PERMISSIONS: Final[Mapping[str, Permission]] = MappingProxyType({
    EventTopic.JOB: permissions.READ_JOB,
    EventTopic.EVALUATION: permissions.READ_JOB,
    EventTopic.ALLOCATION: permissions.READ_JOB,
    EventTopic.DEPLOYMENT: permissions.READ_JOB,
    EventTopic.SERVICE: permissions.READ_JOB,
    EventTopic.NODE: permissions.READ_NODE,
    EventTopic.NODE_POOL: permissions.MANAGEMENT_TOKEN,
    EventTopic.VARIABLE: permissions.LIST_VARIABLES,
    EventTopic.HOST_VOLUME: permissions.READ_HOST_VOLUME,
    EventTopic.TOKEN: permissions.MANAGEMENT_TOKEN,
    EventTopic.POLICY: permissions.MANAGEMENT_TOKEN,
    EventTopic.ROLE: permissions.MANAGEMENT_TOKEN,
    EventTopic.AUTH_METHOD: permissions.MANAGEMENT_TOKEN,
    EventTopic.BINDING_RULE: permissions.MANAGEMENT_TOKEN,
    "Operator": permissions.READ_OPERATOR,
    "CSIVolume": permissions.READ_CSI_VOLUME,
    "CSIPlugin": permissions.READ_JOB,
    WILDCARD: permissions.MANAGEMENT_TOKEN,
})  # fmt: skip
"""What it takes to listen to a topic. Of topics that nobody knows nothing is ever told, so they need nothing."""


class ChangedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as a batch left it; `is_gone`: as it stood when the batch took it away."""

    table: str
    record: Any
    is_deleted: bool = False


class ClusterEvent(msgspec.Struct, frozen=True, gc=False):
    """`filter_keys` None: it can be asked for by its key alone."""

    topic: EventTopic
    type: str
    key: str
    namespace: str
    filter_keys: tuple[str, ...] | None
    record: Any
    is_deleted: bool


class EventMapping(msgspec.Struct, frozen=True, kw_only=True):
    """How the records of a table are told: the types are those of commits whose kind says nothing better."""

    topic: EventTopic
    stored_type: str
    deleted_type: str = ""
    """Empty: what is collected goes without a word."""
    get_key: Callable[[Any], str]
    get_filter_keys: Callable[[Any], tuple[str, ...]] | None = None
    get_namespace: Callable[[Any], str] = lambda _record: ""


def _namespace(record: Any) -> str:
    namespace: str = record.namespace
    return namespace


def _upserted(topic: EventTopic, key: Callable[[Any], str], **more: Any) -> EventMapping:
    return EventMapping(
        topic=topic, stored_type=f"{topic}Upserted", deleted_type=f"{topic}Deleted", get_key=key, **more
    )


EVENT_MAPPINGS: Final[Mapping[str, EventMapping]] = MappingProxyType({
    JOBS.name: EventMapping(
        topic=EventTopic.JOB, stored_type="JobRegistered", deleted_type="JobDeregistered", get_key=lambda job: job.id, get_namespace=_namespace
    ),
    EVALUATIONS.name: EventMapping(
        topic=EventTopic.EVALUATION, stored_type="EvaluationUpdated", get_key=lambda each: each.id, get_namespace=_namespace,
        get_filter_keys=lambda each: (each.job_id, each.deployment_id),
    ),
    ALLOCATIONS.name: EventMapping(
        topic=EventTopic.ALLOCATION, stored_type="AllocationUpdated", get_key=lambda each: each.id, get_namespace=_namespace,
        get_filter_keys=lambda each: (each.job_id, each.deployment_id),
    ),
    DEPLOYMENTS.name: EventMapping(
        topic=EventTopic.DEPLOYMENT, stored_type="DeploymentStatusUpdate", get_key=lambda each: each.id, get_namespace=_namespace,
        get_filter_keys=lambda each: (each.job_id,),
    ),
    NODES.name: EventMapping(
        topic=EventTopic.NODE, stored_type="NodeRegistration", deleted_type="NodeDeregistration", get_key=lambda node: node.id
    ),
    NODE_POOLS.name: _upserted(EventTopic.NODE_POOL, lambda pool: pool.name),
    SERVICES.name: EventMapping(
        topic=EventTopic.SERVICE, stored_type="ServiceRegistration", deleted_type="ServiceDeregistration", get_key=lambda each: each.id,
        get_namespace=_namespace, get_filter_keys=lambda each: (each.job_id, each.service_name),
    ),
    VARIABLES.name: EventMapping(
        topic=EventTopic.VARIABLE, stored_type="VariableUpdated", deleted_type="VariableUpdated", get_key=lambda each: each.path,
        get_namespace=_namespace,
    ),
    HOST_VOLUMES.name: EventMapping(
        topic=EventTopic.HOST_VOLUME, stored_type="HostVolumeRegistered", deleted_type="HostVolumeDeleted", get_key=lambda _each: "",
        get_namespace=_namespace, get_filter_keys=lambda each: (each.id, each.name, each.plugin_id),
    ),
    ACL_TOKENS.name: _upserted(EventTopic.TOKEN, lambda token: token.accessor_id),
    ACL_POLICIES.name: _upserted(EventTopic.POLICY, lambda policy: policy.name),
    ACL_ROLES.name: _upserted(EventTopic.ROLE, lambda role: role.id, get_filter_keys=lambda role: (role.name,)),
    ACL_AUTH_METHODS.name: _upserted(EventTopic.AUTH_METHOD, lambda method: method.name),
    ACL_BINDING_RULES.name: _upserted(
        EventTopic.BINDING_RULE, lambda rule: rule.id, get_filter_keys=lambda rule: (rule.auth_method,)
    ),
})  # fmt: skip

EVENT_TYPES: Final[Mapping[str, str]] = MappingProxyType({
    "job-registered": "JobRegistered",
    "job-dispatched": "JobRegistered",
    "job-scaled": "JobRegistered",
    "periodic-job-launched": "JobRegistered",
    "job-version-tagged": "JobRegistered",
    "job-version-untagged": "JobRegistered",
    "job-version-marked": "JobRegistered",
    "job-deregistered": "JobDeregistered",
    "job-purged": "JobDeregistered",
    "job-purge-continued": "JobDeregistered",
    "job-evaluated": "EvaluationUpdated",
    "jobs-settled": "EvaluationUpdated",
    "evaluation-failed": "EvaluationUpdated",
    "evaluations-unblocked": "EvaluationUpdated",
    "node-evaluated": "EvaluationUpdated",
    "plan": "PlanResult",
    "node-registered": "NodeRegistration",
    "node-purged": "NodeDeregistration",
    "node-updated": "NodeStreamEvent",
    "node-eligibility": "NodeEligibility",
    "node-drain": "NodeDrain",
    "node-reported": "AllocationUpdated",
    "allocation-stopped": "AllocationUpdateDesiredStatus",
    "allocations-marked": "AllocationUpdateDesiredStatus",
    "allocation-health": "DeploymentAllocHealth",
    "deployment-promoted": "DeploymentPromotion",
    "canaries-promoted": "DeploymentPromotion",
    "deployment-paused": "DeploymentStatusUpdate",
    "deployment-resumed": "DeploymentStatusUpdate",
    "deployment-unblocked": "DeploymentStatusUpdate",
    "deployment-timed-anew": "DeploymentStatusUpdate",
    "deployment-failed": "DeploymentStatusUpdate",
})  # fmt: skip
"""The type of everything that a commit of this kind touched."""


def build_events(kind: str, changes: Iterable[ChangedRecord]) -> list[ClusterEvent]:
    """What a commit tells, in the order of its changes."""
    told = []
    for change in changes:
        telling = EVENT_MAPPINGS[change.table]
        if change.is_deleted and not telling.deleted_type:
            continue
        record = change.record
        own = telling.deleted_type if change.is_deleted else telling.stored_type
        told.append(
            ClusterEvent(
                topic=telling.topic,
                type=EVENT_TYPES.get(kind, own),
                key=telling.get_key(record),
                namespace=telling.get_namespace(record),
                filter_keys=telling.get_filter_keys(record) if telling.get_filter_keys is not None else None,
                record=record,
                is_deleted=change.is_deleted,
            )
        )
    return told


# -- who wants to hear what ----------------------------------------------------------------------------------------


class EventFilter(msgspec.Struct, frozen=True):
    """Topic to keys, and the namespaces that are asked for. `namespace` is as asked: one, or all."""

    topics: Mapping[str, frozenset[str]]
    namespace: str
    namespaces: frozenset[str]

    def matches(self, event: ClusterEvent) -> bool:
        if event.namespace and event.namespace not in self.namespaces:
            return False
        return any(_fits(self.topics.get(topic, frozenset()), event) for topic in (event.topic, WILDCARD))

    def is_allowed_for(self, rights: Rights) -> bool:
        """Whether all that is asked for may be heard, as far as the question tells."""
        return all(_may_hear(rights, topic, self.namespace) for topic in self.topics)


def _fits(keys: frozenset[str], event: ClusterEvent) -> bool:
    return WILDCARD in keys or event.key in keys or not keys.isdisjoint(event.filter_keys or ())


def _may_hear(rights: Rights, topic: str, namespace: str) -> bool:
    needed = TOPIC_PERMISSIONS.get(topic)
    if needed is None:
        return True
    if topic == EventTopic.VARIABLE:
        return rights.satisfies_anywhere(needed)
    return rights.satisfies(needed, namespace=namespace)


def is_event_visible(rights: Rights, event: ClusterEvent) -> bool:
    """Whether this very event may be heard."""
    return rights.is_management or rights.satisfies(
        TOPIC_PERMISSIONS[event.topic], namespace=event.namespace, path=event.key
    )


def parse_topics(queries: Sequence[str]) -> dict[str, frozenset[str]]:
    """`Topic` or `Topic:key`, each as often as wanted; none is everything."""
    topics: dict[str, set[str]] = {}
    for text in queries:
        topic, colon, key = text.partition(":")
        if ":" in key:
            raise invalid_request(
                f"Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: {text}"
            )
        topics.setdefault(topic, set()).add(key if colon else WILDCARD)
    return {topic: frozenset(keys) for topic, keys in topics.items()} or {WILDCARD: frozenset({WILDCARD})}

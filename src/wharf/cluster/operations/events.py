"""Event stream: which events a committed batch produces, and which of them a subscriber may receive.

Pure functions; encoding and transport are elsewhere. One commit gives all its events the same type, chosen by the
kind of the write.
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
    ARRAY_ATTEMPTS,
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
"""Selects every topic, key or namespace."""


class EventTopic(StrEnum):
    """The topics of the event stream, with Nomad's names, where Nomad has them."""

    JOB = "Job"
    EVALUATION = "Evaluation"
    ALLOCATION = "Allocation"
    ATTEMPT = "Attempt"  # Of the arrays and the steps of a job. Not in Nomad.
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
    EventTopic.ATTEMPT: permissions.READ_JOB,
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
"""The permission that a subscription to the topic requires. Unknown topics never produce events and require none."""


class ChangedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that a committed batch stored or deleted."""

    table: str  # The name of the table.
    record: Any  # The record after the batch; if it was deleted, before the batch.
    is_deleted: bool = False  # The batch deleted the record.


class ClusterEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of the stream, about one changed record."""

    topic: EventTopic
    type: str  # The event type, such as `JobRegistered`.
    key: str  # Usually the id of the record. Subscribers can select events by it.
    namespace: str  # Empty if the record belongs to no namespace.
    filter_keys: tuple[str, ...] | None
    """Further keys that select the event; for an allocation its job and its deployment."""
    record: Any  # If `is_deleted`, the record before its deletion.
    is_deleted: bool  # The batch deleted the record.


class EventMapping(msgspec.Struct, frozen=True, kw_only=True):
    """How changes of one table become events."""

    topic: EventTopic
    stored_type: str  # The event type of a stored record, unless `EVENT_TYPES` has one for the kind of the write.
    deleted_type: str = ""
    """The event type of a deleted record; empty: the deletion produces no event."""
    get_key: Callable[[Any], str]  # Returns the main key of a record's event.
    get_filter_keys: Callable[[Any], tuple[str, ...]] | None = None
    """Returns further keys by which subscribers can select the event."""
    get_namespace: Callable[[Any], str] = lambda _record: ""  # Returns the namespace of a record's event.


def _get_namespace(record: Any) -> str:
    """Return the namespace of a record."""
    namespace: str = record.namespace
    return namespace


def _make_upsert_mapping(topic: EventTopic, key: Callable[[Any], str], **more: Any) -> EventMapping:
    """Return the event mapping of a topic whose event types are `<topic>Upserted` and `<topic>Deleted`.

    `key` returns the key of a record, and `more` are further fields of the mapping.
    """
    return EventMapping(
        topic=topic, stored_type=f"{topic}Upserted", deleted_type=f"{topic}Deleted", get_key=key, **more
    )


EVENT_MAPPINGS: Final[Mapping[str, EventMapping]] = MappingProxyType({
    JOBS.name: EventMapping(
        topic=EventTopic.JOB, stored_type="JobRegistered", deleted_type="JobDeregistered", get_key=lambda job: job.id, get_namespace=_get_namespace
    ),
    EVALUATIONS.name: EventMapping(
        topic=EventTopic.EVALUATION, stored_type="EvaluationUpdated", get_key=lambda record: record.id, get_namespace=_get_namespace,
        get_filter_keys=lambda record: (record.job_id, record.deployment_id),
    ),
    ALLOCATIONS.name: EventMapping(
        topic=EventTopic.ALLOCATION, stored_type="AllocationUpdated", get_key=lambda record: record.id, get_namespace=_get_namespace,
        get_filter_keys=lambda record: (record.job_id, record.deployment_id),
    ),
    ARRAY_ATTEMPTS.name: EventMapping(
        topic=EventTopic.ATTEMPT, stored_type="AttemptUpdated", get_key=lambda attempt: attempt.job_id, get_namespace=_get_namespace
    ),
    DEPLOYMENTS.name: EventMapping(
        topic=EventTopic.DEPLOYMENT, stored_type="DeploymentStatusUpdate", get_key=lambda record: record.id, get_namespace=_get_namespace,
        get_filter_keys=lambda record: (record.job_id,),
    ),
    NODES.name: EventMapping(
        topic=EventTopic.NODE, stored_type="NodeRegistration", deleted_type="NodeDeregistration", get_key=lambda node: node.id
    ),
    NODE_POOLS.name: _make_upsert_mapping(EventTopic.NODE_POOL, lambda pool: pool.name),
    SERVICES.name: EventMapping(
        topic=EventTopic.SERVICE, stored_type="ServiceRegistration", deleted_type="ServiceDeregistration", get_key=lambda record: record.id,
        get_namespace=_get_namespace, get_filter_keys=lambda record: (record.job_id, record.service_name),
    ),
    VARIABLES.name: EventMapping(
        topic=EventTopic.VARIABLE, stored_type="VariableUpdated", deleted_type="VariableUpdated", get_key=lambda record: record.path,
        get_namespace=_get_namespace,
    ),
    HOST_VOLUMES.name: EventMapping(
        topic=EventTopic.HOST_VOLUME, stored_type="HostVolumeRegistered", deleted_type="HostVolumeDeleted", get_key=lambda _volume: "",
        get_namespace=_get_namespace, get_filter_keys=lambda record: (record.id, record.name, record.plugin_id),
    ),
    ACL_TOKENS.name: _make_upsert_mapping(EventTopic.TOKEN, lambda token: token.accessor_id),
    ACL_POLICIES.name: _make_upsert_mapping(EventTopic.POLICY, lambda policy: policy.name),
    ACL_ROLES.name: _make_upsert_mapping(EventTopic.ROLE, lambda role: role.id, get_filter_keys=lambda role: (role.name,)),
    ACL_AUTH_METHODS.name: _make_upsert_mapping(EventTopic.AUTH_METHOD, lambda method: method.name),
    ACL_BINDING_RULES.name: _make_upsert_mapping(
        EventTopic.BINDING_RULE, lambda rule: rule.id, get_filter_keys=lambda rule: (rule.auth_method,)
    ),
})  # fmt: skip
"""By table name, how a change of a record becomes an event. Tables without an entry produce none."""

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
"""By kind of write, the type of all events of a commit of this kind."""


def build_events(write_kind: str, changes: Iterable[ChangedRecord]) -> list[ClusterEvent]:
    """Return the events of one commit: first those of the records that its type names, such as the job of a registration,
    then those of other stored records, and deletions last.

    Events of the same rank are in the order of the changes. `write_kind` is the name of the write in the log.
    """
    events = []
    for change in changes:
        mapping = EVENT_MAPPINGS[change.table]
        if change.is_deleted and not mapping.deleted_type:
            continue
        record = change.record
        default_type = mapping.deleted_type if change.is_deleted else mapping.stored_type
        events.append(
            ClusterEvent(
                topic=mapping.topic,
                type=EVENT_TYPES.get(write_kind, default_type),
                key=mapping.get_key(record),
                namespace=mapping.get_namespace(record),
                filter_keys=mapping.get_filter_keys(record) if mapping.get_filter_keys is not None else None,
                record=record,
                is_deleted=change.is_deleted,
            )
        )
    events.sort(key=lambda event: (event.is_deleted, not event.type.startswith(event.topic)))
    return events


# -- subscriptions ----------------------------------------------------------------------------------------


class EventFilter(msgspec.Struct, frozen=True):
    """The events that a subscriber selects, and the namespaces that it may read."""

    topics: Mapping[str, frozenset[str]]  # By topic (or `*`), the selected keys; `*` selects every key.
    namespace: str  # The requested namespace, or `*` for all.
    namespaces: frozenset[str]  # The namespaces whose events are sent.

    def matches(self, event: ClusterEvent) -> bool:
        """Return whether the event is in a namespace that the subscriber may read and has a selected topic and key."""
        if event.namespace and event.namespace not in self.namespaces:
            return False
        return any(_matches_keys(self.topics.get(topic, frozenset()), event) for topic in (event.topic, WILDCARD))

    def find_forbidden_topic(self, rights: Rights) -> str | None:
        """Return the first topic to which these rights allow no subscription, or `None`. Single events are checked later.

        Unknown topics are allowed: they have no events.
        """
        topics = (topic for topic in TOPIC_PERMISSIONS if topic in self.topics)
        return next((topic for topic in topics if not _can_subscribe(rights, topic, self.namespace)), None)


def _matches_keys(keys: frozenset[str], event: ClusterEvent) -> bool:
    """Return whether one of the subscriber's keys, or the wildcard `*`, selects the event."""
    return WILDCARD in keys or event.key in keys or not keys.isdisjoint(event.filter_keys or ())


def _can_subscribe(rights: Rights, topic: str, namespace: str) -> bool:
    """Return whether these rights allow a subscription to the topic in the namespace."""
    permission = TOPIC_PERMISSIONS[topic]
    if topic == EventTopic.VARIABLE:
        return rights.satisfies_anywhere(permission)
    return rights.satisfies(permission, namespace=namespace)


def is_event_visible(rights: Rights, event: ClusterEvent) -> bool:
    """Return whether these rights allow the caller to receive this event."""
    return rights.is_management or rights.satisfies(
        TOPIC_PERMISSIONS[event.topic], namespace=event.namespace, path=event.key
    )


def parse_topics(queries: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the keys to select for each topic, from texts of the form `Topic` or `Topic:key`.

    `Topic` selects all its keys, and an empty list selects everything. Raises if a text has two colons.
    """
    topics: dict[str, set[str]] = {}
    for text in queries:
        topic, colon, key = text.partition(":")
        if ":" in key:
            raise invalid_request(
                f"Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: {text}"
            )
        topics.setdefault(topic, set()).add(key if colon else WILDCARD)
    return {topic: frozenset(keys) for topic, keys in topics.items()} or {WILDCARD: frozenset({WILDCARD})}

"""What a batch of the log tells those who listen: which records it touched, under which topic, type and key.

Pure, and without a word of how it crosses the wire. One commit gives one type to everything it touched, by its kind.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from wharf.access import Rights
from wharf.model import need
from wharf.model.need import Need
from wharf.model.refusal import invalid
from wharf.state.tables import (
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

ALL: Final = "*"
"""Every topic, every key, every namespace."""


class Topic(StrEnum):
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


NEEDS: Final[Mapping[str, Need]] = MappingProxyType({
    Topic.JOB: need.READ_JOB,
    Topic.EVALUATION: need.READ_JOB,
    Topic.ALLOCATION: need.READ_JOB,
    Topic.DEPLOYMENT: need.READ_JOB,
    Topic.SERVICE: need.READ_JOB,
    Topic.NODE: need.READ_NODE,
    Topic.NODE_POOL: need.MANAGEMENT,
    Topic.VARIABLE: need.LIST_VARIABLES,
    Topic.HOST_VOLUME: need.READ_HOST_VOLUME,
    Topic.TOKEN: need.MANAGEMENT,
    Topic.POLICY: need.MANAGEMENT,
    Topic.ROLE: need.MANAGEMENT,
    Topic.AUTH_METHOD: need.MANAGEMENT,
    Topic.BINDING_RULE: need.MANAGEMENT,
    "Operator": need.READ_OPERATOR,
    "CSIVolume": need.READ_CSI_VOLUME,
    "CSIPlugin": need.READ_JOB,
    ALL: need.MANAGEMENT,
})  # fmt: skip
"""What it takes to listen to a topic. Of topics that nobody knows nothing is ever told, so they need nothing."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """A record as a batch left it; `is_gone`: as it stood when the batch took it away."""

    table: str
    record: Any
    is_gone: bool = False


class Event(msgspec.Struct, frozen=True, gc=False):
    """`filter_keys` None: it can be asked for by its key alone."""

    topic: Topic
    type: str
    key: str
    namespace: str
    filter_keys: tuple[str, ...] | None
    record: Any
    is_gone: bool


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """How the records of a table are told: the types are those of commits whose kind says nothing better."""

    topic: Topic
    stored: str
    gone: str = ""
    """Empty: what is collected goes without a word."""
    key: Callable[[Any], str]
    filter_keys: Callable[[Any], tuple[str, ...]] | None = None
    namespace: Callable[[Any], str] = lambda _record: ""


def _namespace(record: Any) -> str:
    namespace: str = record.namespace
    return namespace


def _upserted(topic: Topic, key: Callable[[Any], str], **more: Any) -> Telling:
    return Telling(topic=topic, stored=f"{topic}Upserted", gone=f"{topic}Deleted", key=key, **more)


TOLD: Final[Mapping[str, Telling]] = MappingProxyType({
    JOBS.name: Telling(
        topic=Topic.JOB, stored="JobRegistered", gone="JobDeregistered", key=lambda job: job.id, namespace=_namespace
    ),
    EVALUATIONS.name: Telling(
        topic=Topic.EVALUATION, stored="EvaluationUpdated", key=lambda each: each.id, namespace=_namespace,
        filter_keys=lambda each: (each.job_id, each.deployment_id),
    ),
    ALLOCATIONS.name: Telling(
        topic=Topic.ALLOCATION, stored="AllocationUpdated", key=lambda each: each.id, namespace=_namespace,
        filter_keys=lambda each: (each.job_id, each.deployment_id),
    ),
    DEPLOYMENTS.name: Telling(
        topic=Topic.DEPLOYMENT, stored="DeploymentStatusUpdate", key=lambda each: each.id, namespace=_namespace,
        filter_keys=lambda each: (each.job_id,),
    ),
    NODES.name: Telling(
        topic=Topic.NODE, stored="NodeRegistration", gone="NodeDeregistration", key=lambda node: node.id
    ),
    NODE_POOLS.name: _upserted(Topic.NODE_POOL, lambda pool: pool.name),
    SERVICES.name: Telling(
        topic=Topic.SERVICE, stored="ServiceRegistration", gone="ServiceDeregistration", key=lambda each: each.id,
        namespace=_namespace, filter_keys=lambda each: (each.job_id, each.service_name),
    ),
    VARIABLES.name: Telling(
        topic=Topic.VARIABLE, stored="VariableUpdated", gone="VariableUpdated", key=lambda each: each.path,
        namespace=_namespace,
    ),
    HOST_VOLUMES.name: Telling(
        topic=Topic.HOST_VOLUME, stored="HostVolumeRegistered", gone="HostVolumeDeleted", key=lambda _each: "",
        namespace=_namespace, filter_keys=lambda each: (each.id, each.name, each.plugin_id),
    ),
    ACL_TOKENS.name: _upserted(Topic.TOKEN, lambda token: token.accessor_id),
    ACL_POLICIES.name: _upserted(Topic.POLICY, lambda policy: policy.name),
    ACL_ROLES.name: _upserted(Topic.ROLE, lambda role: role.id, filter_keys=lambda role: (role.name,)),
    ACL_AUTH_METHODS.name: _upserted(Topic.AUTH_METHOD, lambda method: method.name),
    ACL_BINDING_RULES.name: _upserted(
        Topic.BINDING_RULE, lambda rule: rule.id, filter_keys=lambda rule: (rule.auth_method,)
    ),
})  # fmt: skip

TYPES: Final[Mapping[str, str]] = MappingProxyType({
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


def events_of(kind: str, changes: Iterable[Change]) -> list[Event]:
    """What a commit tells, in the order of its changes."""
    told = []
    for change in changes:
        telling = TOLD[change.table]
        if change.is_gone and not telling.gone:
            continue
        record = change.record
        own = telling.gone if change.is_gone else telling.stored
        told.append(
            Event(
                topic=telling.topic,
                type=TYPES.get(kind, own),
                key=telling.key(record),
                namespace=telling.namespace(record),
                filter_keys=telling.filter_keys(record) if telling.filter_keys is not None else None,
                record=record,
                is_gone=change.is_gone,
            )
        )
    return told


# -- who wants to hear what ----------------------------------------------------------------------------------------


class Interest(msgspec.Struct, frozen=True):
    """Topic to keys, and the namespaces that are asked for. `namespace` is as asked: one, or all."""

    topics: Mapping[str, frozenset[str]]
    namespace: str
    namespaces: frozenset[str]

    def matches(self, event: Event) -> bool:
        if event.namespace and event.namespace not in self.namespaces:
            return False
        return any(_fits(self.topics.get(topic, frozenset()), event) for topic in (event.topic, ALL))

    def is_open_to(self, rights: Rights) -> bool:
        """Whether all that is asked for may be heard, as far as the question tells."""
        return all(_may_hear(rights, topic, self.namespace) for topic in self.topics)


def _fits(keys: frozenset[str], event: Event) -> bool:
    return ALL in keys or event.key in keys or not keys.isdisjoint(event.filter_keys or ())


def _may_hear(rights: Rights, topic: str, namespace: str) -> bool:
    needed = NEEDS.get(topic)
    if needed is None:
        return True
    if topic == Topic.VARIABLE:
        return rights.meet_somewhere(needed)
    return rights.meet(needed, namespace=namespace)


def may_hear(rights: Rights, event: Event) -> bool:
    """Whether this very event may be heard."""
    return rights.is_management or rights.meet(NEEDS[event.topic], namespace=event.namespace, path=event.key)


def parse_topics(given: Sequence[str]) -> dict[str, frozenset[str]]:
    """`Topic` or `Topic:key`, each as often as wanted; none is everything."""
    topics: dict[str, set[str]] = {}
    for text in given:
        topic, colon, key = text.partition(":")
        if ":" in key:
            raise invalid(f"Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: {text}")
        topics.setdefault(topic, set()).add(key if colon else ALL)
    return {topic: frozenset(keys) for topic, keys in topics.items()} or {ALL: frozenset({ALL})}

"""The last changes in the cluster, in words."""

from typing import Final

import msgspec

from wharf.contract.wire.events import RecentEvent, RecentEvents
from wharf.web.rendering import build_link, format_age
from wharf.web.views.people import Author, Names, name_author

CHOICES: Final = (
    ("jobs", "Job", "Jobs"),
    ("allocations", "Allocation", "Allocations"),
    ("evaluations", "Evaluation", "Evaluations"),
    ("rollouts", "Deployment", "Rollouts"),
    ("nodes", "Node", "Nodes"),
    ("services", "Service", "Services"),
    ("variables", "Variable", "Variables"),
    ("volumes", "HostVolume", "Volumes"),
    ("tokens", "ACLToken", "Tokens"),
    ("policies", "ACLPolicy", "Policies"),
)
"""What can be selected: the word in the address, the topic, and the text."""
TOPIC_BY_CHOICE: Final = {choice: topic for choice, topic, _text in CHOICES}
KIND_BY_TOPIC: Final = {
    "Job": "job",
    "Allocation": "allocation",
    "Evaluation": "evaluation",
    "Deployment": "rollout",
    "Node": "node",
    "NodePool": "node pool",
    "Service": "service",
    "Variable": "variable",
    "HostVolume": "volume",
    "ACLToken": "token",
    "ACLPolicy": "policy",
    "ACLRole": "role",
    "ACLAuthMethod": "auth method",
    "ACLBindingRule": "binding rule",
}
TEXT_BY_TYPE: Final = {
    "JobRegistered": "Job registered",
    "JobDeregistered": "Job deregistered",
    "AllocationCreated": "Allocation created",
    "AllocationUpdated": "Allocation changed",
    "AllocationUpdateDesiredStatus": "Allocation to be stopped or restarted",
    "EvaluationUpdated": "Evaluation changed",
    "PlanResult": "Placed by the scheduler",
    "DeploymentStatusUpdate": "Rollout changed",
    "DeploymentPromotion": "Rollout promoted",
    "DeploymentAllocHealth": "Health of allocations changed",
    "NodeRegistration": "Node registered",
    "NodeDeregistration": "Node removed",
    "NodeEligibility": "Eligibility of a node changed",
    "NodeDrain": "Drain of a node changed",
    "NodeEvent": "Event of a node",
    "NodeStreamEvent": "State of a node changed",
    "ServiceRegistration": "Service registered",
    "ServiceDeregistration": "Service deregistered",
    "VariableUpdated": "Variable changed or deleted",
    "HostVolumeRegistered": "Volume registered",
    "HostVolumeDeleted": "Volume deleted",
    "NodePoolUpserted": "Node pool stored",
    "NodePoolDeleted": "Node pool deleted",
    "ACLTokenUpserted": "Token stored",
    "ACLTokenDeleted": "Token deleted",
    "ACLPolicyUpserted": "Policy stored",
    "ACLPolicyDeleted": "Policy deleted",
    "ACLRoleUpserted": "Role stored",
    "ACLRoleDeleted": "Role deleted",
    "ACLAuthMethodUpserted": "Auth method stored",
    "ACLAuthMethodDeleted": "Auth method deleted",
    "ACLBindingRuleUpserted": "Binding rule stored",
    "ACLBindingRuleDeleted": "Binding rule deleted",
}
"""Words for the types of events. All records that one write changed have the same type. Other types are shown as the API names them."""

TEXT_BY_TOPIC: Final = {
    ("Evaluation", "PlanResult"): "Evaluation processed by the scheduler",
    ("Allocation", "PlanResult"): "Placed, changed or stopped by the scheduler",
    ("Deployment", "PlanResult"): "Rollout begun or changed by the scheduler",
}
"""Words for events whose type says less than the record that it is about. They win over `TEXT_BY_TYPE`."""


class ChangeRow(msgspec.Struct, frozen=True):
    """A change."""

    index: int
    text: str
    kind: str
    name: str
    url: str
    """The page of the object; empty if it has none."""
    detail: str
    author: Author | None
    age: str
    time_ns: int


class Choice(msgspec.Struct, frozen=True):
    """A kind of change that can be selected."""

    text: str
    url: str
    is_selected: bool


class ActivityView(msgspec.Struct, frozen=True):
    """The page of the last changes."""

    rows: tuple[ChangeRow, ...]
    choices: tuple[Choice, ...]
    reach: str
    """How long ago the oldest change was that the page has."""


def build_activity_view(
    recent: RecentEvents, choice: str, namespace: str, now_ns: int, names: Names | None = None
) -> ActivityView:
    """Return the page of the last changes."""
    choices = [Choice("All", build_link("activity", namespace=namespace), not choice)]
    choices += [
        Choice(text, build_link("activity", kind=name, namespace=namespace), name == choice)
        for name, _topic, text in CHOICES
    ]
    time_by_index: dict[int, int] = {}
    for event in recent.events:
        time_by_index[event.index] = max(event.time, time_by_index.get(event.index, 0))
    rows = tuple(_build_row(event, time_by_index[event.index], now_ns, names or {}) for event in recent.events)
    reach = format_age(rows[-1].time_ns, now_ns) if rows else ""
    return ActivityView(rows, tuple(choices), reach)


def _build_row(event: RecentEvent, time_ns: int, now_ns: int, names: Names) -> ChangeRow:
    details = []
    if event.job_id and event.topic != "Allocation":
        details.append(f"job {event.job_id}")
    if event.namespace and event.namespace != "default":
        details.append(f"in {event.namespace}")
    return ChangeRow(
        index=event.index,
        text=TEXT_BY_TOPIC.get((event.topic, event.type)) or TEXT_BY_TYPE.get(event.type, event.type),
        kind=KIND_BY_TOPIC.get(event.topic, event.topic),
        name=event.name or (event.key[:8] if len(event.key) == 36 else event.key),
        url=_find_url(event),
        detail=", ".join(details),
        author=name_author(event.accessor_id, names),
        age=format_age(time_ns, now_ns),
        time_ns=time_ns,
    )


def _find_url(event: RecentEvent) -> str:
    """Return the page of the object that changed; empty if it has none."""
    namespace = event.namespace if event.namespace != "default" else ""
    match event.topic:
        case "Job":
            return build_link("jobs", event.key, namespace=namespace)
        case "Allocation":
            return build_link("allocations", event.key)
        case "Node":
            return build_link("nodes", event.key)
        case "Evaluation" | "Deployment":
            return build_link("jobs", event.job_id, namespace=namespace)
        case "Variable":
            return build_link("variables", event.key, namespace=namespace)
        case "HostVolume":
            return build_link("volumes", event.key, namespace=namespace)
        case "NodePool":
            return build_link("pools", event.key)
        case "ACLPolicy":
            return build_link("access", "policies", event.key)
        case _:
            return ""

"""Several policies as one: what each label and scope has when all of them are put together (reference 5.4, rule 2).

Capabilities of one label are united, and a deny leaves nothing else. No order of the policies makes a difference.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from wharf.cluster.access.policies.labels import unite_capabilities
from wharf.cluster.access.policies.levels import (
    HOST_VOLUME_LEVELS,
    NAMESPACE_COVERS,
    NAMESPACE_LEVELS,
    OPERATOR_LEVELS,
    POOL_LEVELS,
    VARIABLE_COVERS,
    expand_capabilities,
)
from wharf.cluster.access.policies.rules import OperatorRule, PolicyRules
from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    PolicyScope,
    VariableCapability,
)

K = TypeVar("K", bound=StrEnum)

PATH_SEPARATOR: Final = "\0"
"""Stands between namespace and path. Neither may hold it, so a glob over both never runs over the border."""
# What comes first counts; `scale` is none of them, as it grants nothing.
_STRENGTH: Final = (PolicyLevel.DENY, PolicyLevel.WRITE, PolicyLevel.READ, PolicyLevel.LIST)


@dataclass(frozen=True, slots=True)
class PolicyGrants:
    """What is granted, by label and scope. A denied label has deny and nothing else."""

    namespaces: Mapping[str, frozenset[Capability]] = field(default_factory=dict)
    variables: Mapping[str, frozenset[VariableCapability]] = field(default_factory=dict)
    node_pools: Mapping[str, frozenset[NodePoolCapability]] = field(default_factory=dict)
    host_volumes: Mapping[str, frozenset[HostVolumeMountCapability]] = field(default_factory=dict)
    operator: frozenset[OperatorCapability] = frozenset()
    levels: Mapping[PolicyScope, PolicyLevel] = field(default_factory=dict)


def merge_policies(policies: Iterable[PolicyRules]) -> PolicyGrants:
    policies = list(policies)
    levels = {scope: level for scope in _LEVELLED if (level := _strongest(policies, scope)) is not None}
    return PolicyGrants(
        namespaces=_by_label(
            (
                rule.name,
                expand_capabilities((*rule.capabilities, *_of_level(rule.policy, NAMESPACE_LEVELS)), NAMESPACE_COVERS),
            )
            for rules in policies
            for rule in rules.namespaces
        ),
        variables=_by_label(
            (f"{rule.name}{PATH_SEPARATOR}{path.path}", expand_capabilities(path.capabilities, VARIABLE_COVERS))
            for rules in policies
            for rule in rules.namespaces
            for path in (rule.variables.paths if rule.variables else ())
        ),
        node_pools=_by_label(
            (rule.name, frozenset((*rule.capabilities, *_of_level(rule.policy, POOL_LEVELS))))
            for rules in policies
            for rule in rules.node_pools
        ),
        host_volumes=_by_label(
            (rule.name, frozenset((*rule.capabilities, *_of_level(rule.policy, HOST_VOLUME_LEVELS))))
            for rules in policies
            for rule in rules.host_volumes
        ),
        operator=unite_capabilities(_of_operator(rule) for rules in policies for rule in rules.operator),
        levels=levels,
    )


_LEVELLED: Final = (PolicyScope.AGENT, PolicyScope.NODE, PolicyScope.OPERATOR, PolicyScope.QUOTA, PolicyScope.PLUGIN)


def _levels(rules: PolicyRules, scope: PolicyScope) -> Iterable[PolicyLevel | None]:
    match scope:
        case PolicyScope.AGENT:
            found = rules.agent
        case PolicyScope.NODE:
            found = rules.node
        case PolicyScope.QUOTA:
            found = rules.quota
        case PolicyScope.PLUGIN:
            found = rules.plugin
        case _:
            # A deny of operators denies all that operators may, however it is written.
            denied = (PolicyLevel.DENY for rule in rules.operator if OperatorCapability.DENY in rule.capabilities)
            return (*denied, *(rule.policy for rule in rules.operator))
    return tuple(rule.policy for rule in found)


def _strongest(policies: Iterable[PolicyRules], scope: PolicyScope) -> PolicyLevel | None:
    given = {level for rules in policies for level in _levels(rules, scope)}
    return next((level for level in _STRENGTH if level in given), None)


def _of_operator(rule: OperatorRule) -> frozenset[OperatorCapability]:
    return frozenset((*rule.capabilities, *_of_level(rule.policy, OPERATOR_LEVELS)))


def _of_level(level: PolicyLevel | None, levels: Mapping[PolicyLevel, tuple[K, ...]]) -> tuple[K, ...]:
    return levels[level] if level is not None else ()


def _by_label(granted: Iterable[tuple[str, frozenset[K]]]) -> dict[str, frozenset[K]]:
    by_label: dict[str, list[frozenset[K]]] = {}
    for label, capabilities in granted:
        by_label.setdefault(label, []).append(capabilities)
    return {label: unite_capabilities(sets) for label, sets in by_label.items()}

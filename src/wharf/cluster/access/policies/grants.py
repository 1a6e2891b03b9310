"""Merges several policies: what they grant together for each label and scope (reference 5.4, rule 2).

Capabilities of one label are united; a deny overrides all others. The order of the policies makes no difference.
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
"""Separates namespace and path. Neither may contain it, so a glob never matches across it."""
# The first level that is granted wins. `scale` is missing because it grants nothing.
_LEVELS_BY_STRENGTH: Final = (PolicyLevel.DENY, PolicyLevel.WRITE, PolicyLevel.READ, PolicyLevel.LIST)


@dataclass(frozen=True, slots=True)
class PolicyGrants:
    """What is granted, by label and scope. A denied label has only `deny`."""

    namespaces: Mapping[str, frozenset[Capability]] = field(default_factory=dict)
    variables: Mapping[str, frozenset[VariableCapability]] = field(default_factory=dict)
    node_pools: Mapping[str, frozenset[NodePoolCapability]] = field(default_factory=dict)
    host_volumes: Mapping[str, frozenset[HostVolumeMountCapability]] = field(default_factory=dict)
    operator: frozenset[OperatorCapability] = frozenset()
    levels: Mapping[PolicyScope, PolicyLevel] = field(default_factory=dict)


def merge_policies(policies: Iterable[PolicyRules]) -> PolicyGrants:
    """Merge policies to what they grant together."""
    policies = list(policies)
    levels = {
        scope: level for scope in _SCOPES_WITH_LEVEL if (level := _find_strongest_level(policies, scope)) is not None
    }
    return PolicyGrants(
        namespaces=_unite_by_label(
            (
                rule.name,
                expand_capabilities(
                    (*rule.capabilities, *_expand_level(rule.policy, NAMESPACE_LEVELS)), NAMESPACE_COVERS
                ),
            )
            for rules in policies
            for rule in rules.namespaces
        ),
        variables=_unite_by_label(
            (f"{rule.name}{PATH_SEPARATOR}{path.path}", expand_capabilities(path.capabilities, VARIABLE_COVERS))
            for rules in policies
            for rule in rules.namespaces
            for path in (rule.variables.paths if rule.variables else ())
        ),
        node_pools=_unite_by_label(
            (rule.name, frozenset((*rule.capabilities, *_expand_level(rule.policy, POOL_LEVELS))))
            for rules in policies
            for rule in rules.node_pools
        ),
        host_volumes=_unite_by_label(
            (rule.name, frozenset((*rule.capabilities, *_expand_level(rule.policy, HOST_VOLUME_LEVELS))))
            for rules in policies
            for rule in rules.host_volumes
        ),
        operator=unite_capabilities(_expand_operator_rule(rule) for rules in policies for rule in rules.operator),
        levels=levels,
    )


_SCOPES_WITH_LEVEL: Final = (
    PolicyScope.AGENT,
    PolicyScope.NODE,
    PolicyScope.OPERATOR,
    PolicyScope.QUOTA,
    PolicyScope.PLUGIN,
)


def _list_levels(rules: PolicyRules, scope: PolicyScope) -> Iterable[PolicyLevel | None]:
    """Return the levels that one policy gives for a scope."""
    match scope:
        case PolicyScope.AGENT:
            level_rules = rules.agent
        case PolicyScope.NODE:
            level_rules = rules.node
        case PolicyScope.QUOTA:
            level_rules = rules.quota
        case PolicyScope.PLUGIN:
            level_rules = rules.plugin
        case _:
            # A denied operator capability denies the whole scope, like the level `deny`.
            denied = (PolicyLevel.DENY for rule in rules.operator if OperatorCapability.DENY in rule.capabilities)
            return (*denied, *(rule.policy for rule in rules.operator))
    return tuple(rule.policy for rule in level_rules)


def _find_strongest_level(policies: Iterable[PolicyRules], scope: PolicyScope) -> PolicyLevel | None:
    """Return the strongest level of a scope in any of the policies; None if no policy has one."""
    levels = {level for rules in policies for level in _list_levels(rules, scope)}
    return next((level for level in _LEVELS_BY_STRENGTH if level in levels), None)


def _expand_operator_rule(rule: OperatorRule) -> frozenset[OperatorCapability]:
    return frozenset((*rule.capabilities, *_expand_level(rule.policy, OPERATOR_LEVELS)))


def _expand_level(level: PolicyLevel | None, levels: Mapping[PolicyLevel, tuple[K, ...]]) -> tuple[K, ...]:
    """Return the capabilities that a level stands for."""
    return levels[level] if level is not None else ()


def _unite_by_label(granted: Iterable[tuple[str, frozenset[K]]]) -> dict[str, frozenset[K]]:
    """Unite the capabilities of each label."""
    by_label: dict[str, list[frozenset[K]]] = {}
    for label, capabilities in granted:
        by_label.setdefault(label, []).append(capabilities)
    return {label: unite_capabilities(sets) for label, sets in by_label.items()}

"""What a policy says, once its text is read: each scope with its label, level and capabilities, as they were written.

These are also what `RulesJSON` shows. What a level comes down to is told in `expansion`.
"""

import msgspec

from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    VariableCapability,
)
from wharf.contract.model.record import Record


class PathRule(Record):
    """What may be done with the variables under a path of a namespace."""

    path: str
    capabilities: tuple[VariableCapability, ...] = ()


class VariablesRule(Record):
    paths: tuple[PathRule, ...] = ()


class NamespaceRule(Record):
    name: str
    policy: PolicyLevel | None = None
    capabilities: tuple[Capability, ...] = ()
    variables: VariablesRule | None = None


class NodePoolRule(Record):
    name: str
    policy: PolicyLevel | None = None
    capabilities: tuple[NodePoolCapability, ...] = ()


class HostVolumeRule(Record):
    name: str
    policy: PolicyLevel | None = None
    capabilities: tuple[HostVolumeMountCapability, ...] = ()


class LevelRule(Record):
    """A scope that has a level only."""

    policy: PolicyLevel | None = None


class OperatorRule(Record):
    policy: PolicyLevel | None = None
    capabilities: tuple[OperatorCapability, ...] = ()


class SentinelRule(Record):
    """Read, shown and without effect: there is nothing here that it could be about."""

    policy: PolicyLevel | None = None
    capabilities: tuple[str, ...] = ()


class PolicyRules(Record):
    """A policy. In each of the last six a document speaks once; where an older one repeats itself, all of it counts."""

    namespaces: tuple[NamespaceRule, ...] = ()
    node_pools: tuple[NodePoolRule, ...] = ()
    host_volumes: tuple[HostVolumeRule, ...] = ()
    agent: tuple[LevelRule, ...] = ()
    node: tuple[LevelRule, ...] = ()
    operator: tuple[OperatorRule, ...] = ()
    quota: tuple[LevelRule, ...] = ()
    plugin: tuple[LevelRule, ...] = ()
    sentinel: tuple[SentinelRule, ...] = ()


class PolicyRulesView(Record):
    """The form of `RulesJSON`: what is not in the policy is null."""

    agent: LevelRule | None
    host_volumes: tuple[HostVolumeRule, ...] | None
    namespaces: tuple[NamespaceRule, ...] | None
    node: LevelRule | None
    node_pools: tuple[NodePoolRule, ...] | None
    operator: OperatorRule | None
    plugin: LevelRule | None
    quota: LevelRule | None
    sentinel: SentinelRule | None


def build_rules_view(rules: PolicyRules) -> PolicyRulesView:
    return PolicyRulesView(
        agent=_only(rules.agent),
        host_volumes=rules.host_volumes or None,
        namespaces=rules.namespaces or None,
        node=_only(rules.node),
        node_pools=rules.node_pools or None,
        operator=rules.operator[0] if rules.operator else None,
        plugin=_only(rules.plugin),
        quota=_only(rules.quota),
        sentinel=rules.sentinel[0] if rules.sentinel else None,
    )


def encode_rules(rules: PolicyRules) -> bytes:
    return msgspec.json.encode(build_rules_view(rules))


def _only(rules: tuple[LevelRule, ...]) -> LevelRule | None:
    return rules[0] if rules else None

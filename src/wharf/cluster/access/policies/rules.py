"""The rules of a parsed policy: each scope with its label, level and capabilities, as written.

`RulesJSON` shows these records, so their field names are part of the API. `levels` says what a level stands for.
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
    """The capabilities for the variables under a path of a namespace."""

    path: str
    capabilities: tuple[VariableCapability, ...] = ()


class VariablesRule(Record):
    """The `variables` block of a namespace."""

    paths: tuple[PathRule, ...] = ()


class NamespaceRule(Record):
    """A `namespace` block."""

    name: str
    policy: PolicyLevel | None = None
    capabilities: tuple[Capability, ...] = ()
    variables: VariablesRule | None = None


class NodePoolRule(Record):
    """A `node_pool` block."""

    name: str
    policy: PolicyLevel | None = None
    capabilities: tuple[NodePoolCapability, ...] = ()


class HostVolumeRule(Record):
    """A `host_volume` block."""

    name: str
    policy: PolicyLevel | None = None
    capabilities: tuple[HostVolumeMountCapability, ...] = ()


class LevelRule(Record):
    """A block of a scope that has only a level."""

    policy: PolicyLevel | None = None


class OperatorRule(Record):
    """The `operator` block."""

    policy: PolicyLevel | None = None
    capabilities: tuple[OperatorCapability, ...] = ()


class SentinelRule(Record):
    """The `sentinel` block. It is parsed and shown but has no effect, because there are no Sentinel policies."""

    policy: PolicyLevel | None = None
    capabilities: tuple[str, ...] = ()


class PolicyRules(Record):
    """A policy. Each of the last six scopes may have one block; in older stored policies that repeat a block, all
    count."""

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
    """The format of `RulesJSON`: a scope that is not in the policy is null."""

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
    """Build the `RulesJSON` view of a policy."""
    return PolicyRulesView(
        agent=_get_first(rules.agent),
        host_volumes=rules.host_volumes or None,
        namespaces=rules.namespaces or None,
        node=_get_first(rules.node),
        node_pools=rules.node_pools or None,
        operator=rules.operator[0] if rules.operator else None,
        plugin=_get_first(rules.plugin),
        quota=_get_first(rules.quota),
        sentinel=rules.sentinel[0] if rules.sentinel else None,
    )


def encode_rules(rules: PolicyRules) -> bytes:
    """Encode a policy as `RulesJSON`."""
    return msgspec.json.encode(build_rules_view(rules))


def _get_first(rules: tuple[LevelRule, ...]) -> LevelRule | None:
    return rules[0] if rules else None

"""Generated policies, their text in HCL and JSON, and helper functions for rights."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum

from hypothesis import strategies as st

from wharf.cluster.access import Rights, parse_policy
from wharf.cluster.access.policies.grants import merge_policies
from wharf.cluster.access.policies.rules import (
    HostVolumeRule,
    LevelRule,
    NamespaceRule,
    NodePoolRule,
    OperatorRule,
    PathRule,
    PolicyRules,
    VariablesRule,
)
from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    PolicyScope,
    VariableCapability,
)


def rights(*texts: str) -> Rights:
    """Return the rights that these policies grant together."""
    return Rights(merge_policies(map(parse_policy, texts)))


def allowed_in(granted_rights: Rights, namespace: str) -> set[Capability]:
    return {capability for capability in Capability if granted_rights.allows_namespace(namespace, capability)} - {
        Capability.DENY
    }


# Few letters, so that generated labels and names often match.
LABELS = st.text("ab*-", min_size=1, max_size=5)
NAMES = st.text("ab-", min_size=1, max_size=6)
PATHS = st.text("ab*/", min_size=1, max_size=5)
PLAIN_PATHS = st.text("ab/", min_size=1, max_size=6)


def _some_capabilities(kind: type[StrEnum], *, with_deny: bool) -> st.SearchStrategy[tuple[StrEnum, ...]]:
    members = [member for member in kind if with_deny or member != "deny"]
    return st.lists(st.sampled_from(members), max_size=3, unique=True).map(tuple)


def _optional_level(*levels: PolicyLevel, with_deny: bool) -> st.SearchStrategy[PolicyLevel | None]:
    return st.none() | st.sampled_from([level for level in levels if with_deny or level is not PolicyLevel.DENY])


def some_rules(
    *, with_deny: bool = True, labels: st.SearchStrategy[str] = LABELS, paths: st.SearchStrategy[str] = PATHS
) -> st.SearchStrategy[PolicyRules]:
    """Return a strategy for policies. `with_deny=False` generates no denials."""
    path = st.builds(PathRule, path=paths, capabilities=_some_capabilities(VariableCapability, with_deny=with_deny))
    variables = st.builds(VariablesRule, paths=st.lists(path, min_size=1, max_size=2).map(tuple))
    plain = _optional_level(PolicyLevel.DENY, PolicyLevel.READ, PolicyLevel.WRITE, with_deny=with_deny)
    scaled = _optional_level(
        PolicyLevel.DENY, PolicyLevel.READ, PolicyLevel.WRITE, PolicyLevel.SCALE, with_deny=with_deny
    )
    level = st.lists(st.builds(LevelRule, policy=scaled), max_size=1).map(tuple)
    namespace = st.builds(
        NamespaceRule,
        name=labels,
        policy=scaled,
        capabilities=_some_capabilities(Capability, with_deny=with_deny),
        variables=st.none() | variables,
    )
    pool = st.builds(
        NodePoolRule,
        name=labels,
        policy=plain,
        capabilities=_some_capabilities(NodePoolCapability, with_deny=with_deny),
    )
    volume = st.builds(
        HostVolumeRule,
        name=labels,
        policy=plain,
        capabilities=_some_capabilities(HostVolumeMountCapability, with_deny=with_deny),
    )
    operator = st.builds(
        OperatorRule, policy=scaled, capabilities=_some_capabilities(OperatorCapability, with_deny=with_deny)
    )
    plugin = st.builds(
        LevelRule,
        policy=_optional_level(
            PolicyLevel.DENY, PolicyLevel.LIST, PolicyLevel.READ, PolicyLevel.WRITE, with_deny=with_deny
        ),
    )
    return st.builds(
        PolicyRules,
        namespaces=st.lists(namespace, max_size=3).map(tuple),
        node_pools=st.lists(pool, max_size=2).map(tuple),
        host_volumes=st.lists(volume, max_size=2).map(tuple),
        agent=level,
        node=level,
        operator=st.lists(operator, max_size=1).map(tuple),
        quota=level,
        plugin=st.lists(plugin, max_size=1).map(tuple),
    )


Granted = frozenset[tuple[str, ...]]


def list_granted(granted_rights: Rights, names: Iterable[str], paths: Sequence[str]) -> Granted:
    """Return every right on these names and paths that is granted."""
    found: set[tuple[str, ...]] = set()
    for name in (*names, "*"):
        found |= {
            ("namespace", name, c) for c in Capability if c != "deny" and granted_rights.allows_namespace(name, c)
        }
    for name in names:
        found |= {("any right", name) for _ in [0] if granted_rights.allows_any_in(name)}
        found |= {
            ("pool", name, c) for c in NodePoolCapability if c != "deny" and granted_rights.allows_node_pool(name, c)
        }
        found |= {
            ("volume", name, c)
            for c in HostVolumeMountCapability
            if c != "deny" and granted_rights.allows_host_volume(name, c)
        }
        found |= {
            ("variable", name, path, c)
            for path in paths
            for c in VariableCapability
            if c != "deny" and granted_rights.allows_variable(name, path, c)
        }
    found |= {
        ("level", scope, level)
        for scope in (PolicyScope.AGENT, PolicyScope.NODE, PolicyScope.OPERATOR, PolicyScope.QUOTA, PolicyScope.PLUGIN)
        for level in (PolicyLevel.LIST, PolicyLevel.READ, PolicyLevel.WRITE)
        if granted_rights.allows_level(scope, level)
    }
    found |= {("operator", c) for c in OperatorCapability if c != "deny" and granted_rights.allows_operator(c)}
    return frozenset(found)


# -- encoding ------------------------------------------------------------------------------------------------------


def as_hcl(rules: PolicyRules) -> str:
    """Return the policy as HCL."""
    blocks = [
        *(
            _block(f'namespace "{r.name}"', r.policy, r.capabilities, _variables_as_hcl(r.variables))
            for r in rules.namespaces
        ),
        *(_block(f'node_pool "{r.name}"', r.policy, r.capabilities) for r in rules.node_pools),
        *(_block(f'host_volume "{r.name}"', r.policy, r.capabilities) for r in rules.host_volumes),
        *(_block(scope, r.policy, ()) for scope, found in _list_level_rules(rules) for r in found),
        *(_block("operator", r.policy, r.capabilities) for r in rules.operator),
    ]
    return "\n".join(blocks)


def _list_level_rules(rules: PolicyRules) -> list[tuple[str, tuple[LevelRule, ...]]]:
    return [("agent", rules.agent), ("node", rules.node), ("quota", rules.quota), ("plugin", rules.plugin)]


def _block(head: str, policy: PolicyLevel | None, capabilities: Sequence[str], remaining_fields: str = "") -> str:
    level = f'policy = "{policy}"\n' if policy else ""
    listed = f"capabilities = {json.dumps(list(capabilities))}\n" if capabilities else ""
    return f"{head} {{\n{level}{listed}{remaining_fields}}}"


def _variables_as_hcl(variables: VariablesRule | None) -> str:
    if variables is None:
        return ""
    paths = "".join(
        f'path "{path.path}" {{ capabilities = {json.dumps(list(path.capabilities))} }}\n' for path in variables.paths
    )
    return f"variables {{\n{paths}}}\n"


def as_json(rules: PolicyRules) -> str:
    """Return the policy as JSON. A label may occur twice, so each scope is a list of objects with one label each."""
    document: dict[str, object] = {
        "namespace": [
            {r.name: _fields(r.policy, r.capabilities) | _variables_as_json(r.variables)} for r in rules.namespaces
        ],
        "node_pool": [{r.name: _fields(r.policy, r.capabilities)} for r in rules.node_pools],
        "host_volume": [{r.name: _fields(r.policy, r.capabilities)} for r in rules.host_volumes],
        "operator": [_fields(r.policy, r.capabilities) for r in rules.operator],
        **{scope: [_fields(r.policy, ()) for r in found] for scope, found in _list_level_rules(rules)},
    }
    return json.dumps(document)


def _fields(policy: PolicyLevel | None, capabilities: Sequence[str]) -> dict[str, object]:
    return {"policy": policy, "capabilities": list(capabilities)} if capabilities else {"policy": policy}


def _variables_as_json(variables: VariablesRule | None) -> dict[str, object]:
    if variables is None:
        return {}
    return {"variables": {"path": [{path.path: {"capabilities": list(path.capabilities)}} for path in variables.paths]}}

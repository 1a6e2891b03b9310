"""Merged policies (reference 5.4, rule 2): properties that always hold, and examples."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.access.policies import NAMES, PLAIN_PATHS, allowed_in, list_granted, rights, some_rules
from wharf.cluster.access import Rights
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

POLICIES = st.lists(some_rules(), max_size=4)
SOME_NAMES = st.lists(NAMES, min_size=1, max_size=3)
SOME_PATHS = st.lists(PLAIN_PATHS, min_size=1, max_size=3)
FIXED_LABELS = ("*", "a*", "ab", "b-*")
FIXED_PATHS = ("*", "a/*", "a/b")


def merge_and_list(policies: Sequence[PolicyRules], names: list[str], paths: list[str]) -> frozenset[tuple[str, ...]]:
    return list_granted(Rights(merge_policies(policies)), names, paths)


@given(POLICIES, st.randoms(use_true_random=False), SOME_NAMES, SOME_PATHS)
def test_the_order_of_policies_makes_no_difference(
    policies: list[PolicyRules], random: object, names: list[str], paths: list[str]
) -> None:
    shuffled = list(policies)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis declares its random as an object

    assert merge_policies(policies) == merge_policies(shuffled)
    assert merge_and_list(policies, names, paths) == merge_and_list(shuffled, names, paths)


@given(POLICIES, SOME_NAMES, SOME_PATHS)
def test_merging_a_policy_twice_makes_no_difference(
    policies: list[PolicyRules], names: list[str], paths: list[str]
) -> None:
    assert merge_and_list(policies, names, paths) == merge_and_list([*policies, *policies], names, paths)


@given(POLICIES, some_rules(), SOME_NAMES, SOME_PATHS)
def test_a_deny_never_adds_rights(
    policies: list[PolicyRules], rules: PolicyRules, names: list[str], paths: list[str]
) -> None:
    before = merge_and_list(policies, names, paths)

    assert merge_and_list([*policies, deny_all(rules)], names, paths) <= before


@given(st.lists(some_rules(with_deny=False), max_size=3), some_rules(with_deny=False), SOME_NAMES, SOME_PATHS)
def test_a_policy_without_deny_and_new_labels_never_removes_rights(
    policies: list[PolicyRules], added: PolicyRules, names: list[str], paths: list[str]
) -> None:
    # A new label may be a closer match for a name. Then only the new label applies to it (rule 3).
    same_labels = without_grants(added)
    before = merge_and_list([*policies, same_labels], names, paths)

    assert before <= merge_and_list([*policies, same_labels, added], names, paths)


@given(
    st.lists(some_rules(labels=st.sampled_from(FIXED_LABELS), paths=st.sampled_from(FIXED_PATHS)), max_size=3),
    SOME_NAMES,
    SOME_PATHS,
)
def test_a_deny_of_one_policy_is_not_lifted_by_another(
    policies: list[PolicyRules], names: list[str], paths: list[str]
) -> None:
    denied = [deny_all(policy) for policy in policies]

    assert merge_and_list([*policies, *denied, *policies], names, paths) == merge_and_list(
        [*policies, *denied], names, paths
    )


def deny_all(rules: PolicyRules) -> PolicyRules:
    """Return rules with the same labels and scopes that deny everything."""

    def path(rule: PathRule) -> PathRule:
        return PathRule(path=rule.path, capabilities=(VariableCapability.DENY,))

    def variables(rule: NamespaceRule) -> VariablesRule | None:
        return VariablesRule(paths=tuple(map(path, rule.variables.paths))) if rule.variables else None

    denied = (LevelRule(policy=PolicyLevel.DENY),)
    return PolicyRules(
        namespaces=tuple(
            NamespaceRule(name=rule.name, capabilities=(Capability.DENY,), variables=variables(rule))
            for rule in rules.namespaces
        ),
        node_pools=tuple(
            NodePoolRule(name=rule.name, capabilities=(NodePoolCapability.DENY,)) for rule in rules.node_pools
        ),
        host_volumes=tuple(
            HostVolumeRule(name=rule.name, capabilities=(HostVolumeMountCapability.DENY,))
            for rule in rules.host_volumes
        ),
        agent=rules.agent and denied,
        node=rules.node and denied,
        operator=rules.operator and (OperatorRule(capabilities=(OperatorCapability.DENY,)),),
        quota=rules.quota and denied,
        plugin=rules.plugin and denied,
    )


def without_grants(rules: PolicyRules) -> PolicyRules:
    """Return rules with the same labels that grant nothing."""
    replace = msgspec.structs.replace

    def namespace(rule: NamespaceRule) -> NamespaceRule:
        paths = tuple(PathRule(path=path.path) for path in rule.variables.paths) if rule.variables else ()
        return NamespaceRule(name=rule.name, variables=VariablesRule(paths=paths))

    return PolicyRules(
        namespaces=tuple(map(namespace, rules.namespaces)),
        node_pools=tuple(replace(rule, policy=None, capabilities=()) for rule in rules.node_pools),
        host_volumes=tuple(replace(rule, policy=None, capabilities=()) for rule in rules.host_volumes),
    )


# -- examples --------------------------------------------------------------------------------------------------------


def test_capabilities_of_the_same_label_are_combined() -> None:
    granted_rights = rights(
        'namespace "x" { capabilities = ["read-job"] }', 'namespace "x" { capabilities = ["read-logs"] }'
    )

    assert {Capability.READ_JOB, Capability.READ_LOGS} == allowed_in(granted_rights, "x")


def test_a_level_and_capabilities_of_one_block_are_combined() -> None:
    granted_rights = rights('namespace "x" { policy = "scale" capabilities = ["read-logs"] }')

    assert {Capability.SCALE_JOB, Capability.READ_LOGS} <= allowed_in(granted_rights, "x")


@pytest.mark.parametrize("deny", ['policy = "deny"', 'capabilities = ["deny"]', 'capabilities = ["read-job", "deny"]'])
def test_a_deny_removes_all_rights_of_its_label_in_any_order(deny: str) -> None:
    policies = [
        'namespace "x" { policy = "write" }',
        f'namespace "x" {{ {deny} }}',
        'namespace "x" { policy = "read" }',
    ]

    assert set() == allowed_in(rights(*policies), "x") == allowed_in(rights(*reversed(policies)), "x")


def test_a_deny_of_one_label_does_not_affect_others() -> None:
    granted_rights = rights('namespace "x" { policy = "deny" } namespace "*" { capabilities = ["read-job"] }')

    assert (set(), {Capability.READ_JOB}) == (allowed_in(granted_rights, "x"), allowed_in(granted_rights, "y"))


@pytest.mark.parametrize(
    ("levels", "strongest"),
    [
        (["read", "write"], "write"),
        (["write", "read"], "write"),
        (["deny", "write"], ""),
        (["write", "deny", "write"], ""),
        (["scale", "read"], "read"),
        (["scale"], ""),
    ],
)
@pytest.mark.parametrize("scope", ["agent", "node", "operator", "quota"])
def test_the_strongest_level_of_a_scope_applies_deny_before_write_before_read(
    scope: str, levels: list[str], strongest: str
) -> None:
    granted_rights = rights(*(f'{scope} {{ policy = "{level}" }}' for level in levels))

    found = [
        level
        for level in (PolicyLevel.WRITE, PolicyLevel.READ)
        if granted_rights.allows_level(PolicyScope(scope), level)
    ]
    assert strongest == (found[0] if found else "")


def test_the_strongest_level_of_plugins_applies_read_before_list() -> None:
    granted_rights = rights('plugin { policy = "list" }', 'plugin { policy = "read" }', 'plugin { policy = "list" }')

    assert (True, False) == (
        granted_rights.allows_level(PolicyScope.PLUGIN, PolicyLevel.READ),
        granted_rights.allows_level(PolicyScope.PLUGIN, PolicyLevel.WRITE),
    )


@pytest.mark.parametrize("deny", ['policy = "deny"', 'capabilities = ["deny"]'])
def test_a_deny_of_operator_denies_level_and_capabilities(deny: str) -> None:
    granted_rights = rights('operator { policy = "write" capabilities = ["snapshot-save"] }', f"operator {{ {deny} }}")

    assert not granted_rights.allows_level(PolicyScope.OPERATOR, PolicyLevel.READ)
    assert not any(
        granted_rights.allows_operator(capability) for capability in OperatorCapability if capability != "deny"
    )


def test_a_capability_of_operator_grants_no_level() -> None:
    granted_rights = rights('operator { capabilities = ["snapshot-save"] }')

    assert (True, False) == (
        granted_rights.allows_operator(OperatorCapability.SNAPSHOT_SAVE),
        granted_rights.allows_level(PolicyScope.OPERATOR, PolicyLevel.READ),
    )

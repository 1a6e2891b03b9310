"""The policy document (reference 5.4): valid policies, the errors of invalid ones, and RulesJSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.access.policies import as_hcl, as_json, some_rules
from wharf.cluster.access import InvalidPolicy, encode_rules, parse_policy, parse_policy_strict
from wharf.cluster.access.policies.parser import MAX_POLICY_CHARACTERS, MAX_POLICY_LABELS
from wharf.cluster.access.policies.rules import (
    HostVolumeRule,
    LevelRule,
    NamespaceRule,
    NodePoolRule,
    OperatorRule,
    PathRule,
    PolicyRules,
    SentinelRule,
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

WHOLE = """
# Every block of a policy.
namespace "web-*" {
  policy       = "read"
  capabilities = ["submit-job", "alloc-node-exec"]
  variables {
    path "web/*" { capabilities = ["read", "write"] }
    path "web/secret" { capabilities = ["deny"] }
  }
}
node_pool "gpu_*"      { policy = "write" capabilities = ["read"] }
host_volume "data-*"   { capabilities = ["mount-readonly"] }
agent    { policy = "read" }
node     { policy = "write" }
operator {
  policy = "read"
  capabilities = ["snapshot-save"]
}
quota    { policy = "scale" }
plugin   { policy = "list" }
sentinel { policy = "deny" }
"""

RULES = PolicyRules(
    namespaces=(
        NamespaceRule(
            name="web-*",
            policy=PolicyLevel.READ,
            capabilities=(Capability.SUBMIT_JOB, Capability.ALLOC_NODE_EXEC),
            variables=VariablesRule(
                paths=(
                    PathRule(path="web/*", capabilities=(VariableCapability.READ, VariableCapability.WRITE)),
                    PathRule(path="web/secret", capabilities=(VariableCapability.DENY,)),
                )
            ),
        ),
    ),
    node_pools=(NodePoolRule(name="gpu_*", policy=PolicyLevel.WRITE, capabilities=(NodePoolCapability.READ,)),),
    host_volumes=(HostVolumeRule(name="data-*", capabilities=(HostVolumeMountCapability.MOUNT_READ_ONLY,)),),
    agent=(LevelRule(policy=PolicyLevel.READ),),
    node=(LevelRule(policy=PolicyLevel.WRITE),),
    operator=(OperatorRule(policy=PolicyLevel.READ, capabilities=(OperatorCapability.SNAPSHOT_SAVE,)),),
    quota=(LevelRule(policy=PolicyLevel.SCALE),),
    plugin=(LevelRule(policy=PolicyLevel.LIST),),
    sentinel=(SentinelRule(policy=PolicyLevel.DENY),),
)


def refusal(text: str) -> str:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy_strict(text)
    return caught.value.text


# -- valid policies --------------------------------------------------------------------------------------------------


def test_every_block_of_the_grammar_is_parsed() -> None:
    assert RULES == parse_policy_strict(WHOLE)


@given(some_rules())
def test_a_policy_has_the_same_meaning_as_hcl_and_as_json(rules: PolicyRules) -> None:
    assert rules == parse_policy(as_hcl(rules)) == parse_policy(as_json(rules))


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_empty_text_is_valid_and_grants_nothing(text: str) -> None:
    assert PolicyRules() == parse_policy_strict(text)


@pytest.mark.parametrize(
    ("scope", "levels"),
    [
        ('namespace "x"', "deny read write scale"),
        ('node_pool "x"', "deny read write"),
        ('host_volume "x"', "deny read write"),
        ("agent", "deny read write scale"),
        ("node", "deny read write scale"),
        ("operator", "deny read write scale"),
        ("quota", "deny read write scale"),
        ("sentinel", "deny read write scale"),
        ("plugin", "deny list read write"),
    ],
)
def test_a_scope_accepts_its_levels_and_refuses_all_others(scope: str, levels: str) -> None:
    name = scope.partition(" ")[0]
    for level in (*PolicyLevel, "READ", "admin"):
        text = f'{scope} {{ policy = "{level}" }}'
        if level in levels.split():
            parse_policy_strict(text)
        else:
            assert refusal(text).startswith(f"Invalid {name} policy: '{level}': ")


@pytest.mark.parametrize(
    ("scope", "good", "bad"),
    [
        ("namespace", ["a", "*", "a-*", "A" * 128, "-"], ["", "a_b", "a b", "a.b", "ä", "a" * 129, "a\\n"]),
        ("node_pool", ["a", "*", "a_b-*", "A" * 128], ["", "a b", "a.b", "a" * 129]),
        ("host_volume", ["a", "*", "a-*", "A" * 128], ["", "a_b", "a b", "a" * 129]),
    ],
)
def test_a_label_follows_the_pattern_of_its_scope(scope: str, good: list[str], bad: list[str]) -> None:
    for label in good:
        parse_policy_strict(f'{scope} "{label}" {{ policy = "read" }}')
    for label in bad:
        assert refusal(f'{scope} "{label}" {{ policy = "read" }}').startswith(f"Invalid {scope} name: ")


@pytest.mark.parametrize(
    ("scope", "capabilities", "message"),
    [
        ('namespace "x"', tuple(Capability), "namespace capability 'nothing'"),
        ('node_pool "x"', tuple(NodePoolCapability), "node_pool capability 'nothing'"),
        ('host_volume "x"', tuple(HostVolumeMountCapability), "host_volume capability 'nothing'"),
        ("operator", tuple(OperatorCapability), "operator capability 'nothing'"),
    ],
)
def test_every_capability_of_a_scope_is_accepted_and_all_others_are_refused(
    scope: str, capabilities: tuple[str, ...], message: str
) -> None:
    parse_policy_strict(f"{scope} {{ capabilities = {json.dumps(capabilities)} }}")

    assert refusal(f'{scope} {{ capabilities = ["nothing"] }}').startswith(f"Invalid {message}: ")


def test_every_capability_of_variables_is_accepted_and_all_others_are_refused() -> None:
    text = 'namespace "web" {{ variables {{ path "x" {{ capabilities = {} }} }} }}'
    parse_policy_strict(text.format(json.dumps(tuple(VariableCapability))))

    assert refusal(text.format('["nothing"]')).startswith("Invalid variable capability 'nothing' in namespace web: ")


# -- invalid policies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('namespace "x" {', 'Failed to parse ACL Policy: At 1:16: expected a name or "}", found the end; the brace was opened at 1:15'),
        ('{"agent": }', 'Failed to parse ACL Policy: At 1:11: expected a value (a text in quotes, a number, true, false, null, a list or an object), found "}"'),
        ('agent = "read"', 'Failed to parse ACL Policy: At 1:1: expected a block, found "agent = ..."; write agent { ... }'),
        ("agent { policy = 1 }", "Failed to parse ACL Policy: At 1:18: policy must be a text; write it in quotes"),
        ('namespace { policy = "read" }', 'Failed to parse ACL Policy: At 1:13: expected a block, found "policy = ..."; write namespace "label" { ... }'),
        ('job "x" {}', 'Invalid policy: job "x" {}: it has no block of agent, host_volume, namespace, node, node_pool, operator, plugin, quota, sentinel'),
        ("# nothing", "Invalid policy: # nothing: it has no block of agent, host_volume, namespace, node, node_pool, operator, plugin, quota, sentinel"),
        ('agent {}\nnamespaces "x" {}', 'Invalid or duplicate policy keys: namespaces: did you mean "namespace"? (at 2:1)'),
        ("agent {} agent {} zzz {}", "Invalid or duplicate policy keys: agent, zzz: known are agent, host_volume, namespace, node, node_pool, operator, plugin, quota, sentinel, and each may occur once (at 1:10)"),
        ('namespace "x" { polcy = "deny" }', 'Invalid or duplicate policy keys: namespace "x" polcy: did you mean "policy"? (at 1:17)'),
        ('agent { capabilities = ["read"] }', "Invalid or duplicate policy keys: agent capabilities: known are policy, and each may occur once (at 1:9)"),
        ('agent { policy = "read" policy = "deny" }', "Invalid or duplicate policy keys: agent policy: it may occur only once (at 1:25)"),
        ('namespace "a b" {}', "Invalid namespace name: 'a b': it must match ^[a-zA-Z0-9-*]{1,128}$ (at 1:11)"),
        ('agent { policy = "raed" }', "Invalid agent policy: 'raed': did you mean \"read\"? (at 1:18)"),
        ('namespace "x" {\n capabilities = ["submit-jobs"]\n}', "Invalid namespace capability 'submit-jobs': did you mean \"submit-job\"? (at 2:18)"),
        ('operator { capabilities = ["all"] }', "Invalid operator capability 'all': it is one of deny, keyring-delete, keyring-read, keyring-rotate, license-read, snapshot-save (at 1:28)"),
        ('namespace "x" { variables { path "" {} } }', "Invalid variable path '' in namespace x: it has 1 to 256 printable characters (at 1:34)"),
        ('namespace "x" { variables { path "a\\x00b" {} } }', "Invalid variable path 'a\\x00b' in namespace x: it has 1 to 256 printable characters (at 1:34)"),
    ],
)  # fmt: skip
def test_an_invalid_policy_is_refused_with_this_text(text: str, error: str) -> None:
    assert error == refusal(text)


def test_a_scope_with_labels_may_occur_several_times_with_the_same_label() -> None:
    assert ["x", "y", "x"] == [
        rule.name for rule in parse_policy_strict('namespace "x" {} namespace "y" {} namespace "x" {}').namespaces
    ]


def test_unknown_and_duplicate_keys_are_ignored_when_a_policy_is_evaluated() -> None:
    rules = parse_policy('agent { policy = "read" kind = 1 } agent { policy = "deny" } consul { policy = "write" }')

    assert PolicyRules(agent=(LevelRule(policy=PolicyLevel.READ), LevelRule(policy=PolicyLevel.DENY))) == rules


def test_length_and_labels_of_a_policy_are_limited() -> None:
    parse_policy_strict(f"agent {{}} #{' ' * (MAX_POLICY_CHARACTERS - 10)}")
    parse_policy_strict('namespace "x" {}' * MAX_POLICY_LABELS)

    assert "longer than 262144 characters" in refusal(" " * MAX_POLICY_CHARACTERS + "agent {}")
    assert "it has too many labels: at most 2000" in refusal('namespace "x" {}' * (MAX_POLICY_LABELS + 1))
    assert len(refusal(f'{"x" * 10_000} "y" {{}}')) < 500


PIECES = st.sampled_from(
    [*PolicyScope, *PolicyLevel, '"x"', "{", "}", "=", "[", "]", '"', "policy", "capabilities", "variables", "path", ",", ":", " ", "\n", "1", "null"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=40).map(" ".join) | st.text(max_size=100))
def test_any_text_is_a_policy_or_is_refused_with_a_policy_error(text: str) -> None:
    for parse in (parse_policy_strict, parse_policy):
        try:
            assert isinstance(parse(text), PolicyRules)
        except InvalidPolicy as error:
            message = error.text
            assert message.startswith(("Invalid ", "Failed to parse ACL Policy: At "))


# -- RulesJSON -----------------------------------------------------------------------------------------------------


def test_rules_json_has_the_blocks_of_the_policy_and_null_for_missing_ones() -> None:
    assert {
        "Agent": {"Policy": "read"},
        "HostVolumes": None,
        "Namespaces": [
            {
                "Name": "x",
                "Policy": None,
                "Capabilities": ["read-job"],
                "Variables": {"Paths": [{"Path": "a/*", "Capabilities": ["list"]}]},
            }
        ],
        "Node": None,
        "NodePools": [{"Name": "*", "Policy": "write", "Capabilities": []}],
        "Operator": {"Policy": None, "Capabilities": ["keyring-read"]},
        "Plugin": None,
        "Quota": None,
        "Sentinel": None,
    } == json.loads(
        encode_rules(
            parse_policy_strict(
                """agent { policy = "read" }
                   namespace "x" {
                     capabilities = ["read-job"]
                     variables { path "a/*" { capabilities = ["list"] } }
                   }
                   node_pool "*" { policy = "write" }
                   operator { capabilities = ["keyring-read"] }"""
            )
        )
    )

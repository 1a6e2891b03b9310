"""How the two sides of a constraint are compared."""

import pytest

from tests.kit.state import a_node
from wharf.cluster.scheduling.constraints import evaluate_comparison, is_distinct_hosts_enabled, resolve_target


@pytest.mark.parametrize(
    ("operand", "left", "right", "expected"),
    [
        ("=", "a", "a", True),
        ("==", "a", "a", True),
        ("is", "a", "b", False),
        ("=", None, "a", False),
        ("=", None, None, False),
        ("!=", "a", "b", True),
        ("not", "a", "a", False),
        ("!=", None, "a", True),
        ("!=", "a", None, True),
        ("!=", None, None, False),
        ("!=", None, "", False),
        ("<", "9", "10", True),
        ("<", "9.5", "10", True),
        ("<", "a9", "a10", False),
        ("<=", "10", "10", True),
        (">", "1e3", "999", True),
        (">=", "b", "a", True),
        (">=", None, "1", False),
        (">", "nan", "1", False),
        (">=", "nan", "nan", False),
        ("<", "1", "nan", False),
        ("<", "+5", "6", True),
        ("<", "-a5", "-a6", True),
        ("<", "-5", "-4", True),
        ("<=", "-5", "+5", True),
        # As floats these would be equal.
        ("<", "9007199254740992", "9007199254740993", True),
        ("<", "-9007199254740993", "-9007199254740992", True),
        ("<", "+9007199254740992", "+9007199254740993", True),
        ("<", "9223372036854775806", "9223372036854775807", True),
        ("<", "-9223372036854775808", "-9223372036854775807", True),
        # Integers of more than 64 bits are compared as floats.
        ("<", "9223372036854775808", "9223372036854775809", False),
        ("<", "-9223372036854775810", "-9223372036854775809", False),
        ("<=", "123456789012345678901", "123456789012345678900", True),
        ("<", "1_0", "9", True),
        ("<", " 10", "9", True),
        ("<", "10 ", "9", True),
        ("<", "", "1", True),
        ("<=", None, "1", False),
        ("<=", "1", None, False),
        ("version", "1.2", None, False),
        ("semver", None, "1.2.0", False),
        ("semver", "1.2.0", None, False),
        ("regexp", "x", None, False),
        ("set_contains", None, "a", False),
        ("set_contains", "a", None, False),
        ("set_contains_any", None, "a", False),
        ("set_contains_any", "a", None, False),
        ("set_contains", "a", "a,b", False),
        ("set_contains", "a,b", "a", True),
        ("version", "1.4.2", ">= 1.2, < 2", True),
        ("version", "2.0", ">= 1.2, < 2", False),
        ("version", "1.3-beta", ">= 1.2", False),
        ("version", "1.3-beta", ">= 1.3-alpha", True),
        ("version", "1.4", "~> 1.2", True),
        ("version", "nonsense", ">= 1", False),
        ("version", None, ">= 1", False),
        ("semver", "1.3.0-beta", ">= 1.2.0", True),
        ("semver", "1.2.0-beta", ">= 1.2.0", False),
        ("regexp", "linux-6.1", "^linux", True),
        ("regexp", "linux-6.1", "6.", True),
        ("regexp", "linux", "(", False),
        ("regexp", None, ".*", False),
        ("set_contains", "a, b,c", "c,a", True),
        ("set_contains_all", "a,b", "a,d", False),
        ("set_contains_any", "a,b", "d, b", True),
        ("set_contains_any", "a,b", "d", False),
        ("is_set", "", "", True),
        ("is_set", None, "", False),
        ("is_not_set", None, "", True),
        ("is_not_set", "a", "", False),
        ("no such operand", "a", "a", False),
    ],
)
def test_an_operand_compares_as_in_the_table(operand: str, left: str | None, right: str | None, expected: bool) -> None:
    assert expected == evaluate_comparison(operand, left, right)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("literal", "literal"),
        ("${node.unique.id}", "n1"),
        ("${node.unique.name}", "one"),
        ("${node.datacenter}", "dc7"),
        ("${node.class}", "large"),
        ("${node.pool}", "gpu"),
        ("${attr.kernel.name}", "linux"),
        ("${meta.rack}", "r1"),
        ("${meta.none}", None),
        ("${node.secret}", None),
        ("${attr.kernel.name", None),
    ],
)
def test_a_target_resolves_to_what_the_node_reports(target: str, expected: str | None) -> None:
    node = a_node(
        "n1",
        name="one",
        datacenter="dc7",
        node_class="large",
        node_pool="gpu",
        meta={"rack": "r1"},
    )
    node.attributes["kernel.name"] = "linux"  # type: ignore[index]  # the builder gives attributes

    assert expected == resolve_target(target, node)


@pytest.mark.parametrize(("right", "expected"), [("", True), ("true", True), ("yes", True), ("false", False)])
def test_distinct_hosts_is_enabled_unless_it_is_false(right: str, expected: bool) -> None:
    assert expected == is_distinct_hosts_enabled(right)

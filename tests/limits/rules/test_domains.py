"""The domains of a rules file: which rules they become, and which mistakes are reported."""

import pytest

from wharf.limits.core.callers.caller import CallerClass
from wharf.limits.core.rule import UNLIMITED, Algorithm, Rule, RuleSet, StoreOutagePolicy
from wharf.limits.core.rulebook import hash_rules
from wharf.limits.rules import InvalidFile, read_rules

ADDRESS = '[[domain]]\nname = "shop"\n[[domain.descriptors]]\nkey = "remote_address"\nceiling = 60\n'


def read_one(text: str) -> Rule:
    (descriptor,) = read_rules(f'[[domain]]\nname = "shop"\n[[domain.descriptors]]\nkey = "k"\n{text}').descriptors
    return descriptor.rule


def list_problems(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as caught:
        read_rules(text, "my.toml")
    return [str(problem) for problem in caught.value.problems]


def test_a_limit_has_a_window_of_a_minute_and_refuses_with_429() -> None:
    rule = read_one("ceiling = 60")
    assert (rule.window_ms, rule.algorithm, rule.status, rule.line) == (60_000, Algorithm.WINDOW, 429, 3)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('window = "10s"', "window_ms", 10_000),
        ('name = "mine"', "name", "mine"),
        ('was = "old"', "was", "old"),
        ('algorithm = "slices"\nslices = 6', "slices", 6),
        ("hidden = true", "hidden", True),
        ("shadow = true", "shadow", True),
        ("enforce = 20", "enforce_percent", 20),
        ('on_store_loss = "closed"', "on_store_loss", StoreOutagePolicy.CLOSED),
    ],
)
def test_each_key_sets_a_field_of_the_rule(text: str, field: str, value: object) -> None:
    assert getattr(read_one(f"ceiling = 60\n{text}"), field) == value


def test_a_ceiling_can_be_unlimited() -> None:
    assert read_one('ceiling = "unlimited"').ceilings[CallerClass.NONE] == UNLIMITED


@pytest.mark.parametrize(
    ("domain", "entries", "name"),
    [
        ("shop", 'key = "path"\nvalue = "/a/B"', "shop_path_a_b"),
        ("9", 'key = "path"', "d_9_path"),
        ("shop", f'key = "{"k" * 100}"', f"shop_{'k' * 59}"),
        ("shop", 'key = "path"\nvalue = "*"', "shop_path"),
    ],
)
def test_the_name_of_a_limit_is_built_from_domain_and_entries(domain: str, entries: str, name: str) -> None:
    rules = read_rules(f'[[domain]]\nname = "{domain}"\n[[domain.descriptors]]\n{entries}\nceiling = 1')
    assert [descriptor.rule.name for descriptor in rules.descriptors] == [name]


def test_rules_of_domains_have_counters() -> None:
    names = {rule.name for rule in read_rules(ADDRESS).counted_rules}
    assert {"core", "shop_remote_address", "override_second", "override_year"} <= names


def test_without_domains_only_the_rules_have_counters() -> None:
    rules = read_rules("")
    assert rules.counted_rules == rules.rules


def test_the_hash_depends_on_limits_of_domains_but_not_on_their_lines() -> None:
    hashes = [hash_rules(read_rules(text)) for text in (ADDRESS, "\n" + ADDRESS, ADDRESS.replace("60", "61"))]
    assert (hashes[0] == hashes[1], hashes[0] == hashes[2]) == (True, False)


def read_entries(rules: RuleSet) -> list[tuple[tuple[str, str], ...]]:
    return [descriptor.entries for descriptor in rules.descriptors]


def test_an_entry_can_have_a_limit_and_entries_inside_it() -> None:
    rules = read_rules(ADDRESS + 'descriptors = [{ key = "user", ceiling = 1 }]')
    assert read_entries(rules) == [(("remote_address", ""),), (("remote_address", ""), ("user", ""))]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[domain]]", "my.toml:1:1: domain[0].name: is missing. The domain that the proxy sends. A text."),
        (
            ADDRESS + '[[domain.descriptors]]\nkey = "x"',
            "my.toml:6:1: domain[0].descriptors[1].ceiling: is missing: add it, or `descriptors` inside this entry",
        ),
        (
            ADDRESS + '[[domain.descriptors]]\nkey = "remote_address"\nceiling = 2',
            "my.toml:6:1: domain[0].descriptors[1].key: remote_address=* is listed twice: write one entry, with the "
            "descriptors of both inside it",
        ),
        (
            ADDRESS + '[[domain.descriptors]]\nkey = "x"\nshadow = true\ndescriptors = [{ key = "y", ceiling = 1 }]',
            "my.toml:8:1: domain[0].descriptors[1].shadow: has no effect without `ceiling`: add a ceiling",
        ),
        (
            ADDRESS + '[[domain]]\nname = "shop"',
            "my.toml:6:1: domain[1].name: 'shop' is the name of two domains: write their descriptors into one",
        ),
        (
            ADDRESS + 'name = "core"',
            "my.toml:3:1: shop: remote_address=*: name: 'core' is the name of another rule too: set another `name`",
        ),
        (
            ADDRESS + 'name = "override_x"',
            "my.toml:3:1: rule override_x: name: names that begin with 'override_' are reserved: choose another `name`",
        ),
        (
            ADDRESS + 'was = "core"',
            "my.toml:3:1: shop: remote_address=*: was: 'core' is still the name of a rule: a counter cannot belong to both rules",
        ),
        (
            ADDRESS + 'algorithm = "leases"',
            'my.toml:6:1: domain[0].descriptors[0].algorithm: "leases" is not known: known are window, slices, meter',
        ),
        (ADDRESS.replace("ceiling", "cieling"), "my.toml:5:1: domain[0].descriptors[0].cieling: is not known; did you mean 'ceiling'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_place_and_a_remedy(text: str, problem: str) -> None:
    assert problem in list_problems(text)


def test_entries_that_are_nested_too_deeply_are_reported() -> None:
    inner = '{ key = "k", ceiling = 1 }'
    for _ in range(10):
        inner = f'{{ key = "k", ceiling = 1, descriptors = [{inner}] }}'
    (problem,) = list_problems(f'[[domain]]\nname = "shop"\ndescriptors = [{inner}]')
    assert problem.endswith("is nested more than 10 levels deep")

"""Descriptors: which rule matches, which counter is charged, and how much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.limits.core.descriptors import (
    MAX_HITS,
    MAX_PATH_CHARACTERS,
    Descriptor,
    DescriptorBook,
    LimitOverride,
    build_key,
)
from wharf.limits.core.plans import Charge
from wharf.limits.rules import read_rules

RULES = """
[[domain]]
name = "shop"

[[domain.descriptors]]
key = "remote_address"
ceiling = 60

[[domain.descriptors]]
key = "path"
value = "/x"
ceiling = 100
descriptors = [
  { key = "user", ceiling = 10 },
  { key = "user", value = "b*", ceiling = 20 },
  { key = "user", value = "bo*", ceiling = 30 },
  { key = "user", value = "bob", ceiling = 40 },
]

[[domain.descriptors]]
key = "path"
descriptors = [{ key = "plan", ceiling = 7 }]

[[domain.descriptors]]
key = "tokens"
algorithm = "meter"
ceiling = 1000

[[domain.descriptors]]
key = "tried"
shadow = true
ceiling = 5
"""


@pytest.fixture(scope="module")
def book() -> DescriptorBook:
    return DescriptorBook(read_rules(RULES))


def describe(text: str, hits: int = 1, override: LimitOverride | None = None) -> Descriptor:
    """Return a descriptor from a text such as `path=/x, user=ada`."""
    entries = tuple((part.partition("=")[0], part.partition("=")[2]) for part in text.split(", "))
    return Descriptor(entries, hits, override)


def charge(book: DescriptorBook, *descriptors: Descriptor, domain: str = "shop") -> tuple[Charge, ...]:
    plan = book.build_plan(domain, descriptors).plan
    return () if plan is None else plan.charges


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("remote_address=10.0.0.1", "shop_remote_address"),
        ("path=/x", "shop_path_x"),
        ("path=/x, user=ada", "shop_path_x_user"),
        ("path=/x, user=ben", "shop_path_x_user_b"),
        ("path=/x, user=bono", "shop_path_x_user_bo"),
        ("path=/x, user=bob", "shop_path_x_user_bob"),
        ("path=/y, plan=free", "shop_path_plan"),
        ("path=/x, plan=free", "shop_path_plan"),
    ],
)
def test_the_most_specific_rule_that_matches_all_entries_applies(book: DescriptorBook, text: str, name: str) -> None:
    assert [found.name for found in charge(book, describe(text))] == [name]


@pytest.mark.parametrize(
    "text", ["path=/y", "user=ada, path=/x", "path=/x, user=ada, more=1", "other=1", "remote_address=1, user=ada"]
)
def test_a_descriptor_with_other_entries_or_another_order_has_no_limit(book: DescriptorBook, text: str) -> None:
    assert charge(book, describe(text)) == ()


def test_a_domain_that_the_file_does_not_name_has_no_limit(book: DescriptorBook) -> None:
    assert charge(book, describe("remote_address=10.0.0.1"), domain="other") == ()


def test_each_value_has_a_counter_of_its_own(book: DescriptorBook) -> None:
    keys = [charge(book, describe(f"path=/x, user={user}"))[0].key for user in ("ada", "alan")]
    assert keys == ["path:/x,user:ada", "path:/x,user:alan"]


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("a b", "user:a%20b"),
        ("a,user:c", "user:a%2Cuser:c"),
        ("{x}", "user:%7Bx%7D"),
        ("é", "user:%C3%A9"),
        ("", "user:"),
    ],
)
def test_values_cannot_imitate_the_key_of_another_counter(value: str, key: str) -> None:
    assert build_key((("user", value),)) == key


@pytest.mark.parametrize("sign", ["x", "é", " "])
def test_a_long_value_is_hashed(sign: str) -> None:
    keys = {build_key((("user", sign * 10_000 + end),)) for end in "ab"}
    assert (len(keys), max(map(len, keys)) < 1_000) == (2, True)


def test_a_value_cannot_imitate_a_hashed_key() -> None:
    hashed = build_key((("user", "x" * 10_000),))
    assert build_key((("user", hashed.removeprefix("user:")),)) != hashed


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=1, max_size=3))
def test_keys_have_no_spaces_and_no_braces(entries: list[tuple[str, str]]) -> None:
    assert not set(build_key(tuple(entries))) & set(" {}\n\x00")


@given(*[st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=1, max_size=2).map(tuple)] * 2)
def test_different_entries_have_different_keys(
    first: tuple[tuple[str, str], ...], second: tuple[tuple[str, str], ...]
) -> None:
    assert (build_key(first) == build_key(second)) is (first == second)


def test_hits_are_what_is_charged_and_what_must_be_left(book: DescriptorBook) -> None:
    (found,) = charge(book, describe("remote_address=10.0.0.1", hits=5))
    assert (found.cost, found.required) == (5, 5)


def test_zero_hits_only_check_that_something_is_left(book: DescriptorBook) -> None:
    (found,) = charge(book, describe("remote_address=10.0.0.1", hits=0))
    assert (found.cost, found.required) == (0, 1)


def test_a_meter_admits_while_anything_is_left(book: DescriptorBook) -> None:
    (found,) = charge(book, describe("tokens=ada", hits=5_000))
    assert (found.cost, found.required) == (5_000, 1)


def test_an_enormous_number_of_hits_is_cut(book: DescriptorBook) -> None:
    (found,) = charge(book, describe("remote_address=10.0.0.1", hits=2**64 - 1))
    assert found.cost == MAX_HITS


def test_descriptors_with_the_same_counter_are_charged_together(book: DescriptorBook) -> None:
    same = describe("remote_address=10.0.0.1", hits=2)
    plan = book.build_plan("shop", [same, describe("path=/x"), same])
    assert plan.plan is not None
    assert [(c.name, c.cost) for c in plan.plan.charges] == [("shop_remote_address", 4), ("shop_path_x", 1)]
    assert plan.charge_indexes == (0, 1, 0)


def test_a_shadow_rule_is_not_enforced(book: DescriptorBook) -> None:
    (found,) = charge(book, describe("tried=1"))
    assert not found.is_enforced


def test_an_override_replaces_ceiling_and_window(book: DescriptorBook) -> None:
    (found,) = charge(book, describe("remote_address=10.0.0.1", override=LimitOverride(3, unit_index=2)))
    assert (found.name, found.ceiling, found.rule.window_ms) == ("override_hour", 3, 3_600_000)


def test_an_override_limits_a_descriptor_without_a_rule(book: DescriptorBook) -> None:
    (found,) = charge(book, describe("new=1", override=LimitOverride(3, unit_index=0)))
    assert (found.name, found.key) == ("override_second", "domain:shop,new:1")


def test_an_override_of_a_shadow_rule_stays_in_shadow_mode(book: DescriptorBook) -> None:
    (found,) = charge(book, describe("tried=1", override=LimitOverride(3, unit_index=0)))
    assert not found.is_enforced


def test_an_override_in_an_unknown_domain_has_no_effect(book: DescriptorBook) -> None:
    assert charge(book, describe("new=1", override=LimitOverride(3, unit_index=0)), domain="other") == ()


def test_the_text_for_the_log_has_no_control_characters(book: DescriptorBook) -> None:
    assert book.build_plan("shop", [describe("remote_address=\x1b[2J")]).text == "shop (remote_address=%1B[2J)"


def test_the_endpoint_names_only_descriptors_with_a_limit(book: DescriptorBook) -> None:
    plan = book.build_plan("shop", [describe("unknown=1"), describe("path=/x, user=ada")]).plan
    assert plan is not None
    assert plan.endpoint == "shop path,user"


def test_the_text_for_the_log_is_short(book: DescriptorBook) -> None:
    plan = book.build_plan("shop", [describe(f"path={'x' * 1_000}")] * 5)
    assert len(plan.text) <= MAX_PATH_CHARACTERS

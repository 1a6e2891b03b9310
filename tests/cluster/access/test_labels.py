"""The label that applies to a name, compared with a slow and simple implementation (reference 5.4, rule 3)."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cluster.access.policies import LABELS, NAMES
from wharf.cluster.access.policies.labels import MAX_CACHED_NAMES, Glob, LabelCapabilities
from wharf.contract.model.acl.capabilities import NodePoolCapability

SETS = st.sets(st.sampled_from([NodePoolCapability.READ, NodePoolCapability.WRITE, NodePoolCapability.DELETE])).map(
    frozenset
)
DENIED = frozenset({NodePoolCapability.DENY})


def matches_slowly(glob: str, name: str) -> bool:
    """Return whether a glob matches, by trying for each `*` an empty match and one more character."""
    if not glob:
        return not name
    if glob[0] == "*":
        return matches_slowly(glob[1:], name) or (bool(name) and matches_slowly(glob, name[1:]))
    return bool(name) and name[0] == glob[0] and matches_slowly(glob[1:], name[1:])


def find_slowly(granted: Mapping[str, frozenset[NodePoolCapability]], name: str) -> frozenset[NodePoolCapability]:
    """Return the capabilities of the closest label, by comparing all labels."""
    if name in granted and "*" not in name:
        return granted[name]
    distances = {
        glob: len(name) - len(glob) + glob.count("*") for glob in granted if "*" in glob and matches_slowly(glob, name)
    }
    closest = [granted[glob] for glob, distance in distances.items() if distance == min(distances.values())]
    if any(NodePoolCapability.DENY in found for found in closest):
        return DENIED
    return frozenset().union(*closest)


@given(st.text("ab*", max_size=4), st.text("ab*", max_size=4), st.text("ab", max_size=8))
@example("ab", "ba", "aba")  # The text before and after the `*` must not overlap in the name.
def test_a_glob_matches_like_a_simple_matcher(first: str, last: str, name: str) -> None:
    glob = f"{first}*{last}"

    assert matches_slowly(glob, name) == Glob(glob).matches(name)


@given(st.dictionaries(LABELS, SETS | st.just(DENIED), max_size=6), NAMES)
def test_the_closest_label_is_that_of_a_simple_search(
    granted: dict[str, frozenset[NodePoolCapability]], name: str
) -> None:
    labels = LabelCapabilities(granted)

    assert find_slowly(granted, name) == labels.find_capabilities(name)
    # The cached result is the same.
    assert labels.find_capabilities(name) == labels.find_capabilities(name)
    assert labels.has_match(name) == any(matches_slowly(label, name) for label in granted)


READ, WRITE = frozenset({NodePoolCapability.READ}), frozenset({NodePoolCapability.WRITE})


@pytest.mark.parametrize(
    ("labels", "name", "found"),
    [
        ({"web": READ, "web*": WRITE, "*": WRITE}, "web", "exact"),
        ({"web": frozenset[NodePoolCapability](), "*": WRITE}, "web", "nothing"),
        ({"web-*": READ, "*": WRITE}, "web-1", "read"),
        ({"web-*": READ, "*-api": WRITE}, "web-api", "both"),
        ({"w*-*": READ, "web*": WRITE}, "web-1", "write"),
        ({"web": WRITE}, "web-1", "nothing"),
    ],
)
def test_the_closest_label_applies(labels: dict[str, frozenset[NodePoolCapability]], name: str, found: str) -> None:
    expected = {"exact": READ, "read": READ, "write": WRITE, "both": READ | WRITE, "nothing": frozenset()}

    assert expected[found] == LabelCapabilities(labels).find_capabilities(name)


def test_a_glob_with_many_stars_is_matched_without_backtracking() -> None:
    # A matcher with backtracking would take exponential time.
    glob = Glob("a*" * 60 + "b")

    assert (False, True) == (glob.matches("a" * 128), glob.matches("a" * 127 + "b"))


def test_the_cache_of_matches_is_limited() -> None:
    labels = LabelCapabilities({"*": READ})
    for number in range(3 * MAX_CACHED_NAMES):
        assert labels.find_capabilities(f"name-{number}") == READ

    assert len(labels._glob_cache) <= MAX_CACHED_NAMES

"""Which nodes may register while access control is on."""

from typing import Any

import pytest

from tests.kit.state import AState, a_node
from wharf.cluster.operations.nodes.introductions import Introduction, check_node_admission
from wharf.cluster.state.tables import NODES
from wharf.contract.model.refusal import Refusal, RefusalCode

INTRODUCED = Introduction(node_pool="")


def find_refusal(state: AState, introduction: Introduction | None, **node: Any) -> str:
    """Return the text with which a node is refused; empty if it is admitted."""
    try:
        check_node_admission(state.replica, a_node("n1", **node), introduction)
    except Refusal as refusal:
        return refusal.text if refusal.code is RefusalCode.FORBIDDEN else f"{refusal.code}: {refusal.text}"
    return ""


@pytest.mark.parametrize("introduction", [None, INTRODUCED])
@pytest.mark.parametrize(
    ("stored", "shown", "is_admitted"),
    [
        ("a" * 64, "a" * 64, True),
        ("a" * 64, "b" * 64, False),
        ("a" * 64, "", False),
        ("", "", False),
        ("", "a" * 64, False),
    ],
)
def test_a_registered_node_needs_the_secret_with_which_it_registered(
    stored: str, shown: str, is_admitted: bool, introduction: Introduction | None
) -> None:
    state = AState()
    state.put(NODES.build_put(a_node("n1", secret_digest=stored)))

    refusal = find_refusal(state, introduction, secret_digest=shown)

    assert refusal == ("" if is_admitted else "node secret ID does not match")


def test_a_new_node_needs_an_introduction() -> None:
    assert "wharf node intro create" in find_refusal(AState(), None)
    assert find_refusal(AState(), INTRODUCED) == ""


@pytest.mark.parametrize(
    ("introduction", "node", "refusal"),
    [
        (Introduction(node_pool="gpu"), {"node_pool": "gpu"}, ""),
        (Introduction(node_pool="gpu"), {"node_pool": "cpu"}, 'for the node pool "gpu"'),
        (Introduction(node_pool="gpu"), {"node_pool": ""}, 'for the node pool "gpu"'),
        (Introduction(node_pool="default"), {"node_pool": ""}, ""),
        (Introduction(), {"node_pool": "gpu"}, 'for the node pool "default"'),
        (Introduction(node_pool=""), {"node_pool": "gpu"}, ""),
        (Introduction(node_name="n1"), {"name": "n1"}, ""),
        (Introduction(node_name="n1"), {"name": "n2"}, 'for the node "n1"'),
    ],
)
def test_an_introduction_admits_only_the_node_and_the_pool_that_it_names(
    introduction: Introduction, node: dict[str, str], refusal: str
) -> None:
    found = find_refusal(AState(), introduction, **node)

    assert refusal in found
    assert bool(found) is bool(refusal)


@pytest.mark.parametrize(
    ("introduction", "node", "problem", "options"),
    [
        (
            Introduction(node_name="n9"),
            {"name": "n1"},
            'for the node "n9", and this node is named "n1"',
            "--node-name n1",
        ),
        (
            Introduction(node_name="n9", node_pool="gpu"),
            {"name": "n1", "node_pool": "gpu"},
            'for the node "n9", and this node is named "n1"',
            "--node-name n1 --node-pool gpu",
        ),
        (
            Introduction(node_pool="gpu"),
            {"name": "n1"},
            'for the node pool "gpu", and this node is in "default"',
            "--node-pool default",
        ),
    ],
)
def test_the_refusal_of_an_introduction_for_another_node_says_how_to_make_the_right_one(
    introduction: Introduction, node: dict[str, str], problem: str, options: str
) -> None:
    assert find_refusal(AState(), introduction, **node) == (
        f"Permission denied: the introduction is {problem}; make one with `wharf node intro create {options}` "
        "(/v1/acl/identity/client-introduction-token) and set it as client.intro_token"
    )


def with_registered_node() -> AState:
    state = AState()
    state.put(NODES.build_put(a_node("n1", name="n1", node_pool="default", secret_digest="s")))
    return state


def test_a_registered_node_that_stays_in_its_pool_needs_no_introduction() -> None:
    state = with_registered_node()

    assert find_refusal(state, None, name="n1", node_pool="", secret_digest="s") == ""
    assert find_refusal(state, Introduction(node_pool="gpu"), name="n1", secret_digest="s") == ""


@pytest.mark.parametrize("change", [{"name": "n2"}, {"node_pool": "secure"}])
def test_a_registered_node_changes_its_name_or_pool_only_with_an_introduction(change: dict[str, str]) -> None:
    state = with_registered_node()
    changed = {"name": "n1", "secret_digest": "s", **change}

    assert find_refusal(state, None, **changed).startswith("Permission denied: ")
    assert find_refusal(state, Introduction(node_name="n1"), **changed).startswith("Permission denied: ")
    assert find_refusal(state, Introduction(node_name="n1", node_pool="gpu"), **changed).startswith(
        "Permission denied: "
    )
    assert find_refusal(state, INTRODUCED, **changed) == ""


def test_an_introduction_does_not_replace_the_secret_of_a_registered_node() -> None:
    refusal = find_refusal(with_registered_node(), INTRODUCED, name="n1", node_pool="gpu", secret_digest="t")

    assert refusal == "node secret ID does not match"


def test_the_refusal_of_a_moved_node_names_the_change_and_both_ways_out() -> None:
    refusal = find_refusal(with_registered_node(), None, name="n1", node_pool="secure", secret_digest="s")

    assert refusal == (
        'Permission denied: this node changed client.node_pool from "default" to "secure", and that needs an introduction '
        "token; make one with `wharf node intro create --node-pool secure` (/v1/acl/identity/client-introduction-token) and "
        "set it as client.intro_token, or undo the change"
    )

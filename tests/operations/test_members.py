"""Servers that are gone are forgotten; the leader is not."""

import pytest

from tests.kit.state import AState
from wharf.model.changes import THIS
from wharf.model.cluster import Leader, Member
from wharf.model.refusal import Code, Refusal
from wharf.operations import members
from wharf.state.tables import LEADER, MEMBERS


def with_servers() -> AState:
    state = AState()
    for name in ("m1", "m2"):
        state.put(MEMBERS.put(Member(id=name, name=name, create_index=THIS)))
    state.put(LEADER.put(Leader(member_id="m1", create_index=THIS)))
    return state


def test_a_forgotten_server_is_no_member_any_more() -> None:
    state = with_servers()

    written = state.do(members.forget(state.replica, "m2", missing="?"))

    assert written.index == state.replica.index
    assert [member.id for member in state.replica.all(MEMBERS)] == ["m1"]


def test_an_unknown_server_is_refused_in_the_caller_s_words() -> None:
    state = with_servers()
    before = state.replica.index

    with pytest.raises(Refusal) as refused:
        members.forget(state.replica, "m3", missing="no such server")

    assert (refused.value.code, refused.value.text) == (Code.UNKNOWN, "no such server")
    assert state.replica.index == before


def test_the_leader_is_refused_and_stays() -> None:
    state = with_servers()

    with pytest.raises(Refusal) as refused:
        members.forget(state.replica, "m1", missing="?")

    assert (refused.value.code, state.replica.count(MEMBERS)) == (Code.CONFLICT, 2)


def test_a_server_that_became_leader_meanwhile_is_not_forgotten() -> None:
    state = with_servers()
    decided = members.forget(state.replica, "m2", missing="?")
    state.put(LEADER.put(Leader(member_id="m2", create_index=THIS)))

    assert decided.write is not None
    assert "Conflict" in type(state.try_commit(decided.write)).__name__
    assert state.replica.count(MEMBERS) == 2

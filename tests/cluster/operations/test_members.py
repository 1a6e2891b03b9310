"""Records of servers that are gone can be removed; the leader's record cannot."""

import pytest

from tests.kit.state import AState
from wharf.cluster.operations import agents
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.model.cluster import Leader, Member
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal, RefusalCode


def make_state() -> AState:
    state = AState()
    for name in ("m1", "m2"):
        state.put(MEMBERS.build_put(Member(id=name, name=name, create_index=WRITE_INDEX)))
    state.put(LEADER.build_put(Leader(member_id="m1", create_index=WRITE_INDEX)))
    return state


def test_a_removed_server_is_no_longer_a_member() -> None:
    state = make_state()

    written = state.do(agents.remove_member(state.replica, "m2", not_found_text="?"))

    assert written.index == state.replica.index
    assert [member.id for member in state.replica.iter_all(MEMBERS)] == ["m1"]


def test_an_unknown_server_is_refused_with_the_requested_id() -> None:
    state = make_state()
    before = state.replica.index

    with pytest.raises(Refusal) as caught:
        agents.remove_member(state.replica, "m3", not_found_text="no such server")

    assert (caught.value.code, caught.value.text) == (RefusalCode.NOT_FOUND, "no such server")
    assert state.replica.index == before


def test_the_leader_cannot_be_removed() -> None:
    state = make_state()

    with pytest.raises(Refusal) as caught:
        agents.remove_member(state.replica, "m1", not_found_text="?")

    assert (caught.value.code, state.replica.count_records(MEMBERS)) == (RefusalCode.CONFLICT, 2)


def test_a_server_that_becomes_leader_meanwhile_is_not_removed() -> None:
    state = make_state()
    decided = agents.remove_member(state.replica, "m2", not_found_text="?")
    state.put(LEADER.build_put(Leader(member_id="m2", create_index=WRITE_INDEX)))

    assert decided.write is not None
    assert "WriteConflict" in type(state.try_commit(decided.write)).__name__
    assert state.replica.count_records(MEMBERS) == 2

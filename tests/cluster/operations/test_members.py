"""Records of servers that have ended can be removed; those of servers that run cannot."""

import pytest

from tests.kit.state import AState
from wharf.cluster.operations import agents
from wharf.cluster.state.tables import KNOWN_SERVERS, LEADER, MEMBERS
from wharf.contract.model.cluster import KnownServer, Leader, Member
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal, RefusalCode


def make_state() -> AState:
    state = AState()
    for name in ("m1", "m2"):
        state.put(MEMBERS.build_put(Member(id=name, name=name, address=f"{name}:4646", create_index=WRITE_INDEX)))
    state.put(LEADER.build_put(Leader(member_id="m1", create_index=WRITE_INDEX)))
    for name in ("m1", "m2", "failed"):
        state.put(KNOWN_SERVERS.build_put(KnownServer(id=name, name=name, create_index=WRITE_INDEX)))
    return state


def test_a_failed_server_is_removed_from_the_list() -> None:
    state = make_state()

    written = state.do(agents.remove_member(state.replica, "failed", not_found_text="?"))

    assert written.index == state.replica.index
    assert [server.id for server in state.replica.iter_all(KNOWN_SERVERS)] == ["m1", "m2"]


def test_an_unknown_server_is_refused_with_the_requested_id() -> None:
    state = make_state()
    before = state.replica.index

    with pytest.raises(Refusal) as caught:
        agents.remove_member(state.replica, "m3", not_found_text="no such server")

    assert (caught.value.code, caught.value.text) == (RefusalCode.NOT_FOUND, "no such server")
    assert state.replica.index == before


@pytest.mark.parametrize("name", [pytest.param("m1", id="the leader"), pytest.param("m2", id="another server")])
def test_a_server_that_runs_is_not_removed_because_it_would_return(name: str) -> None:
    state = make_state()
    text = (
        f"{name} at {name}:4646 is listed as alive: stop it, which removes it from the list; one that was killed can be "
        "removed after about 10 s, when it is listed as failed"
    )
    before = state.replica.index

    with pytest.raises(Refusal) as caught:
        agents.remove_member(state.replica, name, not_found_text="?")

    assert (caught.value.code, caught.value.text) == (RefusalCode.CONFLICT, text)
    assert state.replica.index == before


def test_a_server_that_returns_meanwhile_is_not_removed() -> None:
    state = make_state()
    decided = agents.remove_member(state.replica, "failed", not_found_text="?")
    state.put(MEMBERS.build_put(Member(id="failed", name="failed", create_index=WRITE_INDEX)))

    assert decided.write is not None
    assert "WriteConflict" in type(state.try_commit(decided.write)).__name__
    assert state.replica.get(KNOWN_SERVERS, "failed") is not None

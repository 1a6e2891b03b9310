"""The records of known servers follow the members, and keep servers that ended without leaving."""

from msgspec.structs import replace

from tests.kit.state import AState
from wharf.cluster.operations.agents import (
    FAILED_SERVER_RETENTION_NS,
    list_failed_servers,
    remove_member,
    update_known_servers,
)
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import CLUSTER_FORMAT, KNOWN_SERVERS, MEMBERS
from wharf.contract.model.cluster import Member, RecordFormat

NOW_NS = 1_700_000_000_000_000_000


def a_member(id: str, *, name: str = "", address: str = "10.0.0.1:4646") -> Member:
    return Member(id=id, name=name or id, address=address, newest_format=NEWEST_FORMAT)


def a_state() -> AState:
    """Return the state of a cluster whose servers all know the records of known servers."""
    state = AState()
    state.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
    return state


def update(state: AState, *, now_ns: int = NOW_NS, should_expire: bool = True, max_changes: int = 100) -> bool:
    """Commit one update. Return whether something had to change."""
    decision = update_known_servers(state.replica, now_ns=now_ns, max_changes=max_changes, should_expire=should_expire)
    if decision is None or decision.write is None:
        return False
    state.commit(decision.write)
    return True


def a_failed_server(id: str = "a") -> AState:
    """Return the state after a server joined and its member record expired."""
    state = a_state()
    state.put(MEMBERS.build_put(a_member(id)), MEMBERS.build_put(a_member("b")))
    update(state)
    state.put(MEMBERS.build_delete(id))
    update(state)
    return state


def failed_names(state: AState) -> list[str]:
    return [server.name for server in list_failed_servers(state.replica)]


def test_a_server_whose_member_record_expired_is_failed_from_the_time_at_which_that_was_found() -> None:
    state = a_failed_server()

    (failed,) = list_failed_servers(state.replica)
    assert (failed.name, failed.failed_at, failed.address) == ("a", NOW_NS, "10.0.0.1:4646")
    assert not update(state)


def test_a_server_that_returns_is_not_failed() -> None:
    state = a_failed_server()
    state.put(MEMBERS.build_put(replace(a_member("a"), address="10.0.0.9:4646")))

    update(state)

    record = state.replica.get(KNOWN_SERVERS, "a")
    assert record is not None
    assert (failed_names(state), record.failed_at, record.address) == ([], 0, "10.0.0.9:4646")


def test_a_failed_server_is_removed_after_72_hours() -> None:
    state = a_failed_server()

    assert not update(state, now_ns=NOW_NS + FAILED_SERVER_RETENTION_NS - 1)
    assert update(state, now_ns=NOW_NS + FAILED_SERVER_RETENTION_NS)
    assert failed_names(state) == []


def test_without_cleanup_a_failed_server_stays_listed() -> None:
    state = a_failed_server()

    assert not update(state, now_ns=NOW_NS + 100 * FAILED_SERVER_RETENTION_NS, should_expire=False)
    assert failed_names(state) == ["a"]


def test_a_failed_server_is_removed_once_a_server_with_its_name_has_replaced_it() -> None:
    state = a_failed_server()
    state.put(MEMBERS.build_put(a_member("new-id", name="a")))

    update(state)

    assert failed_names(state) == []


def test_an_operator_can_remove_a_failed_server() -> None:
    state = a_failed_server()
    decision = remove_member(state.replica, "a", not_found_text="unknown")
    assert decision.write is not None

    state.commit(decision.write)

    assert failed_names(state) == []
    assert not update(state)


def test_a_server_that_leaves_during_an_update_is_not_recorded_again() -> None:
    state = a_state()
    state.put(MEMBERS.build_put(a_member("a")))
    decision = update_known_servers(state.replica, now_ns=NOW_NS, max_changes=100, should_expire=True)
    assert decision is not None
    assert decision.write is not None
    state.put(MEMBERS.build_delete("a"), KNOWN_SERVERS.build_delete("a"))

    outcome = state.try_commit(decision.write)

    assert type(outcome).__name__ == "WriteConflict"


def test_many_servers_are_recorded_in_several_writes() -> None:
    state = a_state()
    state.put(*(MEMBERS.build_put(a_member(f"m{number}")) for number in range(9)))

    updates = 0
    while update(state, max_changes=8):
        updates += 1

    assert (updates, state.replica.count_records(KNOWN_SERVERS)) == (3, 9)


def test_nothing_is_recorded_while_a_server_does_not_know_the_table() -> None:
    state = AState()
    state.put(CLUSTER_FORMAT.build_put(RecordFormat(version=1)), MEMBERS.build_put(a_member("a")))

    assert not update(state)

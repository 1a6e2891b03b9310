"""The cluster's record format is upgraded once every server can read the next one."""

import pytest

from tests.kit.state import AState
from wharf.cluster.operations.agents import upgrade_record_format
from wharf.cluster.state.codec import NewerFormat
from wharf.cluster.state.formats import NEWEST_FORMAT, get_active_format, reject_newer_format
from wharf.cluster.state.tables import CLUSTER_FORMAT, MEMBERS
from wharf.contract.model.cluster import Member, RecordFormat


def make_member(name: str, *, newest_format: int) -> Member:
    return Member(id=name, name=name, oldest_format=1, newest_format=newest_format)


def test_the_format_is_raised_to_the_newest_that_every_member_reads() -> None:
    state = AState()
    state.put(
        MEMBERS.build_put(make_member("a", newest_format=3)), MEMBERS.build_put(make_member("b", newest_format=2))
    )

    write = upgrade_record_format(state.replica)

    assert write is not None
    state.commit(write)
    assert get_active_format(state.replica) == 2


def test_the_format_is_not_raised_while_one_member_cannot_read_it() -> None:
    state = AState()
    state.put(
        MEMBERS.build_put(make_member("a", newest_format=3)), MEMBERS.build_put(make_member("b", newest_format=1))
    )

    assert upgrade_record_format(state.replica) is None


def test_without_members_the_format_is_not_raised() -> None:
    assert upgrade_record_format(AState().replica) is None


def test_a_member_that_joined_meanwhile_must_read_the_format_too() -> None:
    state = AState()
    state.put(MEMBERS.build_put(make_member("a", newest_format=2)))
    write = upgrade_record_format(state.replica)
    assert write is not None
    state.put(MEMBERS.build_put(make_member("a", newest_format=1)))

    outcome = state.try_commit(write)

    assert type(outcome).__name__ == "WriteConflict"
    assert get_active_format(state.replica) == 1


def test_a_server_refuses_a_cluster_with_a_newer_format() -> None:
    state = AState()
    state.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT + 1)))

    with pytest.raises(NewerFormat, match=f"has format {NEWEST_FORMAT + 1}; this program reads up to {NEWEST_FORMAT}"):
        reject_newer_format(state.replica)

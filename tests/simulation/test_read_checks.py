"""The checks of replies to reads: which replies they accept, and which they reject."""

from typing import Any

import pytest

from simulation.read_checks import CheckedRead, CheckedReply, ReadChecker
from simulation.timeline import InvariantViolation
from tests.simulation.small_log import SmallLog
from wharf.cluster.state.tables import NODE_POOLS
from wharf.contract.model.node_pools import NodePool


def a_log() -> SmallLog:
    """Return a log in which one pool changes at 1 and 3, and another one at 2."""
    log = SmallLog()
    for name in ("blue", "red", "blue"):
        log.put((NODE_POOLS, NodePool(name=name)))
    return log


def check(log: SmallLog, *, index: int, records: dict[str, int], **options: Any) -> None:
    read = CheckedRead(client="ann", subject="pools", tables=(NODE_POOLS,), **options)
    ReadChecker(log.history).check_reply(read, CheckedReply(index=index, records=records, ended_s=0.0), None)


def test_a_default_read_may_return_any_state_since_it_was_sent() -> None:
    check(a_log(), log_head=2, index=2, records={"blue": 1, "red": 2})
    check(a_log(), log_head=2, index=3, records={"blue": 3, "red": 2})


def test_a_default_read_of_an_older_state_is_a_violation() -> None:
    with pytest.raises(InvariantViolation, match="no state of the log"):
        check(a_log(), log_head=3, index=2, records={"blue": 1, "red": 2})


def test_a_stale_read_may_return_any_earlier_state() -> None:
    check(a_log(), log_head=3, is_stale=True, index=1, records={"blue": 1})


def test_a_list_that_mixes_two_states_is_a_violation() -> None:
    with pytest.raises(InvariantViolation, match="no state of the log"):
        check(a_log(), is_stale=True, index=3, records={"blue": 3})


def test_a_list_with_another_index_than_its_tables_is_a_violation() -> None:
    with pytest.raises(InvariantViolation, match="the index of the list is 3"):
        check(a_log(), log_head=3, index=2, records={"blue": 3, "red": 2})


def test_a_record_has_its_own_index_and_a_missing_one_that_of_its_table() -> None:
    check(a_log(), key="red", log_head=3, index=2, records={"red": 2})
    check(a_log(), key="green", log_head=3, index=3, records={})
    with pytest.raises(InvariantViolation):
        check(a_log(), key="red", log_head=3, index=3, records={"red": 2})


def test_an_index_from_the_future_is_a_violation() -> None:
    with pytest.raises(InvariantViolation, match="the log ends at index 3"):
        check(a_log(), index=9, records={"blue": 3, "red": 2})


def test_a_record_that_was_deleted_is_missing_from_then_on_and_not_before() -> None:
    log = a_log()
    log.delete(NODE_POOLS, "red")

    check(log, log_head=4, index=4, records={"blue": 3})
    with pytest.raises(InvariantViolation):
        check(log, log_head=4, index=4, records={"blue": 3, "red": 2})


def test_an_index_that_decreases_for_one_client_is_a_violation() -> None:
    log = a_log()
    checker = ReadChecker(log.history)
    read = CheckedRead(client="ann", subject="pools", tables=(NODE_POOLS,), log_head=1)
    checker.check_reply(read, CheckedReply(index=3, records={"blue": 3, "red": 2}, ended_s=0.0), None)

    with pytest.raises(InvariantViolation, match="read pools at 3 and then at 2"):
        checker.check_reply(read, CheckedReply(index=2, records={"blue": 1, "red": 2}, ended_s=0.0), None)


def test_a_reply_below_the_awaited_index_is_a_violation() -> None:
    checker = ReadChecker(a_log().history)
    read = CheckedRead(client="ann", subject="pools", tables=(NODE_POOLS,), is_stale=True, index=3)

    with pytest.raises(InvariantViolation, match="waited on pools from index 3 and the reply has index 2"):
        checker.check_reply(read, CheckedReply(index=2, records={"blue": 1, "red": 2}, ended_s=0.0), None)

"""The judge of reads: what a reply may say, and what it must not."""

from typing import Any

import pytest

from simulation.read_checks import CheckedRead, CheckedReply, ReadChecker
from simulation.timeline import InvariantViolation
from tests.simulation.small_log import SmallLog
from wharf.cluster.state.tables import NODE_POOLS
from wharf.contract.model.node_pools import NodePool


def a_log() -> SmallLog:
    """One pool that changes at 1 and 3, another at 2."""
    log = SmallLog()
    for name in ("blue", "red", "blue"):
        log.put((NODE_POOLS, NodePool(name=name)))
    return log


def judge(log: SmallLog, *, index: int, records: dict[str, int], **asked: Any) -> None:
    question = CheckedRead(client="ann", subject="pools", tables=(NODE_POOLS,), **asked)
    ReadChecker(log.witness).check_reply(question, CheckedReply(index=index, records=records, ended_s=0.0), None)


def test_a_default_read_shows_the_state_as_it_was_when_asked_or_later() -> None:
    judge(a_log(), log_head=2, index=2, records={"blue": 1, "red": 2})
    judge(a_log(), log_head=2, index=3, records={"blue": 3, "red": 2})


def test_a_default_read_of_a_state_before_it_was_asked_is_told() -> None:
    with pytest.raises(InvariantViolation, match="no state of the log"):
        judge(a_log(), log_head=3, index=2, records={"blue": 1, "red": 2})


def test_a_stale_read_may_show_any_state_that_there_was() -> None:
    judge(a_log(), log_head=3, is_stale=True, index=1, records={"blue": 1})


def test_a_list_that_mixes_two_states_is_told() -> None:
    with pytest.raises(InvariantViolation, match="no state of the log"):
        judge(a_log(), is_stale=True, index=3, records={"blue": 3})


def test_a_list_with_another_index_than_its_tables_is_told() -> None:
    with pytest.raises(InvariantViolation, match="the index of the list is 3"):
        judge(a_log(), log_head=3, index=2, records={"blue": 3, "red": 2})


def test_one_record_is_read_with_its_own_index_and_a_missing_one_with_its_tables() -> None:
    judge(a_log(), key="red", log_head=3, index=2, records={"red": 2})
    judge(a_log(), key="green", log_head=3, index=3, records={})
    with pytest.raises(InvariantViolation):
        judge(a_log(), key="red", log_head=3, index=3, records={"red": 2})


def test_an_index_from_the_future_is_told() -> None:
    with pytest.raises(InvariantViolation, match="the log has come to 3 only"):
        judge(a_log(), index=9, records={"blue": 3, "red": 2})


def test_a_record_that_was_deleted_is_missing_from_then_on_and_not_before() -> None:
    log = a_log()
    log.drop(NODE_POOLS, "red")

    judge(log, log_head=4, index=4, records={"blue": 3})
    with pytest.raises(InvariantViolation):
        judge(log, log_head=4, index=4, records={"blue": 3, "red": 2})


def test_an_index_that_goes_back_for_one_client_is_told() -> None:
    log = a_log()
    whole = ReadChecker(log.witness)
    question = CheckedRead(client="ann", subject="pools", tables=(NODE_POOLS,), log_head=1)
    whole.check_reply(question, CheckedReply(index=3, records={"blue": 3, "red": 2}, ended_s=0.0), None)

    with pytest.raises(InvariantViolation, match="read pools at 3 and then at 2"):
        whole.check_reply(question, CheckedReply(index=2, records={"blue": 1, "red": 2}, ended_s=0.0), None)


def test_an_answer_below_the_index_that_was_waited_for_is_told() -> None:
    whole = ReadChecker(a_log().witness)
    question = CheckedRead(client="ann", subject="pools", tables=(NODE_POOLS,), is_stale=True, index=3)

    with pytest.raises(InvariantViolation, match="waited on pools from index 3 and was told 2"):
        whole.check_reply(question, CheckedReply(index=2, records={"blue": 1, "red": 2}, ended_s=0.0), None)

"""The check of linearizability: known small histories, random ones against the definition, and long ones."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.history import NOT_ENDED, CallHistory, CallOutcome, RecordedCall
from simulation.linearizability import check_all_keys, check_calls
from simulation.loop import SimulatedLoop
from simulation.models import (
    NO_RECORD,
    PurgeJob,
    PutIfVersion,
    PutRecordValue,
    ReadRecord,
    RecordRequest,
    RecordResponse,
    RecordState,
    RegisterModel,
    RerunElements,
    RestoreRecord,
    StopJob,
    UnchangedRecord,
    VersionConflict,
    VersionedRecordModel,
)
from tests.simulation.brute_force import is_linearizable

RECORD = VersionedRecordModel()


def a_history(*steps: tuple[str, str, Any]) -> list[RecordedCall[RecordRequest, RecordResponse]]:
    """Return a history of steps: ("begin", client, request), ("ok", client, response), ("failed" or "lost", client, None)."""
    history: CallHistory[RecordRequest, RecordResponse] = CallHistory(SimulatedLoop(1))
    open_calls: dict[str, RecordedCall[RecordRequest, RecordResponse]] = {}
    for kind, client, value in steps:
        match kind:
            case "begin":
                open_calls[client] = history.begin_call(client, "key", value)
            case "ok":
                history.complete_call(open_calls.pop(client), value)
            case "failed":
                history.fail_call(open_calls.pop(client))
            case "lost":
                history.leave_call_undecided(open_calls.pop(client))
    return history.calls


def test_a_read_after_an_acknowledged_write_must_see_it() -> None:
    stale = a_history(
        ("begin", "a", PutRecordValue("x")),
        ("ok", "a", RecordState("x", 5)),
        ("begin", "b", ReadRecord()),
        ("ok", "b", NO_RECORD),
    )

    verdict = check_calls(stale, RECORD)

    assert not verdict.is_linearizable
    assert [call.client for call in verdict.blocked_calls] == ["b"]


def test_a_read_beside_a_write_may_see_it_or_not() -> None:
    for seen in (NO_RECORD, RecordState("x", 5)):
        concurrent = a_history(
            ("begin", "a", PutRecordValue("x")),
            ("begin", "b", ReadRecord()),
            ("ok", "b", seen),
            ("ok", "a", RecordState("x", 5)),
        )
        assert check_calls(concurrent, RECORD).is_linearizable


def test_a_later_read_must_return_what_an_earlier_read_returned() -> None:
    history = a_history(
        ("begin", "a", PutRecordValue("x")),
        ("begin", "b", ReadRecord()),
        ("ok", "b", RecordState("x", 5)),
        ("begin", "c", ReadRecord()),
        ("ok", "c", NO_RECORD),
        ("ok", "a", RecordState("x", 5)),
    )

    assert not check_calls(history, RECORD).is_linearizable


def test_writes_undone_by_a_restore_must_not_be_read_again() -> None:
    written = [("begin", "a", PutRecordValue("x")), ("ok", "a", RecordState("x", 5))]
    restored = [*written, ("begin", "the restore", RestoreRecord()), ("ok", "the restore", NO_RECORD)]
    for seen, is_linearizable_now in ((NO_RECORD, True), (RecordState("x", 5), False)):
        history = a_history(*restored, ("begin", "b", ReadRecord()), ("ok", "b", seen))
        assert check_calls(history, RECORD).is_linearizable is is_linearizable_now


def test_an_unknown_write_may_take_effect_much_later_but_only_once() -> None:
    late = [
        ("begin", "a", PutRecordValue("x")),
        ("lost", "a", None),
        ("begin", "b", PutRecordValue("y")),
        ("ok", "b", RecordState("y", 4)),
        ("begin", "b", ReadRecord()),
        ("ok", "b", RecordState("x", 6)),
    ]
    twice = [
        *late,
        ("begin", "b", PutRecordValue("z")),
        ("ok", "b", RecordState("z", 7)),
        ("begin", "b", ReadRecord()),
        ("ok", "b", RecordState("x", 8)),
    ]

    assert check_calls(a_history(*late), RECORD).is_linearizable
    assert not check_calls(a_history(*twice), RECORD).is_linearizable


def test_a_write_that_failed_must_never_be_seen() -> None:
    seen = a_history(
        ("begin", "a", PutRecordValue("x")),
        ("failed", "a", None),
        ("begin", "b", ReadRecord()),
        ("ok", "b", RecordState("x", 5)),
    )

    assert not check_calls(seen, RECORD).is_linearizable


def test_one_of_two_conditional_writes_on_the_same_version_succeeds() -> None:
    def race(second: RecordResponse) -> list[RecordedCall[RecordRequest, RecordResponse]]:
        return a_history(
            ("begin", "a", PutIfVersion(0, "x")),
            ("begin", "b", PutIfVersion(0, "y")),
            ("ok", "a", RecordState("x", 5)),
            ("ok", "b", second),
        )

    assert check_calls(race(VersionConflict()), RECORD).is_linearizable
    assert not check_calls(race(RecordState("y", 6)), RECORD).is_linearizable


def test_a_stopped_job_keeps_its_value_and_a_missing_one_stays_missing() -> None:
    correct = a_history(
        ("begin", "a", StopJob()), ("ok", "a", NO_RECORD),
        ("begin", "a", PutRecordValue(("x", False))), ("ok", "a", RecordState(("x", False), 3)),
        ("begin", "b", StopJob()), ("lost", "b", None),
        ("begin", "a", ReadRecord()), ("ok", "a", RecordState(("x", True), 7)),
    )  # fmt: skip
    wrong = a_history(
        ("begin", "a", PutRecordValue(("x", False))), ("ok", "a", RecordState(("x", False), 3)), ("begin", "b", StopJob()), ("ok", "b", NO_RECORD)
    )  # fmt: skip

    assert check_calls(correct, RECORD).is_linearizable
    assert not check_calls(wrong, RECORD).is_linearizable


def test_only_an_existing_job_can_be_purged_and_nothing_of_it_remains() -> None:
    purged = [
        ("begin", "a", PutRecordValue("x")),
        ("ok", "a", RecordState("x", 5)),
        ("begin", "a", PurgeJob()),
        ("ok", "a", RecordState(None, 6)),
    ]

    assert check_calls(a_history(*purged, ("begin", "b", ReadRecord()), ("ok", "b", NO_RECORD)), RECORD).is_linearizable
    assert not check_calls(
        a_history(*purged, ("begin", "b", ReadRecord()), ("ok", "b", RecordState("x", 5))), RECORD
    ).is_linearizable
    assert not check_calls(a_history(*purged[2:]), RECORD).is_linearizable


def test_only_a_put_of_the_current_value_may_leave_the_record_unchanged() -> None:
    def put_twice(value: str) -> list[RecordedCall[RecordRequest, RecordResponse]]:
        return a_history(
            ("begin", "a", PutRecordValue("x")), ("ok", "a", RecordState("x", 3)), ("begin", "a", PutRecordValue(value)), ("ok", "a", UnchangedRecord(value))
        )  # fmt: skip

    assert check_calls(put_twice("x"), RECORD).is_linearizable
    assert not check_calls(put_twice("y"), RECORD).is_linearizable


def test_an_eligibility_reported_as_unchanged_must_have_been_set_before() -> None:
    never_put = a_history(("begin", "a", PutRecordValue(False)), ("ok", "a", UnchangedRecord(False)))
    put = a_history(
        ("begin", "a", PutRecordValue(False)),
        ("ok", "a", RecordState(False, 0)),
        ("begin", "a", PutRecordValue(False)),
        ("ok", "a", UnchangedRecord(False)),
    )

    assert not check_calls(never_put, RegisterModel(True)).is_linearizable
    assert check_calls(put, RegisterModel(True)).is_linearizable


def test_versions_never_go_back() -> None:
    decreasing = a_history(
        ("begin", "a", PutRecordValue("x")),
        ("ok", "a", RecordState("x", 5)),
        ("begin", "a", PutRecordValue("y")),
        ("ok", "a", RecordState("y", 4)),
    )

    assert not check_calls(decreasing, RECORD).is_linearizable


values = st.sampled_from(["x", "y"])
versions = st.integers(0, 3)
requests: st.SearchStrategy[RecordRequest] = st.one_of(
    st.just(ReadRecord()), st.builds(PutRecordValue, values), st.builds(PutIfVersion, versions, values)
)
responses: st.SearchStrategy[RecordResponse] = st.one_of(
    st.just(NO_RECORD), st.builds(RecordState, values, st.integers(1, 3)), st.just(VersionConflict())
)
outcomes = st.sampled_from([CallOutcome.OK, CallOutcome.OK, CallOutcome.OK, CallOutcome.UNKNOWN, CallOutcome.FAILED])


@st.composite
def small_histories(draw: st.DrawFn) -> list[RecordedCall[RecordRequest, RecordResponse]]:
    """Draw calls at arbitrary times with arbitrary responses. Most of these histories are wrong."""
    count = draw(st.integers(0, 5))
    positions = draw(st.permutations(range(2 * count)))
    calls: list[RecordedCall[RecordRequest, RecordResponse]] = []
    for number in range(count):
        began, ended = sorted(positions[2 * number : 2 * number + 2])
        outcome = draw(outcomes)
        calls.append(
            RecordedCall(
                number, "c", "key", draw(requests), float(began), began,
                end_position=float(ended) if outcome is not CallOutcome.UNKNOWN else NOT_ENDED,
                outcome=outcome, response=draw(responses) if outcome is CallOutcome.OK else None,
            )
        )  # fmt: skip
    return calls


@given(small_histories())
def test_the_checker_agrees_with_the_definition_on_arbitrary_histories(
    calls: list[RecordedCall[RecordRequest, RecordResponse]],
) -> None:
    assert check_calls(calls, RECORD).is_linearizable == is_linearizable(calls, RECORD)


def a_correct_history(
    random: Random, *, count: int, clients: int, loss_interval: int = 15
) -> list[RecordedCall[RecordRequest, RecordResponse]]:
    """Return the history of a record that does each operation at a random time between its call and its reply."""
    calls: list[RecordedCall[RecordRequest, RecordResponse]] = []
    state, position = NO_RECORD, 0
    busy: dict[
        int, tuple[RecordedCall[RecordRequest, RecordResponse], bool]
    ] = {}  # The call, and whether it has happened.
    while len(calls) < count or busy:
        position += 1
        client = random.randrange(clients)
        if client not in busy:
            if len(calls) == count:
                continue
            request: RecordRequest = random.choice(
                (ReadRecord(), PutRecordValue(random.randrange(9)), PutIfVersion(state.version, random.randrange(9)))
            )
            call: RecordedCall[RecordRequest, RecordResponse] = RecordedCall(
                len(calls), f"c{client}", "key", request, float(position), position
            )
            calls.append(call)
            busy[client] = (call, False)
            continue
        call, happened = busy[client]
        if not happened:
            if random.randrange(loss_interval):
                call.response, state = _apply(state, call.request, position)
            busy[client] = (call, True)
            continue
        del busy[client]
        if call.response is None or random.randrange(loss_interval) == 0:
            call.outcome, call.response = CallOutcome.UNKNOWN, None
        else:
            call.outcome, call.end_position = CallOutcome.OK, float(position)
    return calls


def _apply(state: RecordState, request: RecordRequest, version: int) -> tuple[RecordResponse, RecordState]:
    """Return the response and the new state of a record for this request."""
    match request:
        case ReadRecord():
            return state, state
        case PutRecordValue(value):
            return RecordState(value, version), RecordState(value, version)
        case PutIfVersion(expected, value):
            if state.version != expected:
                return VersionConflict(), state
            return RecordState(value, version), RecordState(value, version)
        case StopJob() | RerunElements() | PurgeJob() | RestoreRecord():
            raise AssertionError("the history of a record has no operations of jobs, and no restores")


@given(st.integers(0, 2**32))
def test_a_correct_history_is_linearizable_and_one_with_a_wrong_reply_is_judged_by_the_definition(
    seed: int,
) -> None:
    random = Random(seed)
    calls = a_correct_history(random, count=6, clients=3, loss_interval=5)
    assert check_calls(calls, RECORD).is_linearizable
    completed = [call for call in calls if call.outcome is CallOutcome.OK]
    if completed:
        random.choice(completed).response = random.choice(
            [NO_RECORD, RecordState(random.randrange(9), random.randrange(30))]
        )

    assert check_calls(calls, RECORD).is_linearizable == is_linearizable(calls, RECORD)


@pytest.mark.parametrize("seed", range(5))
def test_a_long_history_of_many_clients_is_checked_in_few_tries(seed: int) -> None:
    calls = a_correct_history(Random(seed), count=2_000, clients=8, loss_interval=200)

    verdict = check_calls(calls, RECORD)

    assert verdict.is_linearizable
    assert verdict.try_count < 50_000


def test_one_wrong_reply_in_a_long_history_is_found() -> None:
    calls = a_correct_history(Random(3), count=600, clients=5, loss_interval=60)
    reads = [call for call in calls if isinstance(call.request, ReadRecord) and call.outcome is CallOutcome.OK]
    reads[len(reads) // 2].response = NO_RECORD

    assert not check_calls(calls, RECORD).is_linearizable


def test_keys_are_checked_independently() -> None:
    history: CallHistory[RecordRequest, RecordResponse] = CallHistory(SimulatedLoop(1))
    for key, seen in (("good", RecordState("x", 5)), ("bad", NO_RECORD)):
        history.complete_call(history.begin_call("a", key, PutRecordValue("x")), RecordState("x", 5))
        history.complete_call(history.begin_call("a", key, ReadRecord()), seen)

    assert {key: verdict.is_linearizable for key, verdict in check_all_keys(history.calls, RECORD).items()} == {
        "good": True,
        "bad": False,
    }

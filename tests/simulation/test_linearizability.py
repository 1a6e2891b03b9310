"""The checker of histories: small ones by name, random ones against the definition, long ones in few tries."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.history import NEVER, Call, History, Outcome
from simulation.linearizability import check, check_all
from simulation.loop import SimulatedLoop
from simulation.models import (
    NOTHING,
    Answer,
    Asked,
    Kept,
    Purge,
    Put,
    PutIf,
    Read,
    Refused,
    Register,
    Restored,
    Seen,
    Stop,
    VersionedRecord,
)
from tests.simulation.brute_force import is_linearizable

RECORD = VersionedRecord()


def a_history(*moments: tuple[str, str, Any]) -> list[Call[Asked, Answer]]:
    """Moments in order: ("begin", client, what is asked), ("ok", client, answer), ("failed" or "lost", client, None)."""
    history: History[Asked, Answer] = History(SimulatedLoop(1))
    open_calls: dict[str, Call[Asked, Answer]] = {}
    for what, client, value in moments:
        match what:
            case "begin":
                open_calls[client] = history.begin(client, "key", value)
            case "ok":
                history.ok(open_calls.pop(client), value)
            case "failed":
                history.failed(open_calls.pop(client))
            case "lost":
                history.unknown(open_calls.pop(client))
    return history.calls


def test_a_read_after_an_acknowledged_write_must_see_it() -> None:
    stale = a_history(("begin", "a", Put("x")), ("ok", "a", Seen("x", 5)), ("begin", "b", Read()), ("ok", "b", NOTHING))

    verdict = check(stale, RECORD)

    assert not verdict.is_linearizable
    assert [call.client for call in verdict.stuck] == ["b"]


def test_a_read_beside_a_write_may_see_it_or_not() -> None:
    for seen in (NOTHING, Seen("x", 5)):
        beside = a_history(
            ("begin", "a", Put("x")), ("begin", "b", Read()), ("ok", "b", seen), ("ok", "a", Seen("x", 5))
        )
        assert check(beside, RECORD).is_linearizable


def test_what_one_reader_saw_a_later_one_must_not_miss() -> None:
    flicker = a_history(
        ("begin", "a", Put("x")),
        ("begin", "b", Read()),
        ("ok", "b", Seen("x", 5)),
        ("begin", "c", Read()),
        ("ok", "c", NOTHING),
        ("ok", "a", Seen("x", 5)),
    )

    assert not check(flicker, RECORD).is_linearizable


def test_a_restore_takes_back_what_was_written_and_nobody_may_see_that_again() -> None:
    written = [("begin", "a", Put("x")), ("ok", "a", Seen("x", 5))]
    restored = [*written, ("begin", "the restore", Restored()), ("ok", "the restore", NOTHING)]
    for seen, is_so in ((NOTHING, True), (Seen("x", 5), False)):
        history = a_history(*restored, ("begin", "b", Read()), ("ok", "b", seen))
        assert check(history, RECORD).is_linearizable is is_so


def test_an_unknown_write_may_take_effect_much_later_but_only_once() -> None:
    late = [
        ("begin", "a", Put("x")),
        ("lost", "a", None),
        ("begin", "b", Put("y")),
        ("ok", "b", Seen("y", 4)),
        ("begin", "b", Read()),
        ("ok", "b", Seen("x", 6)),
    ]
    twice = [
        *late,
        ("begin", "b", Put("z")),
        ("ok", "b", Seen("z", 7)),
        ("begin", "b", Read()),
        ("ok", "b", Seen("x", 8)),
    ]

    assert check(a_history(*late), RECORD).is_linearizable
    assert not check(a_history(*twice), RECORD).is_linearizable


def test_a_write_that_failed_must_never_be_seen() -> None:
    seen = a_history(("begin", "a", Put("x")), ("failed", "a", None), ("begin", "b", Read()), ("ok", "b", Seen("x", 5)))

    assert not check(seen, RECORD).is_linearizable


def test_of_two_conditional_writes_on_one_version_one_wins() -> None:
    def race(second: Answer) -> list[Call[Asked, Answer]]:
        return a_history(
            ("begin", "a", PutIf(0, "x")),
            ("begin", "b", PutIf(0, "y")),
            ("ok", "a", Seen("x", 5)),
            ("ok", "b", second),
        )

    assert check(race(Refused()), RECORD).is_linearizable
    assert not check(race(Seen("y", 6)), RECORD).is_linearizable


def test_a_stopped_job_keeps_its_value_and_one_that_is_not_there_stays_so() -> None:
    good = a_history(
        ("begin", "a", Stop()), ("ok", "a", NOTHING),
        ("begin", "a", Put(("x", False))), ("ok", "a", Seen(("x", False), 3)),
        ("begin", "b", Stop()), ("lost", "b", None),
        ("begin", "a", Read()), ("ok", "a", Seen(("x", True), 7)),
    )  # fmt: skip
    blind = a_history(
        ("begin", "a", Put(("x", False))), ("ok", "a", Seen(("x", False), 3)), ("begin", "b", Stop()), ("ok", "b", NOTHING)
    )  # fmt: skip

    assert check(good, RECORD).is_linearizable
    assert not check(blind, RECORD).is_linearizable


def test_of_a_purged_job_nothing_is_left_and_only_one_that_was_there_is_purged() -> None:
    gone = [("begin", "a", Put("x")), ("ok", "a", Seen("x", 5)), ("begin", "a", Purge()), ("ok", "a", Seen(None, 6))]

    assert check(a_history(*gone, ("begin", "b", Read()), ("ok", "b", NOTHING)), RECORD).is_linearizable
    assert not check(a_history(*gone, ("begin", "b", Read()), ("ok", "b", Seen("x", 5))), RECORD).is_linearizable
    assert not check(a_history(*gone[2:]), RECORD).is_linearizable


def test_a_put_of_what_stands_there_may_keep_it_and_no_other_may() -> None:
    def putting(value: str) -> list[Call[Asked, Answer]]:
        return a_history(
            ("begin", "a", Put("x")), ("ok", "a", Seen("x", 3)), ("begin", "a", Put(value)), ("ok", "a", Kept(value))
        )  # fmt: skip

    assert check(putting("x"), RECORD).is_linearizable
    assert not check(putting("y"), RECORD).is_linearizable


def test_a_switch_that_was_found_in_place_must_have_been_there() -> None:
    kept = a_history(("begin", "a", Put(False)), ("ok", "a", Kept(False)))
    put = a_history(
        ("begin", "a", Put(False)), ("ok", "a", Seen(False, 0)), ("begin", "a", Put(False)), ("ok", "a", Kept(False))
    )

    assert not check(kept, Register(True)).is_linearizable
    assert check(put, Register(True)).is_linearizable


def test_versions_never_go_back() -> None:
    back = a_history(
        ("begin", "a", Put("x")), ("ok", "a", Seen("x", 5)), ("begin", "a", Put("y")), ("ok", "a", Seen("y", 4))
    )

    assert not check(back, RECORD).is_linearizable


values = st.sampled_from(["x", "y"])
versions = st.integers(0, 3)
asked_ones: st.SearchStrategy[Asked] = st.one_of(
    st.just(Read()), st.builds(Put, values), st.builds(PutIf, versions, values)
)
answers: st.SearchStrategy[Answer] = st.one_of(
    st.just(NOTHING), st.builds(Seen, values, st.integers(1, 3)), st.just(Refused())
)
outcomes = st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED])


@st.composite
def small_histories(draw: st.DrawFn) -> list[Call[Asked, Answer]]:
    """Calls at arbitrary moments with arbitrary answers: mostly wrong ones."""
    count = draw(st.integers(0, 5))
    moments = draw(st.permutations(range(2 * count)))
    calls: list[Call[Asked, Answer]] = []
    for number in range(count):
        began, ended = sorted(moments[2 * number : 2 * number + 2])
        outcome = draw(outcomes)
        calls.append(
            Call(
                number, "c", "key", draw(asked_ones), float(began), began,
                ended=float(ended) if outcome is not Outcome.UNKNOWN else NEVER,
                outcome=outcome, answer=draw(answers) if outcome is Outcome.OK else None,
            )
        )  # fmt: skip
    return calls


@given(small_histories())
def test_the_checker_agrees_with_the_definition_on_arbitrary_histories(calls: list[Call[Asked, Answer]]) -> None:
    assert check(calls, RECORD).is_linearizable == is_linearizable(calls, RECORD)


def a_true_history(random: Random, *, count: int, clients: int, lost_one_in: int = 15) -> list[Call[Asked, Answer]]:
    """What a record would tell that does each operation at some moment between call and answer."""
    calls: list[Call[Asked, Answer]] = []
    state, moment = NOTHING, 0
    busy: dict[int, tuple[Call[Asked, Answer], bool]] = {}  # The call, and whether it has happened.
    while len(calls) < count or busy:
        moment += 1
        client = random.randrange(clients)
        if client not in busy:
            if len(calls) == count:
                continue
            asked: Asked = random.choice((Read(), Put(random.randrange(9)), PutIf(state.version, random.randrange(9))))
            call: Call[Asked, Answer] = Call(len(calls), f"c{client}", "key", asked, float(moment), moment)
            calls.append(call)
            busy[client] = (call, False)
            continue
        call, happened = busy[client]
        if not happened:
            if random.randrange(lost_one_in):
                call.answer, state = _happen(state, call.asked, moment)
            busy[client] = (call, True)
            continue
        del busy[client]
        if call.answer is None or random.randrange(lost_one_in) == 0:
            call.outcome, call.answer = Outcome.UNKNOWN, None
        else:
            call.outcome, call.ended = Outcome.OK, float(moment)
    return calls


def _happen(state: Seen, asked: Asked, version: int) -> tuple[Answer, Seen]:
    match asked:
        case Read():
            return state, state
        case Put(value):
            return Seen(value, version), Seen(value, version)
        case PutIf(expected, value):
            if state.version != expected:
                return Refused(), state
            return Seen(value, version), Seen(value, version)
        case Stop() | Purge() | Restored():
            raise AssertionError("this record is no job, and nobody restores it")


@given(st.integers(0, 2**32))
def test_what_a_true_record_tells_is_linearizable_and_one_wrong_answer_is_judged_as_by_the_definition(
    seed: int,
) -> None:
    random = Random(seed)
    calls = a_true_history(random, count=6, clients=3, lost_one_in=5)
    assert check(calls, RECORD).is_linearizable
    answered = [call for call in calls if call.outcome is Outcome.OK]
    if answered:
        random.choice(answered).answer = random.choice([NOTHING, Seen(random.randrange(9), random.randrange(30))])

    assert check(calls, RECORD).is_linearizable == is_linearizable(calls, RECORD)


@pytest.mark.parametrize("seed", range(5))
def test_a_long_history_of_many_clients_is_checked_in_few_tries(seed: int) -> None:
    calls = a_true_history(Random(seed), count=2_000, clients=8, lost_one_in=200)

    verdict = check(calls, RECORD)

    assert verdict.is_linearizable
    assert verdict.tries < 50_000


def test_one_wrong_answer_in_a_long_history_is_found() -> None:
    calls = a_true_history(Random(3), count=600, clients=5, lost_one_in=60)
    reads = [call for call in calls if isinstance(call.asked, Read) and call.outcome is Outcome.OK]
    reads[len(reads) // 2].answer = NOTHING

    assert not check(calls, RECORD).is_linearizable


def test_keys_are_judged_apart() -> None:
    history: History[Asked, Answer] = History(SimulatedLoop(1))
    for key, seen in (("good", Seen("x", 5)), ("bad", NOTHING)):
        history.ok(history.begin("a", key, Put("x")), Seen("x", 5))
        history.ok(history.begin("a", key, Read()), seen)

    assert {key: verdict.is_linearizable for key, verdict in check_all(history.calls, RECORD).items()} == {
        "good": True,
        "bad": False,
    }

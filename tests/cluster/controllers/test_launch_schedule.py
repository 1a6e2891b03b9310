"""Launches of periodic jobs (scheduling.md 8.1)."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_parameterized_job
from tests.kit.state import SECOND_NS, SETTINGS, AState
from wharf.cluster.controllers.periodic import DueLaunch, LaunchSchedule, launch_if_due
from wharf.cluster.operations.jobs.children import ChildJobResult
from wharf.cluster.operations.jobs.periodic import launch_periodic_job
from wharf.cluster.state.tables import EVALUATIONS, JOBS, PERIODIC_LAUNCHES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job, JobStatus, Periodic
from wharf.contract.model.jobs.periodic import PeriodicLaunch
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.times import to_datetime, to_ns

KEY = ("default", "nightly")
UTC = datetime.UTC
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


def periodic(spec: str = "0 * * * *", *more: str, **fields: Any) -> Job:
    return a_batch_job("nightly", periodic=Periodic(specs=(spec, *more), **fields))


def at(text: str) -> int:
    return to_ns(datetime.datetime.fromisoformat(text).replace(tzinfo=UTC))


def a_state(job: Job, *, now: str = "2026-03-01T00:30:00") -> AState:
    state = AState()
    state.now_ns = at(now)
    state.register(job)
    return state


def track(state: AState) -> LaunchSchedule:
    launches = LaunchSchedule()
    launches.update_job(KEY, state.job("nightly"), state.now_ns)
    return launches


def list_launches_until(launches: LaunchSchedule, end: str) -> list[str]:
    """Return the launches until `end` of a leader that is never late."""
    times = []
    while (due_ns := launches.next_deadline_ns()) is not None and due_ns <= at(end):
        times += [to_datetime(due.launch_s * SECOND_NS).strftime("%d %H:%M:%S") for due in launches.take_due(due_ns)]
    return times


def launch(state: AState, launch_s: int) -> ChildJobResult | None:
    return state.lead(launch_if_due(state.replica, DueLaunch(KEY, launch_s), state.moment, SETTINGS))


def restore_schedule(state: AState) -> LaunchSchedule:
    launches = LaunchSchedule()
    launches.restore_job(state.replica, KEY, state.now_ns)
    return launches


def record_last_launch(state: AState, time: str) -> None:
    state.put(
        PERIODIC_LAUNCHES.build_put(PeriodicLaunch(namespace="default", id="nightly", launch=to_datetime(at(time))))
    )


# -- launch times


def test_a_job_is_launched_at_each_time_of_its_schedule() -> None:
    launches = track(a_state(periodic("*/20 * * * *")))

    assert list_launches_until(launches, "2026-03-01T01:20:00") == ["01 00:40:00", "01 01:00:00", "01 01:20:00"]


def test_the_earliest_launch_of_several_schedules_comes_first() -> None:
    launches = track(a_state(periodic("0 * * * *", "45 * * * *")))

    assert list_launches_until(launches, "2026-03-01T01:50:00") == ["01 00:45:00", "01 01:00:00", "01 01:45:00"]


def test_a_schedule_uses_its_time_zone() -> None:
    launches = track(a_state(periodic("0 3 * * *", time_zone="America/New_York")))

    assert list_launches_until(launches, "2026-03-01T12:00:00") == ["01 08:00:00"]


def test_a_local_time_that_is_skipped_in_spring_has_no_launch_that_day() -> None:
    job = periodic("30 2 * * *", time_zone="Europe/Berlin")
    launches = track(a_state(job, now="2026-03-28T12:00:00"))

    assert list_launches_until(launches, "2026-03-30T12:00:00") == ["30 00:30:00"]


def test_a_local_time_that_is_repeated_in_autumn_launches_twice() -> None:
    job = periodic("30 2 * * *", time_zone="Europe/Berlin")
    launches = track(a_state(job, now="2026-10-24T12:00:00"))

    assert list_launches_until(launches, "2026-10-25T12:00:00") == ["25 00:30:00", "25 01:30:00"]


def test_a_job_whose_schedule_has_no_time_left_is_never_due() -> None:
    launches = track(a_state(periodic("0 0 1 1 * 2020")))

    assert launches.next_deadline_ns() is None


def test_neither_disabled_nor_stopped_nor_parameterized_jobs_are_launched() -> None:
    disabled = a_state(periodic(enabled=False)).job("nightly")
    stopped = replace(a_state(periodic()).job("nightly"), stop=True)
    waits = replace(a_parameterized_job("nightly"), periodic=Periodic(specs=("* * * * *",)))
    launches = LaunchSchedule()

    for job in (disabled, stopped, waits):
        launches.update_job(KEY, job, at("2026-03-01T00:30:00"))

    assert len(launches) == 0


def test_a_stopped_or_deleted_job_is_not_due() -> None:
    state = a_state(periodic())
    for deleted in (replace(state.job("nightly"), stop=True), None):
        launches = track(state)
        launches.update_job(KEY, deleted, state.now_ns)

        assert launches.next_deadline_ns() is None


def test_a_new_schedule_counts_from_its_submission() -> None:
    state = a_state(periodic())
    launches = track(state)
    state.now_ns += 10 * MINUTE_NS
    state.register(periodic("50 * * * *"))

    launches.update_job(KEY, state.job("nightly"), state.now_ns)

    assert list_launches_until(launches, "2026-03-01T01:30:00") == ["01 00:50:00"]


def test_other_changes_of_a_job_move_no_launch() -> None:
    state = a_state(periodic())
    launches = track(state)

    launches.update_job(KEY, replace(state.job("nightly"), priority=70), at("2026-03-01T01:00:00"))

    assert launches.next_deadline_ns() == at("2026-03-01T01:00:00")


def test_a_change_of_a_job_does_not_lose_a_launch_that_is_due() -> None:
    state = a_state(periodic())
    launches = track(state)

    launches.update_job(KEY, replace(state.job("nightly"), priority=70), at("2026-03-01T01:30:00"))

    assert launches.next_deadline_ns() == at("2026-03-01T01:00:00")


def test_one_launch_replaces_all_missed_launches() -> None:
    launches = track(a_state(periodic("*/10 * * * *")))

    assert len(launches.take_due(at("2026-03-01T05:05:00"))) == 1
    assert launches.next_deadline_ns() == at("2026-03-01T05:10:00")


def test_a_job_can_request_all_or_none_of_its_missed_launches() -> None:
    all_missed, none_missed = (track(a_state(periodic("*/10 * * * *", missed=missed))) for missed in ("all", "none"))

    assert [at(f"2026-03-01T00:{minute}:00") // SECOND_NS for minute in (40, 50)] == [
        due.launch_s for due in all_missed.take_due(at("2026-03-01T00:55:00"))
    ]
    assert [] == none_missed.take_due(at("2026-03-01T00:55:00"))
    assert at("2026-03-01T01:00:00") == all_missed.next_deadline_ns() == none_missed.next_deadline_ns()


def test_a_slightly_late_leader_skips_no_launch() -> None:
    launches = track(a_state(periodic("*/10 * * * * * *")))

    assert len(launches.take_due(at("2026-03-01T00:30:35"))) == 3


# -- the child


def test_the_child_is_named_by_the_second_of_its_launch_and_evaluated() -> None:
    state = a_state(periodic())
    second = at("2026-03-01T01:00:00") // SECOND_NS

    created = launch(state, second)

    assert created is not None
    assert created.job_id == f"nightly/periodic-{second}"
    assert [evaluation.triggered_by for evaluation in state.evaluations(created.job_id)] == ["periodic-job"]
    record = state.replica.get(PERIODIC_LAUNCHES, *KEY)
    assert record is not None
    assert record.launch == to_datetime(second * SECOND_NS)


def test_a_launch_is_skipped_while_a_child_runs_and_overlap_is_prohibited() -> None:
    state = a_state(periodic(prohibit_overlap=True))
    first = launch(state, 1_000)
    assert first is not None

    assert launch(state, 2_000) is None

    state.end_evaluations(first.job_id)
    assert launch(state, 3_000) is not None


def test_an_active_allocation_of_a_child_prohibits_overlap() -> None:
    state = a_state(periodic(prohibit_overlap=True))
    first = launch(state, 1_000)
    assert first is not None
    state.with_allocation(state.job(first.job_id), "a1", client_status=ClientStatus.RUNNING)
    state.end_evaluations(first.job_id)

    assert launch(state, 2_000) is None

    state.with_client_status("a1", ClientStatus.COMPLETE)
    assert launch(state, 3_000) is not None


def test_a_launch_does_not_wait_for_children_where_overlap_is_allowed() -> None:
    state = a_state(periodic())
    launch(state, 1_000)

    assert launch(state, 2_000) is not None


def test_a_job_that_was_stopped_meanwhile_is_not_launched() -> None:
    state = a_state(periodic())
    state.put(JOBS.build_put(replace(state.job("nightly"), stop=True)))

    assert launch(state, 1_000) is None


def test_the_same_launch_again_creates_no_second_child() -> None:
    state = a_state(periodic())
    launch(state, 1_000)
    launch(state, 1_000)

    assert [job.id for job in state.replica.iter_all(JOBS)] == ["nightly", "nightly/periodic-1000"]


# -- another leader


def test_a_new_leader_continues_after_the_last_launch() -> None:
    state = a_state(periodic())
    record_last_launch(state, "2026-03-01T00:00:00")

    assert restore_schedule(state).next_deadline_ns() == at("2026-03-01T01:00:00")


def test_a_new_leader_starts_one_launch_for_any_number_of_missed_launches() -> None:
    state = a_state(periodic("*/10 * * * *"))
    record_last_launch(state, "2026-02-28T00:00:00")
    launches = restore_schedule(state)

    due = launches.take_due(state.now_ns)

    assert due == [DueLaunch(KEY, state.now_ns // SECOND_NS)]
    assert launches.next_deadline_ns() == at("2026-03-01T00:40:00")


def test_a_new_leader_starts_all_or_no_missed_launches_if_the_job_requests_it() -> None:
    def list_made_up_launches(missed: str) -> tuple[list[str], int | None]:
        state = a_state(periodic("*/10 * * * *", missed=missed))
        record_last_launch(state, "2026-03-01T00:00:00")
        launches = restore_schedule(state)
        due = [to_datetime(each.launch_s * SECOND_NS).strftime("%H:%M") for each in launches.take_due(state.now_ns)]
        return due, launches.next_deadline_ns()

    following = at("2026-03-01T00:40:00")
    assert (["00:10", "00:20", "00:30"], following) == list_made_up_launches("all")
    assert (["00:30"], following) == list_made_up_launches("none")  # The launch at 00:30 was not missed: it is due now.


def test_many_missed_launches_are_returned_in_several_steps() -> None:
    launches = track(a_state(periodic("* * * * *", missed="all")))

    result = [len(launches.take_due(at("2026-03-01T03:00:00"))) for _ in range(3)]

    assert [100, 50, 0] == result


def test_a_launch_that_the_previous_leader_may_have_started_keeps_its_second() -> None:
    state = a_state(periodic(), now="2026-03-01T01:00:05")
    record_last_launch(state, "2026-03-01T00:00:00")

    assert restore_schedule(state).take_due(state.now_ns) == [DueLaunch(KEY, at("2026-03-01T01:00:00") // SECOND_NS)]


def test_a_new_leader_makes_up_for_no_launch_whose_child_a_backfill_had_created() -> None:
    slot = at("2026-03-01T00:00:00")
    state = a_state(periodic(), now="2026-02-28T23:30:00")
    state.now_ns = slot
    state.lead(
        launch_periodic_job(
            state.replica,
            state.job("nightly"),
            state.moment,
            SETTINGS,
            launch_time_s=slot // SECOND_NS,
            is_backfill=True,
        )
    )
    launch(state, slot // SECOND_NS)
    state.now_ns = at("2026-03-01T00:30:00")

    assert restore_schedule(state).take_due(state.now_ns) == []


def test_a_job_that_was_never_due_has_no_missed_launches() -> None:
    state = a_state(periodic())
    state.now_ns += MINUTE_NS

    assert restore_schedule(state).take_due(state.now_ns) == []


# -- boundaries


def test_a_change_concerns_the_schedule_if_the_job_is_or_was_an_active_periodic_job() -> None:
    state = a_state(periodic())
    launches = track(state)
    disabled = a_state(periodic(enabled=False)).job("nightly")
    other = ("default", "other")

    changes = [(KEY, None), (KEY, disabled), (other, state.job("nightly")), (other, disabled), (other, None)]
    assert [launches.should_track(key, job) for key, job in changes] == [True, True, True, False, False]


def test_a_job_that_was_purged_and_registered_again_has_a_new_schedule() -> None:
    state = a_state(periodic())
    launches = track(state)
    state.now_ns += HOUR_NS

    again = replace(state.job("nightly"), create_index=99, submit_time=state.now_ns)
    launches.update_job(KEY, again, state.now_ns)

    assert launches.next_deadline_ns() == at("2026-03-01T02:00:00")


@pytest.mark.parametrize(
    ("submitted", "first"),
    [
        pytest.param("01:00:29", "01:00:30", id="launches since the submission are made"),
        pytest.param("01:00:30", "01:00:40", id="the second of the submission is over"),
        pytest.param("00:10:00", "01:00:00", id="at most those of the last minute"),
        pytest.param("01:00:50", "01:01:00", id="now"),
        pytest.param("01:30:00", "01:01:00", id="in the future, because the clock was set back"),
    ],
)
def test_the_first_launch_counts_from_the_submission_but_at_most_a_minute_back(submitted: str, first: str) -> None:
    job = replace(a_state(periodic("*/10 * * * * * *")).job("nightly"), submit_time=at(f"2026-03-01T{submitted}"))
    launches = LaunchSchedule()

    launches.update_job(KEY, job, at("2026-03-01T01:00:50"))

    assert launches.next_deadline_ns() == at(f"2026-03-01T{first}")


@pytest.mark.parametrize("missed", ["", "once", "all", "none"])
@pytest.mark.parametrize("late_s", [0, 59, 60, 61])
def test_a_launch_is_missed_if_it_is_a_minute_late(missed: str, late_s: int) -> None:
    launches = track(a_state(periodic("*/30 * * * * * *", missed=missed), now="2026-03-01T00:59:59"))
    due_s = at("2026-03-01T01:00:00") // SECOND_NS
    launched = [due.launch_s - due_s for due in launches.take_due((due_s + late_s) * SECOND_NS)]

    expected = {0: [0], 59: [0, 30], 60: [0, 30, 60], 61: [0, 30, 60]}[late_s]
    if late_s >= 60 and missed == "none":
        expected = expected[1:]
    elif late_s >= 60 and missed != "all":
        expected = [0]
    assert launched == expected
    assert launches.next_deadline_ns() == (due_s + {0: 30, 59: 60, 60: 90, 61: 90}[late_s]) * SECOND_NS


def test_no_launch_is_due_before_its_time() -> None:
    launches = track(a_state(periodic()))

    assert launches.take_due(at("2026-03-01T01:00:00") - 1) == []
    assert len(launches) == 1


def test_due_launches_of_all_jobs_are_returned_in_the_order_of_their_times() -> None:
    state = a_state(periodic())
    launches = LaunchSchedule()
    for name, minute in (("b", 20), ("a", 10), ("c", 30)):
        job = replace(periodic(f"{minute} * * * *"), id=name, submit_time=state.now_ns)
        launches.update_job(("default", name), job, state.now_ns)

    due = launches.take_due(at("2026-03-01T01:20:00"))

    assert [(each.job_key[1], each.launch_s) for each in due] == [
        ("a", at("2026-03-01T01:10:00") // SECOND_NS),
        ("b", at("2026-03-01T01:20:00") // SECOND_NS),
    ]


def test_a_job_without_further_launches_stays_tracked() -> None:
    launches = track(a_state(periodic("0 1 1 3 * 2026")))

    assert len(launches.take_due(at("2026-03-01T01:00:00"))) == 1
    assert (launches.next_deadline_ns(), len(launches)) == (None, 1)


def test_a_job_that_makes_up_for_many_launches_does_not_delay_other_jobs() -> None:
    state = a_state(periodic())
    launches = LaunchSchedule()
    specs = [("catches-up", "* * * * * * *"), ("catches-up-too", "* * * * * * *"), ("punctual", "0 1 * * *")]
    for name, spec in specs:
        job = replace(periodic(spec, missed="all"), id=name, submit_time=state.now_ns)
        launches.update_job(("default", name), job, state.now_ns)

    due = [each.job_key[1] for each in launches.take_due(at("2026-03-01T01:10:00"))]

    assert len(due) == 100
    assert due[:3] == ["catches-up", "catches-up-too", "punctual"]
    assert due.count("catches-up") - due.count("catches-up-too") in (0, 1)


def test_a_stored_job_with_too_many_schedules_is_launched_by_the_first_ones() -> None:
    never = tuple(f"{n % 60} {n // 60 % 24} 31,31W 2,4,6,9,11 *" for n in range(4_990))
    state = a_state(periodic())
    stored = periodic("0 * * * *", *never, "* * * * * * *", time_zone="America/New_York")
    state.put(JOBS.build_put(replace(state.job("nightly"), periodic=stored.periodic)))
    launches = track(state)

    assert list_launches_until(launches, "2026-03-01T02:30:00") == ["01 01:00:00", "01 02:00:00"]


# -- another leader, at boundaries


def test_a_new_leader_ignores_jobs_that_launch_nothing() -> None:
    for job in (periodic(enabled=False), a_batch_job("nightly")):
        assert len(restore_schedule(a_state(job))) == 0
    launches = LaunchSchedule()
    launches.restore_job(AState().replica, KEY, at("2026-03-01T00:30:00"))

    assert len(launches) == 0


def test_a_last_launch_in_the_future_does_not_delay_the_next_one() -> None:
    state = a_state(periodic())
    record_last_launch(state, "2026-03-01T09:00:00")

    assert restore_schedule(state).next_deadline_ns() == at("2026-03-01T01:00:00")


@pytest.mark.parametrize(
    ("spec", "last", "now", "missed", "expected"),
    [
        pytest.param("0 * * * *", "00:00:00", "01:00:59", "once", "01:00:00", id="one launch, within a minute"),
        pytest.param("0 * * * *", "00:00:00", "01:01:00", "once", "01:01:00", id="one launch, a minute ago"),
        pytest.param("0 * * * *", "00:00:00", "01:00:00", "once", "01:00:00", id="due now"),
        pytest.param("*/20 * * * * * *", "01:00:00", "01:00:39", "once", "01:00:20", id="one of several per minute"),
        pytest.param("*/20 * * * * * *", "01:00:00", "01:00:40", "once", "01:00:40", id="two launches"),
        pytest.param("*/20 * * * * * *", "01:00:00", "01:00:45", "once", "01:00:45", id="two launches, late"),
        pytest.param("*/20 * * * * * *", "01:00:00", "01:00:45", "all", "01:00:20", id="all, two launches"),
        pytest.param("*/20 * * * * * *", "01:00:00", "01:00:45", "none", "01:00:20", id="none, within a minute"),
        pytest.param("*/20 * * * * * *", "00:00:00", "01:00:45", "none", "01:00:00", id="none, the last minute"),
        pytest.param("0 1 1 3 * 2026", "00:00:00", "01:00:59", "once", "01:00:00", id="the last launch of all"),
        pytest.param("0 1 1 3 * 2026", "00:00:00", "01:00:59", "none", "01:00:00", id="none, the last launch of all"),
        pytest.param("0 1 1 3 * 2026", "00:00:00", "01:05:00", "none", None, id="none, no launch left"),
        pytest.param("0 1 1 3 * 2026", "00:00:00", "01:05:00", "once", "01:05:00", id="once, no launch left"),
    ],
)
def test_a_new_leader_starts_with_the_launch_that_the_policy_selects(
    spec: str, last: str, now: str, missed: str, expected: str | None
) -> None:
    state = a_state(periodic(spec, missed=missed))
    state.now_ns = at(f"2026-03-01T{now}")
    record_last_launch(state, f"2026-03-01T{last}")

    assert restore_schedule(state).next_deadline_ns() == (None if expected is None else at(f"2026-03-01T{expected}"))


# -- children, at boundaries


def test_an_unknown_job_is_not_launched() -> None:
    state = AState()

    assert launch(state, 1_000) is None


def test_the_cause_of_a_launch_is_the_timer() -> None:
    state = a_state(periodic())

    decision = launch_if_due(state.replica, DueLaunch(KEY, 1_000), state.moment, SETTINGS)

    assert decision.write is not None
    assert decision.write.cause == Cause(CauseKind.TIMER, "periodic")


def test_a_dead_child_does_not_prohibit_overlap_although_an_evaluation_of_it_is_open() -> None:
    state = a_state(periodic(prohibit_overlap=True))
    first = launch(state, 1_000)
    assert first is not None
    state.put(JOBS.build_put(replace(state.job(first.job_id), status=JobStatus.DEAD)))

    assert launch(state, 2_000) is not None


def test_a_child_of_another_job_does_not_prohibit_overlap() -> None:
    state = a_state(periodic(prohibit_overlap=True))
    launch(state, 1_000)
    other = ("default", "other")
    state.register(replace(periodic(prohibit_overlap=True), id="other", name="other"))

    decision = launch_if_due(state.replica, DueLaunch(other, 1_000), state.moment, SETTINGS)

    assert decision.write is not None


def test_one_open_evaluation_of_several_prohibits_overlap() -> None:
    state = a_state(periodic(prohibit_overlap=True))
    first = launch(state, 1_000)
    assert first is not None
    ended = replace(state.evaluations(first.job_id)[0], id="ended", status=EvaluationStatus.COMPLETE)
    state.put(EVALUATIONS.build_put(ended))

    assert launch(state, 2_000) is None


def test_one_active_allocation_of_several_prohibits_overlap() -> None:
    state = a_state(periodic(prohibit_overlap=True))
    first = launch(state, 1_000)
    assert first is not None
    for allocation_id, status in (("a1", ClientStatus.COMPLETE), ("a2", ClientStatus.RUNNING)):
        state.with_allocation(state.job(first.job_id), allocation_id, client_status=status)
    state.end_evaluations(first.job_id)

    assert launch(state, 2_000) is None

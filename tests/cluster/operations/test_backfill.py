"""Backfill: one run for each past slot of a schedule, each slot once."""

import datetime

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_parameterized_job, a_periodic_job
from tests.kit.state import SECOND_NS, SETTINGS, AState
from wharf.cluster.operations.jobs.backfill import BackfillRequest, BackfillSlot, launch_slot, list_slots
from wharf.cluster.operations.jobs.job_outcomes import make_job_result
from wharf.cluster.operations.jobs.periodic import force_periodic_launch
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import CLUSTER_FORMAT, JOB_SUMMARIES, JOBS, PERIODIC_LAUNCHES
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.steps import Flow
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import to_ns

NOON = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)


def at(day: int, hour: int = 0) -> datetime.datetime:
    return datetime.datetime(2026, 11, day, hour, tzinfo=datetime.UTC)


class AFlow(AState):
    """A state at noon of 20 November 2026 with a flow that is launched daily at 3:00."""

    def __init__(self, *, overlap: str = "", job: Job | None = None) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        self.now_ns = to_ns(NOON)
        self.register(job or a_periodic_job("nightly", a_group("build"), flow=Flow(overlap=overlap)))

    def slots(self, begin: datetime.datetime, end: datetime.datetime, *, max_runs: int = 50) -> list[BackfillSlot]:
        return list_slots(self.replica, self.request(begin, end, max_runs=max_runs), self.now_ns)

    def request(self, begin: datetime.datetime, end: datetime.datetime, *, max_runs: int = 50) -> BackfillRequest:
        return BackfillRequest(namespace="default", job_id="nightly", begin=begin, end=end, max_runs=max_runs)

    def backfill(self, begin: datetime.datetime, end: datetime.datetime) -> list[str]:
        """Launch the runs of all slots; return the IDs of those that were created."""
        created = []
        for slot in self.slots(begin, end):
            index = self.replica.index
            decision = launch_slot(self.replica, self.request(begin, end), slot, self.moment, SETTINGS)
            result = self.lead(decision)
            if self.replica.index > index:
                created.append(result.job_id)
        return created

    def delete_run(self, run_id: str, *, is_collected: bool) -> None:
        """Delete a run as a purge or garbage collection does: its result remains."""
        result = make_job_result(self.replica, self.job(run_id), self.now_ns, is_collected=is_collected)
        assert result is not None
        self.put(JOBS.build_delete("default", run_id), JOB_SUMMARIES.build_delete("default", run_id), result)

    def launch_id(self, time: datetime.datetime) -> str:
        return f"nightly/periodic-{to_ns(time) // SECOND_NS}"


def test_a_backfill_launches_a_run_for_each_slot_of_the_time_without_its_end() -> None:
    flow = AFlow()

    assert flow.backfill(at(10, 3), at(12, 3)) == [flow.launch_id(at(10, 3)), flow.launch_id(at(11, 3))]


def test_a_second_backfill_of_the_same_slots_creates_nothing() -> None:
    flow = AFlow()
    flow.backfill(at(10), at(12))

    assert [slot.exists for slot in flow.slots(at(10), at(13))] == [True, True, False]
    assert flow.backfill(at(10), at(13)) == [flow.launch_id(at(12, 3))]
    assert flow.backfill(at(10), at(13)) == []


def test_a_slot_that_the_schedule_has_launched_is_not_launched_again() -> None:
    flow = AFlow()
    flow.now_ns = to_ns(at(10, 3))
    flow.lead(force_periodic_launch(flow.replica, "default", "nightly", flow.moment, SETTINGS))
    flow.now_ns = to_ns(NOON)

    assert flow.backfill(at(10), at(11)) == []


def test_a_backfill_does_not_move_the_last_launch_of_the_schedule() -> None:
    flow = AFlow()
    before = flow.replica.get(PERIODIC_LAUNCHES, "default", "nightly")

    flow.backfill(at(10), at(12))

    assert flow.replica.get(PERIODIC_LAUNCHES, "default", "nightly") == before


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_a_backfill_creates_all_runs_whatever_the_overlap_is_and_cancels_none(overlap: str) -> None:
    flow = AFlow(overlap=overlap)

    assert len(flow.backfill(at(10), at(13))) == 3
    assert all(not job.stop for job in flow.replica.iter_all(JOBS))


def test_a_backfill_is_limited_by_the_runs_that_it_would_create() -> None:
    flow = AFlow()
    flow.backfill(at(10), at(12))

    assert len(flow.slots(at(10), at(13), max_runs=1)) == 3
    with pytest.raises(Refusal, match="more than 1 slots of nightly between From and To have no run"):
        flow.slots(at(10), at(14), max_runs=1)


@pytest.mark.parametrize(
    ("begin", "end", "max_runs", "message"),
    [
        (at(12), at(12), 5, "the time To must be after the time From"),
        (at(12), at(21), 5, "the time To lies in the future"),
        (at(12), at(13), 0, "Max is 0; it must be a number from 1 to 200"),
        (at(12), at(13), 201, "Max is 201; it must be a number from 1 to 200"),
    ],
)
def test_a_backfill_with_a_wrong_time_or_number_is_refused(
    begin: datetime.datetime, end: datetime.datetime, max_runs: int, message: str
) -> None:
    with pytest.raises(Refusal, match=message):
        AFlow().slots(begin, end, max_runs=max_runs)


def test_a_flow_without_a_schedule_has_no_slots() -> None:
    flow = AFlow(job=a_parameterized_job("nightly", a_group("build")))

    with pytest.raises(Refusal, match="has no schedule"):
        flow.slots(at(10), at(11))


@pytest.mark.parametrize(
    "begin",
    [
        datetime.datetime.min.replace(tzinfo=datetime.UTC),
        datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14))),
        datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.UTC),
    ],
)
def test_a_backfill_from_before_1970_is_refused(begin: datetime.datetime) -> None:
    with pytest.raises(Refusal, match="must not be before 1970-01-01T00:00:00Z"):
        AFlow().slots(begin, at(12))


def test_a_slot_whose_run_was_collected_is_launched_again_only_on_request() -> None:
    flow = AFlow()
    (run_id,) = flow.backfill(at(10, 3), at(11, 3))
    flow.delete_run(run_id, is_collected=True)

    assert flow.backfill(at(10, 3), at(12, 3)) == [flow.launch_id(at(11, 3))]
    request = replace(flow.request(at(10, 3), at(11, 3)), again=True)
    (slot,) = list_slots(flow.replica, request, flow.now_ns)

    assert not slot.exists
    assert flow.lead(launch_slot(flow.replica, request, slot, flow.moment, SETTINGS)).job_id == run_id
    assert flow.replica.get(JOBS, "default", run_id) is not None


def test_a_slot_whose_run_a_user_purged_is_launched_again() -> None:
    flow = AFlow()
    (run_id,) = flow.backfill(at(10, 3), at(11, 3))
    flow.delete_run(run_id, is_collected=False)

    assert flow.backfill(at(10, 3), at(11, 3)) == [run_id]

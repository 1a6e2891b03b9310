"""Backfill of a flow: one run for each past slot of its schedule, unless the slot has one already (record 0317)."""

import datetime
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.jobs.children import ChildJobResult
from wharf.cluster.operations.jobs.overlap import MAX_UNFINISHED_RUNS, get_overlap, list_unfinished_runs
from wharf.cluster.operations.jobs.periodic import iterate_launches, launch_periodic_job, make_launch_id
from wharf.cluster.operations.jobs.registration import check_registration_enabled
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOB_RESULTS, JOBS
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.job_results import JobResult
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.model.times import SECOND, to_ns

MAX_BACKFILLED_RUNS: Final = 200
"""Runs that one request creates at most. Each is a write of the leader, so a request takes a few seconds."""
MAX_VISITED_SLOTS: Final = 2_000
"""Slots of a request, also those that have a run."""


class BackfillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the runs of past slots: from `begin` on, and before `end`."""

    namespace: str
    job_id: str
    begin: datetime.datetime
    end: datetime.datetime
    max_runs: int
    again: bool = False  # Slots whose run garbage collection has deleted run again.
    is_management: bool = True  # The caller may launch runs even while registration is disabled.
    cause: str = ""


class BackfillSlot(msgspec.Struct, frozen=True):
    """A slot of the schedule, and the run that belongs to it."""

    launch_s: int  # Unix seconds
    job_id: str
    exists: bool  # The run exists or has ended and was collected, so the backfill does not create it.


def list_slots(snapshot: Replica, request: BackfillRequest, now_ns: int) -> list[BackfillSlot]:
    """Return the slots of a backfill, oldest first. Raises if the flow has no schedule, or if there are too many slots."""
    flow = _find_flow(snapshot, request)
    if not 1 <= request.max_runs <= MAX_BACKFILLED_RUNS:
        raise invalid_request(f"Max is {request.max_runs}; it must be a number from 1 to {MAX_BACKFILLED_RUNS}")
    if to_ns(request.begin) < 0:
        raise invalid_request(
            f"the time From is {request.begin.isoformat()}; it must not be before 1970-01-01T00:00:00Z"
        )
    if request.end <= request.begin:
        raise invalid_request("the time To must be after the time From")
    if to_ns(request.end) > now_ns:
        raise invalid_request("the time To lies in the future: the schedule launches these runs when they are due")
    slots: list[BackfillSlot] = []
    missing = 0
    for launch in _iterate_slots(flow, request):
        launch_s = to_ns(launch) // SECOND
        job_id = make_launch_id(flow, launch_s)
        exists = snapshot.get(JOBS, flow.namespace, job_id) is not None
        exists = exists or _find_collected(snapshot, flow, job_id, request) is not None
        missing += not exists
        if missing > request.max_runs or len(slots) >= MAX_VISITED_SLOTS:
            raise invalid_request(
                f"more than {request.max_runs} slots of {flow.id} between From and To have no run: choose a shorter "
                f"time, or a larger Max, which is at most {MAX_BACKFILLED_RUNS}"
            )
        slots.append(BackfillSlot(launch_s, job_id, exists))
    return slots


def _iterate_slots(flow: Job, request: BackfillRequest) -> Iterator[datetime.datetime]:
    """Yield the launch times of the schedule from `begin` on, and before `end`."""
    assert flow.periodic is not None, "the caller has checked it"
    after = request.begin - datetime.timedelta(microseconds=1)
    for launch in islice(iterate_launches(flow.periodic, after), MAX_VISITED_SLOTS + 1):
        if launch >= request.end:
            return
        yield launch


def _find_collected(snapshot: Replica, flow: Job, job_id: str, request: BackfillRequest) -> JobResult | None:
    """Return the result of a run that garbage collection has deleted, if its slot does not run again because of it.

    Otherwise a backfill that is repeated every day would run the slots again that are older than a week (record 0338).
    """
    result = snapshot.get(JOB_RESULTS, flow.namespace, job_id)
    return result if result is not None and result.is_collected and not request.again else None


def _find_flow(snapshot: Replica, request: BackfillRequest) -> Job:
    check_registration_enabled(snapshot, is_management=request.is_management)
    flow = snapshot.get(JOBS, request.namespace, request.job_id)
    if flow is None:
        raise not_found(f'job "{request.job_id}" not found')
    if not flow.is_periodic or flow.periodic is None:
        raise invalid_request(f'job "{flow.id}" has no schedule, so it has no slots: it is not periodic')
    if flow.stop:
        raise invalid_request(f'job "{flow.id}" is stopped: start it first')
    return flow


def launch_slot(
    snapshot: Replica, request: BackfillRequest, slot: BackfillSlot, context: DecisionContext, settings: JobSettings
) -> Decision[ChildJobResult]:
    """Return the decision that creates the run of a slot; it writes nothing if the run exists.

    With any `Flow.Overlap` the run waits for the earlier ones: a backfill neither cancels runs nor is skipped.
    """
    flow = _find_flow(snapshot, request)
    stored = snapshot.get(JOBS, flow.namespace, slot.job_id)
    if stored is not None:
        return Decision(None, lambda _index: ChildJobResult(stored.modify_index, stored.id, stored.create_index))
    collected = _find_collected(snapshot, flow, slot.job_id, request)
    if collected is not None:
        return Decision(
            None, lambda _index: ChildJobResult(collected.modify_index, slot.job_id, collected.job_create_index)
        )
    if get_overlap(flow) and len(list_unfinished_runs(snapshot, flow)) >= MAX_UNFINISHED_RUNS:
        raise Refusal(
            RefusalCode.CONFLICT,
            f"{MAX_UNFINISHED_RUNS} runs of the flow have not ended, which is the limit: repeat the backfill later",
        )
    return launch_periodic_job(
        snapshot, flow, context, settings, launch_time_s=slot.launch_s, cause=request.cause, is_backfill=True
    )

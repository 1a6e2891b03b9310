"""When periodic jobs are launched next, and whether a launch is passed over (scheduling.md 8.1). Leader only.

It holds the time of each job's next launch, which a new leader finds again from the launches that were recorded. It never
launches anything itself.
"""

import heapq
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.jobs.children import ChildJobResult
from wharf.cluster.operations.jobs.periodic import launch_periodic_job
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, CHILDREN_OF_JOB, EVALUATIONS_OF_JOB, JOBS, PERIODIC_LAUNCHES
from wharf.contract.model.jobs.cron import CronError
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, JobStatus, MissedLaunchPolicy, Periodic
from wharf.contract.model.jobs.periodic import find_next_launch
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.times import DecisionContext, to_datetime, to_ns

JobKey = tuple[str, str]

SECOND_NS: Final = 1_000_000_000
MISSED_LAUNCH_AGE_NS: Final = 60 * SECOND_NS
"""A launch that is later than this was missed: what becomes of it the job says (`Periodic.missed`)."""
MAX_DUE_LAUNCHES: Final = 100
"""So many are told of at once; of a job that has all made that were missed there may be any number."""


class DueLaunch(msgspec.Struct, frozen=True):
    """A launch whose time has come."""

    job_key: JobKey
    launch_s: int


class _Tracked(msgspec.Struct, frozen=True):
    create_index: int
    periodic: Periodic
    next_ns: int


class LaunchSchedule:
    """The next launch of every active periodic job. Instants are of the leader's wall clock, as time tables are."""

    def __init__(self) -> None:
        self._tracked: dict[JobKey, _Tracked] = {}
        self._heap: list[tuple[int, JobKey]] = []

    def __len__(self) -> int:
        return len(self._tracked)

    def should_track(self, key: JobKey, job: Job | None) -> bool:
        """Whether it is to be heard what became of this job: most are launched once, when they are registered."""
        return key in self._tracked or (job is not None and job.is_active_periodic)

    def restore_job(self, snapshot: Replica, key: JobKey, now_ns: int) -> None:
        """For a new leader: from the launch that was recorded last. What was missed since is due as the job says."""
        job = snapshot.get(JOBS, *key)
        if job is None or not job.is_active_periodic or job.periodic is None:
            return
        last = snapshot.get(PERIODIC_LAUNCHES, *key)
        after_ns = now_ns if last is None else min(to_ns(last.launch), now_ns)
        due_ns = next_launch_ns(job.periodic, after_ns)
        if due_ns is not None and due_ns < now_ns and not _is_the_last_missed(job.periodic, due_ns, now_ns):
            due_ns = _first_of_the_missed(job.periodic, after_ns, due_ns, now_ns)
        self._track(key, job, due_ns)

    def update_job(self, key: JobKey, job: Job | None, now_ns: int) -> None:
        """The job is there, has changed, or is gone. A new time table counts from when it was submitted."""
        if job is None or not job.is_active_periodic or job.periodic is None:
            self._tracked.pop(key, None)
            return
        known = self._tracked.get(key)
        if known is not None and (known.create_index, known.periodic) == (job.create_index, job.periodic):
            return
        after_ns = max(job.submit_time, now_ns - MISSED_LAUNCH_AGE_NS) if job.submit_time <= now_ns else now_ns
        self._track(key, job, next_launch_ns(job.periodic, after_ns))

    def next_deadline_ns(self) -> int | None:
        """When the next of them is due; None: none ever."""
        while self._heap and not self._stands(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ns: int) -> list[DueLaunch]:
        """Launches whose time has come, each told once; the next of each counts from the time of this one."""
        found: list[DueLaunch] = []
        while len(found) < MAX_DUE_LAUNCHES and (due_ns := self.next_deadline_ns()) is not None and due_ns <= now_ns:
            _, key = heapq.heappop(self._heap)
            tracked = self._tracked.pop(key)
            after_ns, missed = due_ns, tracked.periodic.missed
            if now_ns - due_ns >= MISSED_LAUNCH_AGE_NS and missed == MissedLaunchPolicy.NONE:
                after_ns = now_ns - MISSED_LAUNCH_AGE_NS
            else:
                found.append(DueLaunch(key, due_ns // SECOND_NS))
                if now_ns - due_ns >= MISSED_LAUNCH_AGE_NS and missed != MissedLaunchPolicy.ALL:
                    after_ns = now_ns
            self._enter(key, msgspec.structs.replace(tracked, next_ns=next_launch_ns(tracked.periodic, after_ns) or 0))
        return found

    def _track(self, key: JobKey, job: Job, due_ns: int | None) -> None:
        assert job.periodic is not None, "only what is periodic is tracked"
        self._enter(key, _Tracked(job.create_index, job.periodic, due_ns or 0))

    def _enter(self, key: JobKey, tracked: _Tracked) -> None:
        self._tracked[key] = tracked
        if tracked.next_ns:
            heapq.heappush(self._heap, (tracked.next_ns, key))

    def _stands(self, due_ns: int, key: JobKey) -> bool:
        tracked = self._tracked.get(key)
        return tracked is not None and tracked.next_ns == due_ns


def _first_of_the_missed(periodic: Periodic, after_ns: int, due_ns: int, now_ns: int) -> int | None:
    """`due_ns`: of several that were missed after `after_ns`, the first."""
    match periodic.missed:
        case MissedLaunchPolicy.ALL:
            return due_ns
        case MissedLaunchPolicy.NONE:
            return next_launch_ns(periodic, max(after_ns, now_ns - MISSED_LAUNCH_AGE_NS))
        case _:
            return now_ns


def _is_the_last_missed(periodic: Periodic, due_ns: int, now_ns: int) -> bool:
    """One that the leader before may have been about to make keeps its own time, so that it is never made twice."""
    following_ns = next_launch_ns(periodic, due_ns)
    return now_ns - due_ns < MISSED_LAUNCH_AGE_NS and (following_ns is None or following_ns > now_ns)


def next_launch_ns(periodic: Periodic, after_ns: int) -> int | None:
    """None: never again. A time table that cannot be read launches nothing; validation has told why."""
    try:
        found = find_next_launch(periodic, to_datetime(after_ns))
    except CronError:
        return None
    return None if found is None else to_ns(found)


def launch_if_due(
    snapshot: Replica, due: DueLaunch, moment: DecisionContext, settings: JobSettings
) -> Decision[ChildJobResult | None]:
    """The child of the launch; nothing where the job is gone or passed over, because one of its children still runs."""
    parent = snapshot.get(JOBS, *due.job_key)
    if parent is None or not parent.is_active_periodic or parent.periodic is None:
        return Decision(None, lambda _index: None)
    if parent.periodic.prohibit_overlap and has_running_child(snapshot, parent):
        return Decision(None, lambda _index: None)
    decision = launch_periodic_job(snapshot, parent, moment, settings, launch_time_s=due.launch_s)
    assert decision.write is not None, "a launch writes its child, or has it evaluated again"
    write = msgspec.structs.replace(decision.write, cause=Cause(CauseKind.TIMER, "periodic"))
    reply = decision.build_reply
    return Decision(write, lambda index: reply(index))


def has_running_child(snapshot: Replica, parent: Job) -> bool:
    """Whether a child has work, or an evaluation, that is not over."""
    return any(
        _is_running(snapshot, child)
        for child in snapshot.list_by_index(CHILDREN_OF_JOB, parent.namespace, parent.id)
        if child.status is not JobStatus.DEAD
    )


def _is_running(snapshot: Replica, child: Job) -> bool:
    key = (child.namespace, child.id)
    if any(not each.is_terminal for each in snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)):
        return True
    return any(not each.status.is_terminal for each in snapshot.list_by_index(EVALUATIONS_OF_JOB, *key))

"""The launch schedule of periodic jobs and the decision whether a due launch happens (scheduling.md 8.1). Leader only.

It holds the next launch time of each job. A new leader computes it from the recorded launches. It launches nothing
itself.
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
from wharf.contract.model.jobs.job import Job, JobKey, JobStatus, MissedLaunchPolicy, Periodic
from wharf.contract.model.jobs.periodic import find_next_launch
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.times import SECOND, DecisionContext, to_datetime, to_ns

MISSED_LAUNCH_AGE_NS: Final = 60 * SECOND
"""A launch that is later than this was missed; `Periodic.missed` says what happens then."""
MAX_DUE_LAUNCHES: Final = 100
"""Limits one step: launches that are returned at once. A job that makes up for all missed launches may have many."""


class DueLaunch(msgspec.Struct, frozen=True):
    """A launch whose time has come. `launch_s` is its scheduled time."""

    job_key: JobKey
    launch_s: int


class _TrackedJob(msgspec.Struct, frozen=True):
    """The next launch of a job. `next_ns` is 0 if there is none."""

    create_index: int
    periodic: Periodic
    next_ns: int


class LaunchSchedule:
    """The next launch of every active periodic job. Times are of the leader's wall clock, as schedules are."""

    def __init__(self) -> None:
        self._tracked: dict[JobKey, _TrackedJob] = {}
        self._heap: list[tuple[int, JobKey]] = []

    def __len__(self) -> int:
        return len(self._tracked)

    def should_track(self, key: JobKey, job: Job | None) -> bool:
        """Return whether changes of this job matter. Most jobs are not periodic."""
        return key in self._tracked or (job is not None and job.is_active_periodic)

    def restore_job(self, snapshot: Replica, key: JobKey, now_ns: int) -> None:
        """Track a job for a new leader, from its last recorded launch. Missed launches follow the job's policy."""
        job = snapshot.get(JOBS, *key)
        if job is None or not job.is_active_periodic or job.periodic is None:
            return
        last_launch = snapshot.get(PERIODIC_LAUNCHES, *key)
        after_ns = now_ns if last_launch is None else min(to_ns(last_launch.launch), now_ns)
        due_ns = next_launch_ns(job.periodic, after_ns)
        if due_ns is not None and due_ns < now_ns and not _is_single_recent_miss(job.periodic, due_ns, now_ns):
            due_ns = _get_catch_up_time(job.periodic, after_ns, due_ns, now_ns)
        self._track(key, job, due_ns)

    def update_job(self, key: JobKey, job: Job | None, now_ns: int) -> None:
        """Track a new, changed or deleted job. A new schedule counts from the submission."""
        if job is None or not job.is_active_periodic or job.periodic is None:
            self._tracked.pop(key, None)
            return
        tracked = self._tracked.get(key)
        if tracked is not None and (tracked.create_index, tracked.periodic) == (job.create_index, job.periodic):
            return
        after_ns = max(job.submit_time, now_ns - MISSED_LAUNCH_AGE_NS) if job.submit_time <= now_ns else now_ns
        self._track(key, job, next_launch_ns(job.periodic, after_ns))

    def next_deadline_ns(self) -> int | None:
        """Return the time of the next launch, or `None`."""
        while self._heap and not self._is_valid_entry(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ns: int) -> list[DueLaunch]:
        """Return the due launches, each once, and schedule the following ones."""
        due_launches: list[DueLaunch] = []
        while (
            len(due_launches) < MAX_DUE_LAUNCHES
            and (due_ns := self.next_deadline_ns()) is not None
            and due_ns <= now_ns
        ):
            _, key = heapq.heappop(self._heap)
            tracked = self._tracked.pop(key)
            after_ns, missed_policy = due_ns, tracked.periodic.missed
            if now_ns - due_ns >= MISSED_LAUNCH_AGE_NS and missed_policy == MissedLaunchPolicy.NONE:
                after_ns = now_ns - MISSED_LAUNCH_AGE_NS
            else:
                due_launches.append(DueLaunch(key, due_ns // SECOND))
                if now_ns - due_ns >= MISSED_LAUNCH_AGE_NS and missed_policy != MissedLaunchPolicy.ALL:
                    after_ns = now_ns
            self._schedule(
                key, msgspec.structs.replace(tracked, next_ns=next_launch_ns(tracked.periodic, after_ns) or 0)
            )
        return due_launches

    def _track(self, key: JobKey, job: Job, due_ns: int | None) -> None:
        """Track the job with this next launch."""
        assert job.periodic is not None, "only periodic jobs are tracked"
        self._schedule(key, _TrackedJob(job.create_index, job.periodic, due_ns or 0))

    def _schedule(self, key: JobKey, tracked: _TrackedJob) -> None:
        """Store the entry and add it to the heap."""
        self._tracked[key] = tracked
        if tracked.next_ns:
            heapq.heappush(self._heap, (tracked.next_ns, key))

    def _is_valid_entry(self, due_ns: int, key: JobKey) -> bool:
        """Return whether the heap entry is still valid."""
        tracked = self._tracked.get(key)
        return tracked is not None and tracked.next_ns == due_ns


def _get_catch_up_time(periodic: Periodic, after_ns: int, due_ns: int, now_ns: int) -> int | None:
    """Return when the first missed launch is made up for, by the job's policy.

    `due_ns` is the first launch that was missed after `after_ns`.
    """
    match periodic.missed:
        case MissedLaunchPolicy.ALL:
            return due_ns
        case MissedLaunchPolicy.NONE:
            return next_launch_ns(periodic, max(after_ns, now_ns - MISSED_LAUNCH_AGE_NS))
        case _:
            return now_ns


def _is_single_recent_miss(periodic: Periodic, due_ns: int, now_ns: int) -> bool:
    """Return whether only this launch was missed, by less than a minute.

    The previous leader may have started it, so it keeps its own time and is never made twice.
    """
    following_ns = next_launch_ns(periodic, due_ns)
    return now_ns - due_ns < MISSED_LAUNCH_AGE_NS and (following_ns is None or following_ns > now_ns)


def next_launch_ns(periodic: Periodic, after_ns: int) -> int | None:
    """Return the next launch after this time, or `None`. An invalid schedule has none; validation has reported it."""
    try:
        launch = find_next_launch(periodic, to_datetime(after_ns))
    except CronError:
        return None
    return None if launch is None else to_ns(launch)


def launch_if_due(
    snapshot: Replica, due: DueLaunch, context: DecisionContext, settings: JobSettings
) -> Decision[ChildJobResult | None]:
    """Return the write of the child job.

    It is empty if the parent is gone, or if a child still runs and overlap is prohibited.
    """
    parent = snapshot.get(JOBS, *due.job_key)
    if parent is None or not parent.is_active_periodic or parent.periodic is None:
        return Decision(None, lambda _index: None)
    if parent.periodic.prohibit_overlap and has_running_child(snapshot, parent):
        return Decision(None, lambda _index: None)
    decision = launch_periodic_job(snapshot, parent, context, settings, launch_time_s=due.launch_s)
    assert decision.write is not None, "a launch writes its child or a new evaluation of it"
    write = msgspec.structs.replace(decision.write, cause=Cause(CauseKind.TIMER, "periodic"))
    reply = decision.build_reply
    return Decision(write, lambda index: reply(index))


def has_running_child(snapshot: Replica, parent: Job) -> bool:
    """Return whether a child has an active allocation or evaluation."""
    return any(
        _is_running(snapshot, child)
        for child in snapshot.list_by_index(CHILDREN_OF_JOB, parent.namespace, parent.id)
        if child.status is not JobStatus.DEAD
    )


def _is_running(snapshot: Replica, child: Job) -> bool:
    """Return whether the child has an active allocation or evaluation."""
    key = (child.namespace, child.id)
    if any(not allocation.is_terminal for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)):
        return True
    return any(not evaluation.status.is_terminal for evaluation in snapshot.list_by_index(EVALUATIONS_OF_JOB, *key))

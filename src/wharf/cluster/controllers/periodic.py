"""The launch schedule of periodic jobs and the decision whether a due launch happens (scheduling.md 8.1). Leader only.

It holds the next launch time of each job. A new leader computes it from the recorded launches. It launches nothing
itself. The work for each launch is small: only the schedules of the job that were due are searched again.
"""

import heapq
from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.jobs.children import ChildJobResult
from wharf.cluster.operations.jobs.overlap import find_refusal, get_overlap
from wharf.cluster.operations.jobs.periodic import launch_periodic_job, skip_launch
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, CHILDREN_OF_JOB, EVALUATIONS_OF_JOB, JOBS, PERIODIC_LAUNCHES
from wharf.contract.model.jobs.cron import CronError
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, JobKey, JobStatus, MissedLaunchPolicy, Periodic
from wharf.contract.model.jobs.periodic import LaunchTimes
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.times import SECOND, DecisionContext, to_datetime, to_ns

MISSED_LAUNCH_AGE_NS: Final = 60 * SECOND
"""A launch that is late by this time or more was missed; the job's `Periodic.missed` policy decides what happens then.
"""
MAX_DUE_LAUNCHES: Final = 100
"""Limits the launches that are returned at once. A job that makes up for all missed launches may have many."""


class DueLaunch(msgspec.Struct, frozen=True):
    """A launch of a periodic job whose time has come."""

    job_key: JobKey
    launch_s: int  # The scheduled time in Unix seconds. It is part of the child's id.


class _TrackedJob(msgspec.Struct, frozen=True):
    """A periodic job and its next launch."""

    create_index: int  # Distinguishes jobs that were registered under the same name one after the other.
    periodic: Periodic
    times: LaunchTimes | None  # Its launches after the next one; `None` if the stored schedule is invalid.
    next_ns: int  # The next launch in Unix nanoseconds; 0 if there is none.
    entry: int = 0  # The number of its valid entry in the heap.


class LaunchSchedule:
    """The next launch of every active periodic job. Times are of the leader's wall clock, as schedules are."""

    def __init__(self) -> None:
        self._tracked: dict[JobKey, _TrackedJob] = {}
        self._heap: list[tuple[int, int, JobKey]] = []
        """Entries (time in Unix nanoseconds, number of the entry, job). Stale ones remain, and are skipped later.

        The time is the launch time. It is later for a job that makes up for missed launches: see `take_due`."""
        self._last_entry = 0

    def __len__(self) -> int:
        return len(self._tracked)

    def should_track(self, key: JobKey, job: Job | None) -> bool:
        """Return whether a change of this job concerns the schedule: it is, or was, an active periodic job."""
        return key in self._tracked or (job is not None and job.is_active_periodic)

    def restore_job(self, snapshot: Replica, key: JobKey, now_ns: int) -> None:
        """Track a job after a change of the leader: compute its next launch from its last recorded launch.

        For launches that were missed in between, the job's policy `Periodic.missed` decides. A job that is not an
        active periodic job is ignored.
        """
        job = snapshot.get(JOBS, *key)
        if job is None or not job.is_active_periodic or job.periodic is None:
            return
        last_launch = snapshot.get(PERIODIC_LAUNCHES, *key)
        after_ns = now_ns if last_launch is None else to_ns(last_launch.launch)
        if after_ns > now_ns + MISSED_LAUNCH_AGE_NS:
            after_ns = (
                now_ns  # Recorded before the clock was set back. After a small correction, no launch is repeated.
            )
        due_ns = next_launch_ns(job.periodic, after_ns)
        if due_ns is not None and due_ns < now_ns and not _is_single_recent_miss(job.periodic, due_ns, now_ns):
            due_ns = _get_catch_up_time(job.periodic, after_ns, due_ns, now_ns)
        self._track(key, job, due_ns)

    def update_job(self, key: JobKey, job: Job | None, now_ns: int) -> None:
        """Track a new or changed periodic job, or drop a deleted or inactive one.

        A new schedule counts from the job's submission, but at most a minute back. Without a change of the schedule,
        the next launch stays.
        """
        if job is None or not job.is_active_periodic or job.periodic is None:
            self._tracked.pop(key, None)
            return
        tracked = self._tracked.get(key)
        if tracked is not None and (tracked.create_index, tracked.periodic) == (job.create_index, job.periodic):
            return
        after_ns = max(job.submit_time, now_ns - MISSED_LAUNCH_AGE_NS) if job.submit_time <= now_ns else now_ns
        self._track(key, job, next_launch_ns(job.periodic, after_ns))

    def next_deadline_ns(self) -> int | None:
        """Return the time of the next launch in Unix nanoseconds, or `None`. Drops stale heap entries."""
        while self._heap and not self._is_valid_entry(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ns: int) -> list[DueLaunch]:
        """Return the launches that are due, each once, and schedule the following launch of each job.

        At most `MAX_DUE_LAUNCHES` are returned. A launch that was missed is skipped or made up for, by the job's
        `Periodic.missed` policy. A job that makes up for many launches waits after each one until every other due job
        had one, so it delays no other job for long.
        """
        due_launches: list[DueLaunch] = []
        for _ in range(MAX_DUE_LAUNCHES):
            entry_ns = self.next_deadline_ns()
            if entry_ns is None or entry_ns > now_ns:
                break
            _, _, key = heapq.heappop(self._heap)
            tracked = self._tracked.pop(key)
            due_ns = tracked.next_ns
            after_ns, missed_policy = due_ns, tracked.periodic.missed
            if now_ns - due_ns >= MISSED_LAUNCH_AGE_NS and missed_policy == MissedLaunchPolicy.NONE:
                after_ns = now_ns - MISSED_LAUNCH_AGE_NS
            else:
                due_launches.append(DueLaunch(key, due_ns // SECOND))
                if now_ns - due_ns >= MISSED_LAUNCH_AGE_NS and missed_policy != MissedLaunchPolicy.ALL:
                    after_ns = now_ns
            next_ns = _find_next_ns(tracked.times, after_ns) or 0
            self._schedule(key, msgspec.structs.replace(tracked, next_ns=next_ns), not_before_ns=now_ns)
        return due_launches

    def _track(self, key: JobKey, job: Job, due_ns: int | None) -> None:
        """Track the job with its next launch at `due_ns`. `None`: it has no further launch."""
        assert job.periodic is not None, "only periodic jobs are tracked"
        times = None if due_ns is None else _make_launch_times(job.periodic, due_ns)
        self._schedule(key, _TrackedJob(job.create_index, job.periodic, times, due_ns or 0), not_before_ns=0)

    def _schedule(self, key: JobKey, tracked: _TrackedJob, *, not_before_ns: int) -> None:
        """Store the tracked job and add its next launch, if it has one, to the heap."""
        self._last_entry += 1
        self._tracked[key] = msgspec.structs.replace(tracked, entry=self._last_entry)
        if tracked.next_ns:
            heapq.heappush(self._heap, (max(tracked.next_ns, not_before_ns), self._last_entry, key))

    def _is_valid_entry(self, _due_ns: int, entry: int, key: JobKey) -> bool:
        """Return whether a heap entry is the current one of its job."""
        tracked = self._tracked.get(key)
        return tracked is not None and tracked.entry == entry


def _get_catch_up_time(periodic: Periodic, after_ns: int, due_ns: int, now_ns: int) -> int | None:
    """Return the time of the launch with which a job starts after it missed launches, or `None` if it has none left.

    `due_ns` is the first missed launch, and `after_ns` the launch before it. By the policy `Periodic.missed`, the job
    starts with that first missed launch, with the first one that is less than a minute late, or at once.
    """
    match periodic.missed:
        case MissedLaunchPolicy.ALL:
            return due_ns
        case MissedLaunchPolicy.NONE:
            return next_launch_ns(periodic, max(after_ns, now_ns - MISSED_LAUNCH_AGE_NS))
        case _:
            return now_ns


def _is_single_recent_miss(periodic: Periodic, due_ns: int, now_ns: int) -> bool:
    """Return whether only one launch was missed, less than a minute ago.

    The previous leader may have made this launch. If the scheduled time stays, the child has the same id and is not
    created twice.
    """
    following_ns = next_launch_ns(periodic, due_ns)
    return now_ns - due_ns < MISSED_LAUNCH_AGE_NS and (following_ns is None or following_ns > now_ns)


def next_launch_ns(periodic: Periodic, after_ns: int) -> int | None:
    """Return the next launch after `after_ns` (both in Unix nanoseconds), or `None` if there is none."""
    return _find_next_ns(_make_launch_times(periodic, after_ns), after_ns)


def _make_launch_times(periodic: Periodic, after_ns: int) -> LaunchTimes | None:
    """Return the launch times after `after_ns`, or `None` if the schedule is invalid.

    An invalid schedule has no launches; validation reports it when the job is registered.
    """
    try:
        return LaunchTimes(periodic, to_datetime(after_ns))
    except CronError:
        return None


def _find_next_ns(times: LaunchTimes | None, after_ns: int) -> int | None:
    """Return the first of these launch times after `after_ns` (both in Unix nanoseconds), or `None` if there is none."""
    launch = times.find_next(to_datetime(after_ns)) if times is not None else None
    return None if launch is None else to_ns(launch)


def launch_if_due(
    snapshot: Replica, due: DueLaunch, context: DecisionContext, settings: JobSettings
) -> Decision[ChildJobResult | None]:
    """Return the decision that creates the child job of this launch.

    It writes nothing if the parent is no longer an active periodic job. If it prohibits overlap and a child still runs, only the
    time is recorded: a new leader must not make up for a launch that was skipped on purpose. In a flow with `Overlap`, that
    setting decides instead.
    """
    parent = snapshot.get(JOBS, *due.job_key)
    if parent is None or not parent.is_active_periodic or parent.periodic is None:
        return Decision(None, lambda _index: None)
    if get_overlap(parent):
        is_skipped = bool(find_refusal(snapshot, parent))
    else:
        is_skipped = parent.periodic.prohibit_overlap and has_running_child(snapshot, parent)
    if is_skipped:
        return skip_launch(snapshot, parent, due.launch_s)
    decision = launch_periodic_job(snapshot, parent, context, settings, launch_time_s=due.launch_s)
    assert decision.write is not None, "a launch writes its child or a new evaluation of it"
    write = msgspec.structs.replace(decision.write, cause=Cause(CauseKind.TIMER, "periodic"))
    reply = decision.build_reply
    return Decision(write, lambda index: reply(index))


def has_running_child(snapshot: Replica, parent: Job) -> bool:
    """Return whether a child of the parent job has an active allocation or an evaluation that is not terminal."""
    return any(
        _is_running(snapshot, child)
        for child in snapshot.list_by_index(CHILDREN_OF_JOB, parent.namespace, parent.id)
        if child.status is not JobStatus.DEAD
    )


def _is_running(snapshot: Replica, child: Job) -> bool:
    """Return whether the job has an active allocation or an evaluation that is not terminal."""
    key = (child.namespace, child.id)
    if any(not allocation.is_terminal for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)):
        return True
    return any(not evaluation.status.is_terminal for evaluation in snapshot.list_by_index(EVALUATIONS_OF_JOB, *key))

"""The order and the states of runs in lists. Both are derived from the attempts of a run, because its job does not have them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Final

from wharf.cluster.api.lists.listing import ALL_NAMESPACES, Listing, parse_token_index
from wharf.cluster.api.lists.sorted_snapshot import RECORDS_PER_CHECK, SortedSnapshot
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.operations.run_views import find_run_creation, has_open_gate, list_run_attempts, read_run_status
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state import Replica
from wharf.cluster.state.table_snapshot import TableSnapshot
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.run_views import RunStatus
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.flows import RunSort, RunState

RunPosition = tuple[int, str, str]
"""The sort key of a run: when it began or the log index of its last change, then namespace and ID."""
RunTest = Callable[[Job], bool]
_ACTIVE_STATES: Final = frozenset(
    {RunState.GATED, RunState.ACTIVE, RunState.WAITING, RunState.RUNNING, RunState.CANCELING}
)
"""States of runs whose jobs are not dead. A job that a user has stopped is dead, although its tasks may still stop."""


def parse_run_sort(text: str) -> RunSort | None:
    """Return the order that a request names, or `None` if it names none. Raises `Refusal` for another text."""
    if not text:
        return None
    if text not in tuple(RunSort):
        raise invalid_request(f'sort is "{text[:40]}"; it must be {" or ".join(RunSort)}, or be left out')
    return RunSort(text)


def parse_run_state(text: str) -> RunState | None:
    """Return the state that a request names, or `None` if it names none. Raises `Refusal` for another text."""
    if not text:
        return None
    if text not in tuple(RunState):
        raise invalid_request(f'state is "{text[:40]}"; it must be one of {", ".join(RunState)}, or be left out')
    return RunState(text)


def find_run_position(replica: Replica, sort: RunSort, job: Job) -> RunPosition:
    """Return the sort key of a run."""
    attempts = list_run_attempts(replica, job)
    if sort is RunSort.NEWEST:
        return find_run_creation(job, attempts), job.namespace, job.id
    return max([job.modify_index, *(each.modify_index for each in attempts)]), job.namespace, job.id


def sort_runs(replica: Replica, listing: Listing[Job], options: QueryOptions, sort: RunSort) -> Listing[Job]:
    """Return the listing of runs in this order, the newest or last changed first.

    A page token has the whole position, so a run that changes between two pages moves no other one to another page.
    """
    is_run = listing.is_selected
    assert is_run is not None, "jobs that are no runs have no position"
    key_prefix = _build_key_prefix(options)
    find_position = partial(find_run_position, replica, sort)

    def open_sorted(token: str, reverse: bool) -> SortedSnapshot[Job]:
        start = _parse_position(token) if token else None

        def build_entries(jobs: Iterable[Job]) -> list[tuple[RunPosition, Job]]:
            entries = [(find_position(job), job) for job in jobs if is_run(job)]
            if start is None:
                return entries
            return [each for each in entries if (each[0] >= start if reverse else each[0] <= start)]

        snapshot = TableSnapshot(replica, JOBS, prefix=key_prefix)
        return SortedSnapshot(snapshot, build_entries, _iterate_jobs, reverse=not reverse)

    def make_token(job: Job) -> str:
        return ".".join(map(str, find_position(job)))

    return replace(listing, open_sorted=open_sorted, make_token=make_token)


def _build_key_prefix(options: QueryOptions) -> str:
    is_everywhere = options.namespace == ALL_NAMESPACES
    return "" if is_everywhere else options.namespace + KEY_SEPARATOR + options.prefix


def _iterate_jobs(entries: Iterable[tuple[RunPosition, Job]]) -> Iterator[Job]:
    return map(itemgetter(1), entries)


def _parse_position(token: str) -> RunPosition:
    """Return the position in a page token. Raises `Refusal` if its number is out of range."""
    number, _, name = token.partition(".")
    namespace, _, job_id = name.partition(".")
    return parse_token_index(number), namespace, job_id


def select_runs(replica: Replica, listing: Listing[Job], options: QueryOptions, state: RunState) -> Listing[Job]:
    """Return the listing of the runs that have this state."""
    is_run = listing.is_selected
    assert is_run is not None, "jobs that are no runs have no state"
    return replace(
        listing, prepare_visibility=partial(_prepare_test, replica, _build_key_prefix(options), is_run, state)
    )


async def _prepare_test(
    replica: Replica, key_prefix: str, is_run: RunTest, state: RunState, work: SlicedWork
) -> RunTest:
    """Find the runs with a state in slices: the states of a run of 500 steps take milliseconds. Return the test of a run."""
    found: set[tuple[str, str]] = set()
    snapshot = TableSnapshot(replica, JOBS, prefix=key_prefix)
    try:
        while jobs := snapshot.read_next(RECORDS_PER_CHECK):
            for job in jobs:
                if may_have_state(job, state) and is_run(job):
                    if has_run_state(replica, job, state):
                        found.add((job.namespace, job.id))
                    if work.is_slice_over():
                        await work.pause()
            if work.is_slice_over():
                await work.pause()
    finally:
        snapshot.close()
    return lambda job: (job.namespace, job.id) in found


def may_have_state(job: Job, state: RunState) -> bool:
    """Return whether a run may have a state, as far as its job decides. Most runs of a cluster have ended, and few have gates."""
    if state is RunState.GATED and all(group.gate is None for group in job.groups):
        return False
    return job.status is not JobStatus.DEAD or job.stop or state not in _ACTIVE_STATES


def has_run_state(replica: Replica, job: Job, state: RunState) -> bool:
    """Return whether a run has a state. A run whose gate is open also runs or waits."""
    if state is RunState.GATED:
        return has_open_gate(list_run_attempts(replica, job))
    status = read_run_status(replica, job)
    return not status.has_ended if state is RunState.ACTIVE else status is RunStatus(state)

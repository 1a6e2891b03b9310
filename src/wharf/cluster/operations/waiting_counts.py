"""Counts what of a job waits for placement: elements of arrays, and allocations of other groups.

Every list and page that shows such a number uses these counts (record 0365). Does not find out why something waits.
"""

from typing import NamedTuple

from wharf.cluster.operations.array_views import count_elements
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS
from wharf.contract.model.evaluations import Evaluation


class WaitingCounts(NamedTuple):
    """What of a job waits for placement."""

    unplaced: int
    """Elements of arrays, and allocations of other groups."""
    elements: int
    """How many of them are elements of arrays of more than one: they have not begun, or wait for their retry, and have no allocation."""


def count_waiting(snapshot: Replica, evaluation: Evaluation) -> WaitingCounts:
    """Return how much of each group that a blocked evaluation could not place waits.

    The evaluation itself counts only the elements that the scheduler tried to place: it places a large array in parts, and
    stops at the first element that no node can run.
    """
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    unplaced = elements = 0
    for name, metric in (evaluation.failed_tg_allocs or {}).items():
        group = job.find_group(name) if job is not None else None
        if job is None or group is None or group.array is None:
            unplaced += metric.coalesced_failures + 1
            continue
        waiting = count_elements(snapshot, job, group).waiting
        unplaced += waiting
        elements += waiting if group.total_count > 1 else 0  # A step without an array is stored as one of size 1.
    return WaitingCounts(unplaced, elements)

"""Explain steps that wait for a lock: who holds it, since when, and how many steps are first."""

from typing import Final

from wharf.cluster.operations.explanations.text import format_time
from wharf.cluster.scheduling.capacity.locks import (
    LockName,
    LockWaiter,
    QueueOrder,
    list_lock_holders,
    list_lock_waiters,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import LOCK_HOLDERS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.lock_waits import LockWait
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.times import to_datetime

MAX_READ_HOLDERS: Final = 100
"""Holders that are read for a text. Of a lock with more, only their number is shown."""
MAX_NAMED_RUNS: Final = 2
"""Runs that hold a lock and are named in a text."""
ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def describe_lock_wait(snapshot: Replica, namespace: str, job_id: str, wait: LockWait) -> str:
    """Return what a step waits for, as the end of a sentence that begins with its name.

    Example: `waits for the lock production, which the run a holds since 2026-11-30 05:10:00Z; second in the queue`.
    """
    place, _ = find_lock_place(snapshot, namespace, job_id, wait)
    text = describe_held_lock(snapshot, (namespace, wait.key), wait.slots)
    return f"waits for {text}; {_describe_place(place)} in the queue"


def find_lock_place(snapshot: Replica, namespace: str, job_id: str, wait: LockWait) -> tuple[int, int]:
    """Return the place of a step in the queue of its lock, counted from 1, and the length of the queue."""
    own: QueueOrder = (wait.since, job_id, wait.step)
    queue: list[LockWaiter] = [
        each for each in list_lock_waiters(snapshot, (namespace, wait.key)) if not each.wait.lacks_capacity
    ]
    return 1 + sum(each.order < own for each in queue), max(1, len(queue))


def _describe_place(place: int) -> str:
    return ORDINALS[place - 1] if place <= len(ORDINALS) else f"number {place}"


def describe_held_lock(snapshot: Replica, lock: LockName, slots: int) -> str:
    """Return the name of a lock and who holds it."""
    name = f"the lock {lock[1]}"
    count = snapshot.count_by_index(LOCK_HOLDERS, *lock)
    if count > MAX_READ_HOLDERS:
        return f"{name}, of which {count:,} of {slots:,} slots are taken"
    holders = sorted(list_lock_holders(snapshot, lock), key=lambda each: (each.create_time, each.id))
    if not holders:
        return f"{name}, which is free"
    runs = list(dict.fromkeys(each.job_id for each in holders))
    since = format_time(to_datetime(holders[0].create_time))
    silent = next((text for each in holders if (text := _describe_silent_node(snapshot, each))), "")
    if len(runs) == 1:
        slots_text = f" ({len(holders)} of {slots} slots)" if slots > 1 else ""
        return f"{name}, which the run {runs[0]} holds since {since}{slots_text}{silent}"
    named = ", ".join(runs[:MAX_NAMED_RUNS])
    more = f" and {len(runs) - MAX_NAMED_RUNS} more" if len(runs) > MAX_NAMED_RUNS else ""
    return f"{name}, which the runs {named}{more} hold since {since} ({len(holders)} of {slots} slots){silent}"


def _describe_silent_node(snapshot: Replica, holder: Allocation) -> str:
    """Return what frees the slot of an allocation whose node is out of contact; empty if the node is in contact."""
    node = snapshot.get(NODES, holder.node_id)
    if node is None or node.status not in (NodeStatus.DOWN, NodeStatus.DISCONNECTED):
        return ""
    return (
        f"; {holder.name} may still run on {node.name}, which is out of contact: its slot is free when the node returns, "
        f"or when you purge the node because it is gone"
    )

"""Reconciles a group with an array: which elements begin, which allocations stop, and which failed ones are retried.

An element has at most one allocation that has not ended. Its next one is placed only when the state shows the end of the
former one, so that neither `MaxRunning` is exceeded nor an element runs twice. Results are recorded elsewhere.
"""

from collections.abc import Callable, Iterable
from typing import Final

from wharf.cluster.scheduling.reconcile.classification import AllocationClass, classify_allocation
from wharf.cluster.scheduling.reconcile.group_state import stop_as_lost
from wharf.cluster.scheduling.reconcile.input import (
    MIGRATING_TEXT,
    NOT_NEEDED_TEXT,
    RESCHEDULED_TEXT,
    ReconcileInput,
)
from wharf.cluster.scheduling.reconcile.outcome import AllocationStop, FollowUp, GroupOutcome, PlacementRequest
from wharf.cluster.scheduling.reconcile.rescheduling import decide_retry
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.names import format_name, parse_index
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.array_attempts import OPEN, ElementStates, iter_elements
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.plan import DesiredUpdates

MIN_STARTED_ELEMENTS: Final = 1_000
MAX_STARTED_ELEMENTS: Final = 4_000
STARTED_DIVISOR: Final = 4
"""The elements that one evaluation begins: the allocations that have not ended, divided by `STARTED_DIVISOR`, within these limits.

An evaluation compares all allocations that have not ended. So it begins the more elements, the more there are (record 0332). Limits
the time of an evaluation and the size of its plan; another evaluation begins the next ones at once."""
MAX_GIVEN_UP: Final = 2
"""Failed elements that one evaluation gives up: each result may be in another record of the write."""
GIVEN_UP_TEXT: Final = "alloc is not retried: the reschedule policy of its group has changed"
"""The description of a failed allocation that ends its element although its failure did not."""


class _ArrayReconciliation:
    """The working state while one array is reconciled."""

    def __init__(
        self,
        reconcile_input: ReconcileInput,
        group: TaskGroup,
        array: GroupArray,
        elements: ElementStates,
        startable: bytes,
    ) -> None:
        self.input = reconcile_input
        self.group = group
        self.array = array
        self.elements = elements
        self.startable = startable
        self.outcome = GroupOutcome(group.name)
        self.counts = dict.fromkeys(DesiredUpdates.__struct_fields__, 0)
        self.occupied: set[int] = set()
        """The elements whose allocation has not ended, or that wait for their retry."""
        self.alive_count = 0
        """The allocations that have not ended when the plan is committed. They use up `MaxRunning`."""
        self.given_up_count = 0
        self.retries: list[Allocation] = []
        """Failed allocations that are replaced now."""

    def is_needed(self, allocation: Allocation) -> bool:
        """Return whether the allocation decides the state of an element that is open."""
        index = parse_index(allocation.name)
        return (
            allocation.job_create_index == self.input.job.create_index
            and self.elements.is_open(index)
            and self.elements.is_current(index, allocation.array_attempt)
        )

    def make_settled_check(self) -> Callable[[Allocation], bool]:
        """Return a function that keeps an allocation if nothing has to be done for it, and returns whether it did.

        Nearly all of up to 100,000 are kept, so this avoids the complete decision. A negative answer may be wrong.
        """
        job, states, occupied = self.input.job, self.elements.states, self.occupied
        version, create_index, tainted = job.version, job.create_index, self.input.tainted_nodes
        attempts, owners = [each.attempt for each in self.elements.attempts], self.elements.owners
        open_state, run = OPEN[0], DesiredStatus.RUN
        running, pending = ClientStatus.RUNNING, ClientStatus.PENDING
        size = len(states)

        def is_settled(allocation: Allocation) -> bool:
            transition, status = allocation.desired_transition, allocation.client_status
            if (
                allocation.desired_status is not run
                or (status is not running and status is not pending)
                or allocation.job_version != version
                or allocation.job_create_index != create_index
                or allocation.alloc_states
                or allocation.node_id in tainted
                or (transition is not None and transition.migrate)
            ):
                return False
            index = parse_index(allocation.name)
            if (
                index >= size
                or states[index] != open_state
                or index in occupied
                or allocation.array_attempt != attempts[owners[index]]
            ):
                return False
            occupied.add(index)
            self.alive_count += 1
            self.counts["ignore"] += 1
            return True

        return is_settled

    def add_alive(self, allocation: Allocation) -> None:
        """Decide about an allocation that has not ended: it stays, it is stopped, or it is lost."""
        index = parse_index(allocation.name)
        kind = classify_allocation(allocation, self.group, self.input.tainted_nodes, self.input.now_ns)
        is_gone = kind in (AllocationClass.LOST, AllocationClass.EXPIRING)
        if is_gone and not allocation.is_server_terminal:
            self.stop(stop_as_lost(allocation))
        elif not allocation.is_server_terminal:
            if not self.is_needed(allocation) or index in self.occupied:
                self.stop(AllocationStop(allocation, NOT_NEEDED_TEXT))
            elif kind is AllocationClass.MIGRATING:
                self.stop(AllocationStop(allocation, MIGRATING_TEXT))
                self.counts["migrate"] += 1
            else:
                self.keep(allocation)
        # A stopping or lost element begins again after the state shows its end, in a later evaluation.
        self.occupied.add(index)
        self.alive_count += 1

    def keep(self, allocation: Allocation) -> None:
        """Keep an allocation. It becomes part of a newer version of the job if its node allows that without a restart."""
        if allocation.is_of_version(self.input.job) or not self.input.can_update_in_place(allocation, self.group):
            self.counts["ignore"] += 1
            return
        self.outcome.in_place_updates.append(allocation)
        self.counts["in_place_update"] += 1

    def stop(self, stop: AllocationStop) -> None:
        self.outcome.stops.append(stop)
        self.counts["stop"] += 1

    def add_failed(self, allocation: Allocation) -> None:
        """Decide about a failed allocation whose element may be retried: now, later, or never."""
        index = parse_index(allocation.name)
        if not self.is_needed(allocation) or index in self.occupied:
            return
        self.occupied.add(index)
        follow_up = allocation.followup_eval_id
        is_due = bool(follow_up) and follow_up == self.input.evaluation_id
        is_pending = bool(follow_up) and not is_due and self.input.is_evaluation_pending(follow_up)
        due_at_ns = decide_retry(
            allocation,
            self.group,
            self.input.now_ns,
            is_follow_up_due=is_due,
            is_retry_pending=is_pending,
        )
        if due_at_ns is None:
            if not is_pending and self.given_up_count < MAX_GIVEN_UP:
                self.given_up_count += 1
                self.stop(AllocationStop(allocation, GIVEN_UP_TEXT))
        elif due_at_ns <= self.input.now_ns:
            self.retries.append(allocation)
        else:
            self.outcome.follow_ups.append(FollowUp(allocation, due_at_ns, EvaluationTrigger.ALLOC_RESCHEDULE))
            self.counts["reschedule_later"] += 1

    def add_interrupted(self, allocation: Allocation) -> None:
        """Run an element again whose allocation was stopped or lost. Its next one stores why."""
        index = parse_index(allocation.name)
        if not self.is_needed(allocation) or index in self.occupied or self.startable[index : index + 1] != OPEN:
            return
        self.occupied.add(index)
        self.retries.append(allocation)

    def request_placements(self) -> None:
        """Request allocations for retries and for the next elements, as far as `MaxRunning` allows."""
        allowed = max(0, self.array.running_limit - self.alive_count)
        limit = min(allowed, limit_started_elements(self.alive_count))
        retry_limit = min(limit, MIN_STARTED_ELEMENTS)
        placements = self.outcome.placements
        # A replacement cannot be placed together with many others, so retries come first, and are fewer.
        for allocation in self.retries[:retry_limit]:
            placements.append(self._make_request(parse_index(allocation.name), allocation))
        self.counts["reschedule_now"] = len(placements)
        has_more = len(self.retries) > retry_limit
        for index in iter_elements(self.startable, OPEN):
            if index in self.occupied:
                continue
            if len(placements) >= limit:
                has_more = True
                break
            placements.append(self._make_request(index, None))
        self.counts["place"] = len(placements)
        self.outcome.has_more_elements = has_more and allowed > len(placements)

    def _make_request(self, index: int, previous: Allocation | None) -> PlacementRequest:
        """Return the request to run an element. `previous` is its failed allocation."""
        owner = self.elements.find_owner(index)
        return PlacementRequest(
            format_name(self.input.job.id, self.group.name, index),
            self.input.job,
            self.group,
            previous,
            is_reschedule=previous is not None,
            stop=None if previous is None else AllocationStop(previous, RESCHEDULED_TEXT),
            array_attempt=owner.attempt if owner is not None else 0,
            array_item=self.array.find_item(index) or "",
        )


def limit_started_elements(alive_count: int) -> int:
    """Return how many elements one evaluation may begin, if this number of allocations has not ended."""
    return min(MAX_STARTED_ELEMENTS, max(MIN_STARTED_ELEMENTS, alive_count // STARTED_DIVISOR))


def reconcile_array(
    reconcile_input: ReconcileInput,
    group: TaskGroup,
    elements: ElementStates,
    allocations: Iterable[Allocation],
    *,
    startable: bytes | None = None,
) -> GroupOutcome:
    """Return the stops, placements and updates that a group with an array needs.

    `startable` has `OPEN` for the elements that may begin; `None`: all open ones may, because no step has to wait.
    `allocations` are those of the index `ELEMENTS_OF_GROUP`: others have ended and need nothing.
    """
    array = group.array
    assert array is not None, "the group has an array"
    state = _ArrayReconciliation(
        reconcile_input, group, array, elements, elements.states if startable is None else startable
    )
    failed, interrupted = [], []
    settled = state.make_settled_check()
    for allocation in allocations:
        if allocation.is_client_terminal and allocation.is_server_terminal:
            interrupted.append(allocation)
        elif allocation.client_status is ClientStatus.FAILED:
            failed.append(allocation)
        elif not settled(allocation) and not allocation.is_client_terminal:
            state.add_alive(allocation)
    for allocation in failed:
        state.add_failed(allocation)
    if group.retry is not None:
        for allocation in sorted(interrupted, key=lambda each: each.create_index, reverse=True):
            state.add_interrupted(allocation)
    state.request_placements()
    outcome = state.outcome
    outcome.update_counts = DesiredUpdates(**state.counts)
    outcome.is_complete = not outcome.placements
    return outcome

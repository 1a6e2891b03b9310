"""Which evaluations wait for room, which of them could profit from room that came (scheduling.md 1.5), and which have
waited so long that a node's room is to be kept for them. In which order they are tried is known to `scheduling.line`.

An evaluation that says which kinds of nodes could take its work waits for those, and for kinds that it has not seen; one
whose work names what differs from node to node says none, and waits for any. It holds nothing that the state does not
hold: a new leader, who does not know what came free before, has every one of them tried.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from wharf.cluster.scheduling.blocked.reservation_policy import RESERVATION_DELAY_NS
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger

CONFLICT_RETRY_DELAY_NS: Final = 60_000_000_000
"""After so long what met too many conflicts is tried again, whether anything changed or not."""

MAX_CACHED_CHANGES: Final = 4_096

RESERVATION_CHECK_INTERVAL_NS: Final = 15_000_000_000
"""How often it is looked whether a node can be kept for somebody, where none could so far."""

JobKey = tuple[str, str]

RetryOrderFunction = Callable[[Iterable[Evaluation], int], list[Evaluation]]
"""The first so many of these, in the order in which they are tried."""


class BlockedQueue:
    """The leader's queue of what waits for room."""

    def __init__(self) -> None:
        self._waiting: dict[str, Evaluation] = {}
        self._profiting: dict[str, None] = {}
        self._conflicted: dict[str, Evaluation] = {}
        """Those that wait for quieter times more than for room."""
        self._behind: dict[JobKey, list[tuple[int, int, str]]] = {}
        """By parent, the children that wait for their turn: a heap by age, in which those that wait no more may stand."""
        self._on_turn: dict[str, JobKey] = {}
        """Those that were given their turn, and behind whom they had waited."""
        self._turned: dict[JobKey, int] = {}
        """When children of a job came or went last, as the index of the log."""
        self._looked_ns: int | None = None
        """When it was last looked who is to have a node."""
        self._came: dict[str, int] = {}
        """When room came last on nodes of each kind, as the index of the log."""
        self._came_last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def update(self, evaluation: Evaluation) -> None:
        """The newest version of an evaluation, whatever its status."""
        if evaluation.status is not EvaluationStatus.BLOCKED:
            self.remove(evaluation.id)
            if evaluation.status.is_terminal:
                self._on_turn.pop(evaluation.id, None)
            return
        waited_behind = self._on_turn.pop(evaluation.id, None)
        if waited_behind is not None and not evaluation.waits_behind:
            self._give_turn(waited_behind)  # It lacks something else now, which the next may not.
        self._waiting[evaluation.id] = evaluation
        if _waits_for_time(evaluation):
            self._conflicted[evaluation.id] = evaluation
        if evaluation.waits_behind:
            key = (evaluation.namespace, evaluation.waits_behind)
            heap = self._behind.setdefault(key, [])
            heapq.heappush(heap, (evaluation.waiting_since_ns, evaluation.create_index, evaluation.id))
            if self._turned.get(key, 0) > evaluation.snapshot_index:
                self._give_turn(key)
        elif self._has_missed_something(evaluation):
            self._profiting[evaluation.id] = None

    def remove(self, evaluation_id: str) -> None:
        self._waiting.pop(evaluation_id, None)
        self._profiting.pop(evaluation_id, None)
        self._conflicted.pop(evaluation_id, None)

    def on_capacity_freed(self, node_classes: Iterable[str], index: int) -> None:
        """On nodes of these kinds, by the batch of this index. A kind without a name may be any."""
        node_classes = list(dict.fromkeys(node_classes))
        if not node_classes:
            return
        for kind in node_classes:
            self._came.pop(kind, None)
            self._came[kind] = index
        while len(self._came) > MAX_CACHED_CHANGES:
            del self._came[next(iter(self._came))]
        self._came_last = index
        for evaluation in self._waiting.values():
            if any(_could_profit(evaluation, kind) for kind in node_classes):
                self._profiting[evaluation.id] = None

    def on_slot_freed(self, namespace: str, parent_id: str, index: int) -> None:
        """A child of the job came or went, or the job allows another number: whoever waits longest behind it is tried."""
        key = (namespace, parent_id)
        self._turned.pop(key, None)
        self._turned[key] = index
        while len(self._turned) > MAX_CACHED_CHANGES:
            del self._turned[next(iter(self._turned))]
        self._give_turn(key)

    def _give_turn(self, key: JobKey) -> None:
        heap = self._behind.get(key)
        while heap:
            evaluation = self._waiting.get(heap[0][-1])
            if evaluation is not None and (evaluation.namespace, evaluation.waits_behind) == key:
                self._profiting[evaluation.id] = None
                self._on_turn[evaluation.id] = key
                return
            heapq.heappop(heap)
        self._behind.pop(key, None)

    def retry_all(self) -> None:
        """Something changed that may help any of them."""
        self._profiting |= dict.fromkeys(self._waiting)

    def retry_conflicted(self, now_ns: int) -> None:
        """Those whose time has come though nothing changed."""
        for evaluation in self._conflicted.values():
            # One of the future is from before the clock was set back.
            if not evaluation.modify_time <= now_ns < evaluation.modify_time + CONFLICT_RETRY_DELAY_NS:
                self._profiting[evaluation.id] = None

    def next_wake_ns(self) -> int | None:
        """When the next of those is due, or it is to be looked who is to have a node; None: nothing is."""
        waiting = [evaluation.modify_time + CONFLICT_RETRY_DELAY_NS for evaluation in self._conflicted.values()]
        unreserved = [each.waiting_since_ns for each in self._waiting.values() if not each.reserved_node_id]
        if unreserved:
            due_ns = min(unreserved) + RESERVATION_DELAY_NS
            waiting.append(
                due_ns if self._looked_ns is None else max(due_ns, self._looked_ns + RESERVATION_CHECK_INTERVAL_NS)
            )
        return min(waiting, default=None)

    def start_reservation_check(self, now_ns: int) -> bool:
        """Whether it is to be looked again who has waited too long. Asking is looking: it is not said twice."""
        # A look in the future was before the clock was set back.
        has_looked = (
            self._looked_ns is not None and self._looked_ns <= now_ns < self._looked_ns + RESERVATION_CHECK_INTERVAL_NS
        )
        if not self._waiting or has_looked:
            return False
        self._looked_ns = now_ns
        return True

    def list_waiting(self) -> list[Evaluation]:
        """All of them, in no order."""
        return list(self._waiting.values())

    @property
    def has_retries(self) -> bool:
        return bool(self._profiting)

    def select_retries(self, max_evaluations: int, order: RetryOrderFunction | None = None) -> list[Evaluation]:
        """The first of those that could profit; where nothing else is said the most urgent, and of these the oldest."""
        profiting = (self._waiting[each] for each in self._profiting)
        return (order or sort_by_age)(profiting, max_evaluations)

    def _has_missed_something(self, evaluation: Evaluation) -> bool:
        """Whether room came after the state that it was decided on."""
        if self._came_last <= evaluation.snapshot_index:
            return False
        since = evaluation.snapshot_index
        return any(index > since and _could_profit(evaluation, kind) for kind, index in self._came.items())


def sort_by_age(evaluations: Iterable[Evaluation], max_evaluations: int) -> list[Evaluation]:
    return sorted(evaluations, key=lambda each: (-each.priority, each.create_index, each.id))[:max_evaluations]


def _could_profit(evaluation: Evaluation, kind: str) -> bool:
    if evaluation.waits_behind:
        return False  # No room helps it.
    eligible = evaluation.class_eligibility
    if evaluation.quota_limit_reached:
        return True  # What it waits for is no node's: whatever ends anywhere may leave it.
    return not kind or evaluation.escaped_computed_class or eligible is None or eligible.get(kind, True)


def _waits_for_time(evaluation: Evaluation) -> bool:
    return evaluation.triggered_by is EvaluationTrigger.MAX_PLAN_ATTEMPTS

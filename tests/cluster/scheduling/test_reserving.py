"""Reserved nodes for evaluations that have waited too long."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_task, some_resources
from tests.cluster.scheduling.loop import Loop
from wharf.cluster.scheduling.blocked.reservation_policy import (
    RESERVATION_DELAY_NS,
    is_reservation_useful,
    list_missed_reservations,
)
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.state.tables import NAMESPACES, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import SchedulingEligibility
from wharf.contract.model.times import SECOND

STEP_S = 10
LASTS_MOST_S = 60
"""How long the small work of these tests takes at most."""


def of(memory_mb: int) -> TaskGroup:
    return a_group("web", a_task(resources=some_resources(memory_mb=memory_mb)))


class Busy(Loop):
    """A cluster where small jobs start as fast as other small jobs end."""

    def __init__(self, nodes: int = 3) -> None:
        super().__init__()
        for at in range(nodes):
            self.with_node(f"node-{at}", cpu=10_000, memory_mb=1_000)
        self._lasts_s: dict[str, int] = {}
        self._ends_at_ns: dict[str, int] = {}

    def submit_small_job(self, duration_s: list[int]) -> None:
        for each in duration_s:
            job_id = f"small-{len(self._lasts_s)}"
            self._lasts_s[job_id] = each
            self.register(a_batch_job(job_id, of(250)))
            self.process_pending()

    def step(self, duration_s: list[int], *, is_kept: bool = True) -> None:
        """End finished allocations, retry blocked evaluations, and submit more small jobs."""
        self.pass_time(STEP_S)
        for job_id, lasts_s in self._lasts_s.items():
            for allocation in self.list_active(job_id):
                ends_ns = self._ends_at_ns.setdefault(allocation.id, self.now_ns + lasts_s * SECOND)
                if ends_ns <= self.now_ns:
                    self.report(allocation, ClientStatus.COMPLETE)
        if is_kept:
            self.reserve_nodes()
        self.retry_blocked()
        self.process_pending()
        self.submit_small_job(duration_s)


@settings(max_examples=15)
@given(
    st.lists(
        st.lists(st.integers(1, LASTS_MOST_S // STEP_S).map(lambda steps: steps * STEP_S), min_size=2, max_size=2),
        min_size=22,
        max_size=22,
    )
)
def test_small_jobs_never_keep_a_large_job_waiting_beyond_the_limit(pattern: list[list[int]]) -> None:
    busy = Busy(nodes=2)
    busy.submit_small_job([LASTS_MOST_S, 30, 10, 50, LASTS_MOST_S, 20, 40, 30])
    busy.register(a_batch_job("big", of(1_000)))
    began_ns = busy.now_ns
    for duration_s in pattern:
        busy.step(duration_s)
        if busy.list_active("big"):
            break

    # The wait until a reservation is due, until the next check, and until the allocations of the node have ended.
    bound_ns = RESERVATION_DELAY_NS + (2 * STEP_S + LASTS_MOST_S) * SECOND
    assert (len(busy.list_active("big")), busy.now_ns - began_ns <= bound_ns) == (1, True)


def test_without_a_reservation_a_large_job_would_wait_forever() -> None:
    busy = Busy(nodes=2)
    busy.submit_small_job([10, 20, 30, 40, 10, 20, 30, 40])
    busy.register(a_batch_job("big", of(1_000)))
    for at in range(40):
        busy.step([10 + 10 * (at % 4), 40], is_kept=False)

    assert busy.list_active("big") == []


def make_late_evaluation(busy: Busy, *job_ids: str, memory_mb: int = 1_000, **fields: Any) -> None:
    for job_id in job_ids:
        busy.register(a_batch_job(job_id, of(memory_mb), **fields))
    busy.process_pending()
    busy.pass_time(RESERVATION_DELAY_NS / SECOND)


def list_reservations(busy: Busy) -> dict[str, str]:
    """Return the reserved node of each job."""
    return {
        reservation.job_id: reservation.node_id
        for reservation in SchedulerCache.from_snapshot(busy.replica).reservations.values()
    }


def full(nodes: int = 3) -> Busy:
    busy = Busy(nodes)
    busy.submit_small_job([LASTS_MOST_S] * (4 * nodes))
    return busy


def test_capacity_freed_on_a_reserved_node_is_not_given_to_the_same_priority() -> None:
    busy = full(1)
    make_late_evaluation(busy, "big")
    busy.reserve_nodes()
    busy.report(busy.list_active("small-0")[0], ClientStatus.COMPLETE)
    busy.submit_small_job([10])

    assert (list_reservations(busy), busy.list_active("small-4")) == ({"big": "node-0"}, [])


def test_a_more_urgent_job_may_use_capacity_freed_on_a_reserved_node() -> None:
    busy = full(1)
    make_late_evaluation(busy, "big")
    busy.reserve_nodes()
    busy.report(busy.list_active("small-0")[0], ClientStatus.COMPLETE)
    busy.register(a_batch_job("urgent", of(250), priority=80))
    busy.process_pending()

    assert len(busy.list_active("urgent")) == 1


def test_a_namespace_has_at_most_one_reservation() -> None:
    busy = full(30)
    busy.put(NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
    make_late_evaluation(busy, "big-1", "big-2")
    make_late_evaluation(busy, "big-3", namespace="other")
    busy.reserve_nodes()

    assert sorted(list_reservations(busy)) == ["big-1", "big-3"]


def test_at_most_one_node_in_ten_is_reserved() -> None:
    busy = full(3)
    busy.put(NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
    make_late_evaluation(busy, "big-1")
    make_late_evaluation(busy, "big-2", namespace="other")
    busy.reserve_nodes()

    assert sorted(list_reservations(busy)) == ["big-1"]


def test_a_node_with_only_endless_allocations_is_not_reserved() -> None:
    busy = Busy(1)
    busy.register(a_job("service", of(250)))
    busy.process_pending()
    make_late_evaluation(busy, "big")
    busy.reserve_nodes()

    assert list_reservations(busy) == {}


def test_a_job_larger_than_every_node_gets_no_reservation() -> None:
    busy = full(2)
    make_late_evaluation(busy, "huge", memory_mb=5_000)
    busy.reserve_nodes()

    assert list_reservations(busy) == {}


def test_a_used_reservation_is_removed() -> None:
    busy = full(1)
    make_late_evaluation(busy, "big")
    busy.reserve_nodes()
    for at in range(4):
        busy.report(busy.list_active(f"small-{at}")[0], ClientStatus.COMPLETE)
    busy.retry_blocked()
    busy.process_pending()

    assert (len(busy.list_active("big")), list_reservations(busy)) == (1, {})


def test_a_node_without_placements_is_not_a_useful_reservation() -> None:
    busy = full(1)
    make_late_evaluation(busy, "big")
    busy.reserve_nodes()
    busy.put(NODES.build_put(replace(busy.node("node-0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    cache = SchedulerCache.from_snapshot(busy.replica)

    assert [is_reservation_useful(busy.replica, cache, reservation) for reservation in cache.reservations.values()] == [
        False
    ]


def test_missed_reservations_are_listed() -> None:
    busy = full(1)
    make_late_evaluation(busy, "big")
    cache = SchedulerCache.from_snapshot(busy.replica)
    missed = list_missed_reservations(busy.replica, cache, busy.list_blocked(), busy.now_ns, 0)
    busy.reserve_nodes()
    after = list_missed_reservations(
        busy.replica, SchedulerCache.from_snapshot(busy.replica), busy.list_blocked(), busy.now_ns, 0
    )

    assert (len(missed), after) == (1, [])

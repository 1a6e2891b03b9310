"""Room that is kept for what has waited too long."""

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
    """Nodes on which small work comes as fast as other small work ends."""

    def __init__(self, nodes: int = 3) -> None:
        super().__init__()
        for at in range(nodes):
            self.with_node(f"node-{at}", cpu=10_000, memory_mb=1_000)
        self._lasts_s: dict[str, int] = {}
        self._ends_at_ns: dict[str, int] = {}

    def come(self, lasting_s: list[int]) -> None:
        for each in lasting_s:
            job_id = f"small-{len(self._lasts_s)}"
            self._lasts_s[job_id] = each
            self.register(a_batch_job(job_id, of(250)))
            self.think()

    def step(self, lasting_s: list[int], *, is_kept: bool = True) -> None:
        """What is over ends, what waits is tried again, and more small work comes."""
        self.pass_time(STEP_S)
        for job_id, lasts_s in self._lasts_s.items():
            for allocation in self.live(job_id):
                ends_ns = self._ends_at_ns.setdefault(allocation.id, self.now_ns + lasts_s * SECOND)
                if ends_ns <= self.now_ns:
                    self.tell(allocation, ClientStatus.COMPLETE)
        if is_kept:
            self.reserve()
        self.room_came()
        self.think()
        self.come(lasting_s)


@settings(max_examples=15)
@given(
    st.lists(
        st.lists(st.integers(1, LASTS_MOST_S // STEP_S).map(lambda steps: steps * STEP_S), min_size=2, max_size=2),
        min_size=22,
        max_size=22,
    )
)
def test_small_work_never_keeps_big_work_waiting_beyond_the_bound(pattern: list[list[int]]) -> None:
    busy = Busy(nodes=2)
    busy.come([LASTS_MOST_S, 30, 10, 50, LASTS_MOST_S, 20, 40, 30])
    busy.register(a_batch_job("big", of(1_000)))
    began_ns = busy.now_ns
    for lasting_s in pattern:
        busy.step(lasting_s)
        if busy.live("big"):
            break

    # Until it is due, until it is looked at, and until what runs on its node has ended.
    bound_ns = RESERVATION_DELAY_NS + (2 * STEP_S + LASTS_MOST_S) * SECOND
    assert (len(busy.live("big")), busy.now_ns - began_ns <= bound_ns) == (1, True)


def test_without_a_node_of_its_own_big_work_would_wait_for_ever() -> None:
    busy = Busy(nodes=2)
    busy.come([10, 20, 30, 40, 10, 20, 30, 40])
    busy.register(a_batch_job("big", of(1_000)))
    for at in range(40):
        busy.step([10 + 10 * (at % 4), 40], is_kept=False)

    assert busy.live("big") == []


def waiting_for_long(busy: Busy, *job_ids: str, memory_mb: int = 1_000, **fields: Any) -> None:
    for job_id in job_ids:
        busy.register(a_batch_job(job_id, of(memory_mb), **fields))
    busy.think()
    busy.pass_time(RESERVATION_DELAY_NS / SECOND)


def kept(busy: Busy) -> dict[str, str]:
    """By job, the node that is kept for it."""
    return {each.job_id: each.node_id for each in SchedulerCache.from_snapshot(busy.replica).reservations.values()}


def full(nodes: int = 3) -> Busy:
    busy = Busy(nodes)
    busy.come([LASTS_MOST_S] * (4 * nodes))
    return busy


def test_nobody_of_the_same_priority_gets_what_comes_free_on_a_node_that_is_kept() -> None:
    busy = full(1)
    waiting_for_long(busy, "big")
    busy.reserve()
    busy.tell(busy.live("small-0")[0], ClientStatus.COMPLETE)
    busy.come([10])

    assert (kept(busy), busy.live("small-4")) == ({"big": "node-0"}, [])


def test_whoever_is_more_urgent_may_use_what_comes_free_on_a_node_that_is_kept() -> None:
    busy = full(1)
    waiting_for_long(busy, "big")
    busy.reserve()
    busy.tell(busy.live("small-0")[0], ClientStatus.COMPLETE)
    busy.register(a_batch_job("urgent", of(250), priority=80))
    busy.think()

    assert len(busy.live("urgent")) == 1


def test_of_one_namespace_one_at_a_time_is_given_a_node() -> None:
    busy = full(30)
    busy.put(NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
    waiting_for_long(busy, "big-1", "big-2")
    waiting_for_long(busy, "big-3", namespace="other")
    busy.reserve()

    assert sorted(kept(busy)) == ["big-1", "big-3"]


def test_at_most_one_node_in_ten_is_kept() -> None:
    busy = full(3)
    busy.put(NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
    waiting_for_long(busy, "big-1")
    waiting_for_long(busy, "big-2", namespace="other")
    busy.reserve()

    assert sorted(kept(busy)) == ["big-1"]


def test_a_node_whose_work_never_ends_by_itself_is_not_kept() -> None:
    busy = Busy(1)
    busy.register(a_job("service", of(250)))
    busy.think()
    waiting_for_long(busy, "big")
    busy.reserve()

    assert kept(busy) == {}


def test_what_is_larger_than_every_node_is_given_none() -> None:
    busy = full(2)
    waiting_for_long(busy, "huge", memory_mb=5_000)
    busy.reserve()

    assert kept(busy) == {}


def test_a_node_that_was_used_is_kept_no_more() -> None:
    busy = full(1)
    waiting_for_long(busy, "big")
    busy.reserve()
    for at in range(4):
        busy.tell(busy.live(f"small-{at}")[0], ClientStatus.COMPLETE)
    busy.room_came()
    busy.think()

    assert (len(busy.live("big")), kept(busy)) == (1, {})


def test_a_node_that_takes_nothing_new_is_of_no_use_to_keep() -> None:
    busy = full(1)
    waiting_for_long(busy, "big")
    busy.reserve()
    busy.put(NODES.build_put(replace(busy.node("node-0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    ground = SchedulerCache.from_snapshot(busy.replica)

    assert [is_reservation_useful(busy.replica, ground, each) for each in ground.reservations.values()] == [False]


def test_a_checker_finds_who_waits_beyond_the_bound_and_was_given_no_node() -> None:
    busy = full(1)
    waiting_for_long(busy, "big")
    ground = SchedulerCache.from_snapshot(busy.replica)
    found = list_missed_reservations(busy.replica, ground, busy.waiting(), busy.now_ns, 0)
    busy.reserve()
    after = list_missed_reservations(
        busy.replica, SchedulerCache.from_snapshot(busy.replica), busy.waiting(), busy.now_ns, 0
    )

    assert (len(found), after) == (1, [])

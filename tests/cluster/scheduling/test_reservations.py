"""Reserved nodes for evaluations that have waited too long."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from wharf.cluster.scheduling.blocked.reservation_policy import (
    RESERVATION_DELAY_NS,
    is_reservation_useful,
    list_missed_reservations,
)
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.state.tables import NAMESPACES, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import SchedulingEligibility
from wharf.contract.model.nodes.resources import DeviceInstance, NodeCpu, NodeDevice
from wharf.contract.model.times import SECOND

STEP_S = 10
MAX_DURATION_S = 60
"""How long small jobs run at most."""


def make_group(memory_mb: int) -> TaskGroup:
    return a_group("web", a_task(resources=some_resources(memory_mb=memory_mb)))


def make_group_with_cores(cores: int) -> TaskGroup:
    return a_group("web", a_task(resources=some_resources(cpu=0, memory_mb=10, cores=cores)))


def make_group_with_gpus(count: int) -> TaskGroup:
    gpus = (RequestedDevice(name="gpu", count=count),)
    return a_group("web", a_task(resources=some_resources(cpu=10, memory_mb=10, devices=gpus)))


class BusyCluster(SimulatedCluster):
    """A cluster where small jobs start as fast as other small jobs end."""

    small_group = make_group(250)

    def __init__(self, nodes: int = 3) -> None:
        super().__init__()
        for number in range(nodes):
            self.add_node(f"node-{number}")
        self._duration_s: dict[str, int] = {}
        self._ends_at_ns: dict[str, int] = {}

    def add_node(self, node_id: str) -> None:
        self.with_node(node_id, cpu=10_000, memory_mb=1_000)

    def submit_small_job(self, duration_s: list[int]) -> None:
        for each in duration_s:
            job_id = f"small-{len(self._duration_s)}"
            self._duration_s[job_id] = each
            self.register(a_batch_job(job_id, self.small_group))
            self.process_pending()

    def step(self, duration_s: list[int], *, can_reserve: bool = True) -> None:
        """End finished allocations, retry blocked evaluations, and submit more small jobs."""
        self.pass_time(STEP_S)
        for job_id, job_duration_s in self._duration_s.items():
            for allocation in self.list_active(job_id):
                ends_ns = self._ends_at_ns.setdefault(allocation.id, self.now_ns + job_duration_s * SECOND)
                if ends_ns <= self.now_ns:
                    self.report(allocation, ClientStatus.COMPLETE)
        if can_reserve:
            self.reserve_nodes()
        self.retry_blocked()
        self.process_pending()
        self.submit_small_job(duration_s)


class BusyCores(BusyCluster):
    """A cluster whose nodes have four cores, where small jobs reserve one core each."""

    small_group = make_group_with_cores(1)

    def add_node(self, node_id: str) -> None:
        node = self.with_node(node_id, cpu=10_000, memory_mb=1_000)
        assert node.node_resources is not None
        cpu = NodeCpu(cpu_shares=10_000, total_cpu_cores=4, reservable_cpu_cores=(0, 1, 2, 3))
        self.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, cpu=cpu))))


@settings(max_examples=15)
@given(
    st.lists(
        st.lists(st.integers(1, MAX_DURATION_S // STEP_S).map(lambda steps: steps * STEP_S), min_size=2, max_size=2),
        min_size=22,
        max_size=22,
    )
)
def test_small_jobs_never_keep_a_large_job_waiting_beyond_the_limit(pattern: list[list[int]]) -> None:
    cluster = BusyCluster(nodes=2)
    cluster.submit_small_job([MAX_DURATION_S, 30, 10, 50, MAX_DURATION_S, 20, 40, 30])
    cluster.register(a_batch_job("big", make_group(1_000)))
    started_ns = cluster.now_ns
    for duration_s in pattern:
        cluster.step(duration_s)
        if cluster.list_active("big"):
            break

    # The wait until a reservation is due, until the next check, and until the allocations of the node have ended.
    max_wait_ns = RESERVATION_DELAY_NS + (2 * STEP_S + MAX_DURATION_S) * SECOND
    assert (len(cluster.list_active("big")), cluster.now_ns - started_ns <= max_wait_ns) == (1, True)


def test_without_a_reservation_a_large_job_would_wait_forever() -> None:
    cluster = BusyCluster(nodes=2)
    cluster.submit_small_job([10, 20, 30, 40, 10, 20, 30, 40])
    cluster.register(a_batch_job("big", make_group(1_000)))
    for number in range(40):
        cluster.step([10 + 10 * (number % 4), 40], can_reserve=False)

    assert cluster.list_active("big") == []


def submit_late_jobs(cluster: BusyCluster, *job_ids: str, memory_mb: int = 1_000, **fields: Any) -> None:
    for job_id in job_ids:
        cluster.register(a_batch_job(job_id, make_group(memory_mb), **fields))
    cluster.process_pending()
    cluster.pass_time(RESERVATION_DELAY_NS / SECOND)


def list_reservations(cluster: BusyCluster) -> dict[str, str]:
    """Return the reserved node of each job."""
    return {
        reservation.job_id: reservation.node_id
        for reservation in SchedulerCache.from_snapshot(cluster.replica).reservations.values()
    }


def make_full_cluster(nodes: int = 3) -> BusyCluster:
    cluster = BusyCluster(nodes)
    cluster.submit_small_job([MAX_DURATION_S] * (4 * nodes))
    return cluster


def test_capacity_freed_on_a_reserved_node_is_not_given_to_the_same_priority() -> None:
    cluster = make_full_cluster(1)
    submit_late_jobs(cluster, "big")
    cluster.reserve_nodes()
    cluster.report(cluster.list_active("small-0")[0], ClientStatus.COMPLETE)
    cluster.submit_small_job([10])

    assert (list_reservations(cluster), cluster.list_active("small-4")) == ({"big": "node-0"}, [])


def test_a_more_urgent_job_may_use_capacity_freed_on_a_reserved_node() -> None:
    cluster = make_full_cluster(1)
    submit_late_jobs(cluster, "big")
    cluster.reserve_nodes()
    cluster.report(cluster.list_active("small-0")[0], ClientStatus.COMPLETE)
    cluster.register(a_batch_job("urgent", make_group(250), priority=80))
    cluster.process_pending()

    assert len(cluster.list_active("urgent")) == 1


def test_a_namespace_has_at_most_one_reservation() -> None:
    cluster = make_full_cluster(30)
    cluster.put(NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
    submit_late_jobs(cluster, "big-1", "big-2")
    submit_late_jobs(cluster, "big-3", namespace="other")
    cluster.reserve_nodes()

    assert sorted(list_reservations(cluster)) == ["big-1", "big-3"]


def test_at_most_one_node_in_ten_is_reserved() -> None:
    cluster = make_full_cluster(3)
    cluster.put(NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
    submit_late_jobs(cluster, "big-1")
    submit_late_jobs(cluster, "big-2", namespace="other")
    cluster.reserve_nodes()

    assert sorted(list_reservations(cluster)) == ["big-1"]


def test_a_node_with_only_service_allocations_is_not_reserved() -> None:
    cluster = BusyCluster(1)
    cluster.register(a_job("service", make_group(250)))
    cluster.process_pending()
    submit_late_jobs(cluster, "big")
    cluster.reserve_nodes()

    assert list_reservations(cluster) == {}


def test_a_job_larger_than_every_node_gets_no_reservation() -> None:
    cluster = make_full_cluster(2)
    submit_late_jobs(cluster, "huge", memory_mb=5_000)
    cluster.reserve_nodes()

    assert list_reservations(cluster) == {}


def test_small_jobs_never_keep_a_job_that_requests_many_cores_waiting_beyond_the_limit() -> None:
    cluster = BusyCores(nodes=2)
    cluster.submit_small_job([MAX_DURATION_S, 30, 10, 50, MAX_DURATION_S, 20, 40, 30])
    cluster.register(a_batch_job("big", make_group_with_cores(4)))
    started_ns = cluster.now_ns
    for number in range(22):
        cluster.step([10 + 10 * (number % 4), 40])
        if cluster.list_active("big"):
            break

    max_wait_ns = RESERVATION_DELAY_NS + (2 * STEP_S + MAX_DURATION_S) * SECOND
    assert (len(cluster.list_active("big")), cluster.now_ns - started_ns <= max_wait_ns) == (1, True)


def test_cores_that_become_free_on_a_reserved_node_are_not_given_to_the_same_priority() -> None:
    cluster = BusyCores(1)
    cluster.submit_small_job([MAX_DURATION_S] * 4)
    cluster.register(a_batch_job("big", make_group_with_cores(2)))
    cluster.process_pending()
    cluster.pass_time(RESERVATION_DELAY_NS / SECOND)
    cluster.reserve_nodes()
    cluster.report(cluster.list_active("small-0")[0], ClientStatus.COMPLETE)
    cluster.submit_small_job([10])
    waiting = cluster.list_active("small-4")
    cluster.report(cluster.list_active("small-1")[0], ClientStatus.COMPLETE)
    cluster.retry_blocked()
    cluster.process_pending()

    assert (waiting, len(cluster.list_active("big")), cluster.list_active("small-4")) == ([], 1, [])


@pytest.mark.parametrize("cores", [5, 64])
def test_a_job_that_requests_more_cores_than_every_node_has_gets_no_reservation(cores: int) -> None:
    cluster = BusyCores(2)
    cluster.register(a_batch_job("huge", make_group_with_cores(cores)))
    cluster.process_pending()
    cluster.pass_time(RESERVATION_DELAY_NS / SECOND)
    cluster.reserve_nodes()

    assert list_reservations(cluster) == {}


class BusyDevices(BusyCluster):
    """A cluster whose nodes have four GPUs, where small jobs reserve one GPU each."""

    small_group = make_group_with_gpus(1)

    def add_node(self, node_id: str) -> None:
        node = self.with_node(node_id, cpu=10_000, memory_mb=1_000)
        assert node.node_resources is not None
        instances = tuple(DeviceInstance(id=f"gpu-{number}", healthy=True) for number in range(4))
        devices = (NodeDevice(vendor="acme", type="gpu", name="big", instances=instances),)
        self.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, devices=devices))))


def test_small_jobs_never_keep_a_job_that_requests_many_devices_waiting_beyond_the_limit() -> None:
    cluster = BusyDevices(nodes=2)
    cluster.submit_small_job([MAX_DURATION_S, 30, 10, 50, MAX_DURATION_S, 20, 40, 30])
    cluster.register(a_batch_job("big", make_group_with_gpus(4)))
    started_ns = cluster.now_ns
    for number in range(22):
        cluster.step([10 + 10 * (number % 4), 40])
        if cluster.list_active("big"):
            break

    max_wait_ns = RESERVATION_DELAY_NS + (2 * STEP_S + MAX_DURATION_S) * SECOND
    assert (len(cluster.list_active("big")), cluster.now_ns - started_ns <= max_wait_ns) == (1, True)


def test_devices_of_services_do_not_become_free() -> None:
    cluster = BusyDevices(1)
    cluster.register(a_job("service", make_group_with_gpus(1)))
    cluster.process_pending()
    cluster.register(a_batch_job("big", make_group_with_gpus(4)))
    cluster.process_pending()
    cluster.pass_time(RESERVATION_DELAY_NS / SECOND)
    cluster.reserve_nodes()

    assert list_reservations(cluster) == {}


def test_cores_of_services_do_not_become_free() -> None:
    cluster = BusyCores(1)
    cluster.register(a_job("service", make_group_with_cores(1)))
    cluster.process_pending()
    cluster.register(a_batch_job("big", make_group_with_cores(4)))
    cluster.process_pending()
    cluster.pass_time(RESERVATION_DELAY_NS / SECOND)
    cluster.reserve_nodes()

    assert list_reservations(cluster) == {}


def test_a_used_reservation_is_removed() -> None:
    cluster = make_full_cluster(1)
    submit_late_jobs(cluster, "big")
    cluster.reserve_nodes()
    for number in range(4):
        cluster.report(cluster.list_active(f"small-{number}")[0], ClientStatus.COMPLETE)
    cluster.retry_blocked()
    cluster.process_pending()

    assert (len(cluster.list_active("big")), list_reservations(cluster)) == (1, {})


def test_a_node_without_placements_is_not_a_useful_reservation() -> None:
    cluster = make_full_cluster(1)
    submit_late_jobs(cluster, "big")
    cluster.reserve_nodes()
    cluster.put(
        NODES.build_put(replace(cluster.node("node-0"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE))
    )
    cache = SchedulerCache.from_snapshot(cluster.replica)

    assert [
        is_reservation_useful(cluster.replica, cache, reservation) for reservation in cache.reservations.values()
    ] == [False]


def test_missed_reservations_are_listed() -> None:
    cluster = make_full_cluster(1)
    submit_late_jobs(cluster, "big")
    cache = SchedulerCache.from_snapshot(cluster.replica)
    missed = list_missed_reservations(cluster.replica, cache, cluster.list_blocked(), cluster.now_ns, 0)
    cluster.reserve_nodes()
    after = list_missed_reservations(
        cluster.replica, SchedulerCache.from_snapshot(cluster.replica), cluster.list_blocked(), cluster.now_ns, 0
    )

    assert (len(missed), after) == (1, [])

"""Proposed moves to better nodes, and starting them a few at a time."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_batch_job, a_constraint, a_group, a_job, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from wharf.cluster.controllers.rebalancing import start_moves
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.rebalancing import MIN_SCORE_GAIN, propose_moves
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, NODES, SCHEDULER_CONFIGURATION
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus
from wharf.contract.model.jobs.group_policies import EphemeralDisk, MigratePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.model.operator.rebalancing import Rebalancing


def make_job(job_id: str, count: int, *, cpu: int = 200, memory_mb: int = 200, at_once: int = 1) -> Job:
    task = a_task(resources=some_resources(cpu=cpu, memory_mb=memory_mb))
    return a_job(job_id, a_group("web", task, count=count, migrate=MigratePolicy(max_parallel=at_once)))


def make_scattered_cluster(count: int, *, at_once: int = 1) -> SimulatedCluster:
    """Return a cluster with one `shop` allocation alone on each node, and as many partly used nodes with capacity that
    were added later.
    """
    cluster = SimulatedCluster()
    for at in range(count):
        cluster.with_node(f"alone-{at}", cpu=1_000, memory_mb=1_000)
        cluster.register(make_job("shop", at + 1, at_once=at_once))
        cluster.settle()
    for at in range(count):
        cluster.with_node(f"shared-{at}", cpu=1_000, memory_mb=1_000)
        existing = (a_constraint("${node.unique.name}", f"shared-{at}", "="),)
        cluster.register(replace(make_job(f"stays-{at}", 1, cpu=600, memory_mb=600), constraints=existing))
        cluster.settle()
    return cluster


def propose(cluster: SimulatedCluster) -> Rebalancing:
    return propose_moves(cluster.replica, SchedulerCache.from_snapshot(cluster.replica))


def start_and_count(cluster: SimulatedCluster) -> int:
    proposal = propose(cluster)
    return cluster.lead(start_moves(cluster.replica, proposal.moves, cluster.moment, max_changes=100)).move_count


def list_node_ids(cluster: SimulatedCluster) -> set[str]:
    return {each.node_id for each in cluster.list_active("shop")}


def test_scattered_allocations_are_reported_with_better_nodes_and_the_gain() -> None:
    cluster = make_scattered_cluster(4)
    proposal = propose(cluster)

    assert (len(proposal.moves), proposal.nodes_used, proposal.nodes_used_after) == (4, 8, 4)
    assert all(move.score_after - move.score_before >= MIN_SCORE_GAIN for move in proposal.moves)
    assert proposal.text == (
        f"{len(proposal.moves)} allocations would have a better score on another node, by "
        f"{sum(move.score_after - move.score_before for move in proposal.moves) / len(proposal.moves):.2f} on average; "
        "8 nodes in use before, 4 after"
    )


def test_a_proposal_moves_nothing() -> None:
    cluster = make_scattered_cluster(3)
    before = list(cluster.list_active("shop"))
    propose(cluster)

    assert cluster.list_active("shop") == before


@settings(max_examples=10)
@given(st.integers(2, 5), st.integers(1, 3))
def test_no_more_allocations_of_a_group_move_at_a_time_than_its_migrate_limit_allows(count: int, at_once: int) -> None:
    cluster = make_scattered_cluster(count, at_once=at_once)
    marked = start_and_count(cluster)

    assert marked <= at_once
    assert len([each for each in cluster.list_active("shop") if not each.should_migrate]) >= count - at_once


@settings(max_examples=10)
@given(st.integers(2, 5))
def test_repeated_moves_end_on_fewer_nodes_with_the_whole_count(count: int) -> None:
    cluster = make_scattered_cluster(count)
    for _ in range(3 * count):
        if not start_and_count(cluster):
            break
        cluster.settle()
        for each in cluster.list_active("shop"):  # Their nodes report them as healthy.
            well = AllocDeploymentStatus(healthy=True, modify_index=WRITE_INDEX)
            cluster.put_led(ALLOCATIONS.build_put(replace(each, deployment_status=well)))

    assert (propose(cluster).moves, len(cluster.list_active("shop"))) == ((), count)
    assert {node_id.partition("-")[0] for node_id in list_node_ids(cluster)} == {"shared"}


def test_a_moved_allocation_gets_the_proposed_node() -> None:
    cluster = make_scattered_cluster(3)
    first = propose(cluster).moves[0]
    cluster.lead(start_moves(cluster.replica, [first], cluster.moment, max_changes=100))
    cluster.settle()

    assert [each.node_id for each in cluster.list_active("shop") if each.previous_allocation == first.alloc_id] == [
        first.to_node_id
    ]


def test_the_spread_algorithm_empties_the_fullest_node_first() -> None:
    cluster = SimulatedCluster()
    cluster.with_node("crowded", cpu=800, memory_mb=800)
    cluster.register(make_job("shop", 4))
    cluster.settle()
    cluster.with_node("loaded", cpu=1_000, memory_mb=1_000)
    cluster.register(make_job("blog", 3))
    cluster.settle()
    cluster.with_node("empty", cpu=4_000, memory_mb=4_000)
    configuration = cluster.replica.get(SCHEDULER_CONFIGURATION)
    assert configuration is not None
    # A configuration that was decoded holds plain text, not the member of the enum.
    cluster.put(SCHEDULER_CONFIGURATION.build_put(replace(configuration, scheduler_algorithm="spread")))

    assert propose(cluster).moves[0].from_node_id == "crowded"


def test_batch_allocations_are_not_moved() -> None:
    cluster = SimulatedCluster()
    cluster.with_node("n0", cpu=1_000, memory_mb=1_000)
    cluster.register(a_batch_job("shop", a_group("web", a_task(resources=some_resources()))))
    cluster.settle()
    cluster.with_node("n1", cpu=200, memory_mb=128)

    assert propose(cluster).text == "no allocation would have a better score on another node: 1 node in use"


@pytest.mark.parametrize(
    ("fields", "can_move"),
    [
        ({"volumes": {"v": VolumeRequest(name="v", type="host", source="v")}}, True),
        ({"volumes": {"v": VolumeRequest(name="v", type="host", source="v", sticky=True)}}, False),
        (
            {
                "volumes": {
                    "v": VolumeRequest(name="v", type="host", source="v", access_mode="single-node-single-writer")
                }
            },
            False,
        ),
        ({"ephemeral_disk": EphemeralDisk(sticky=True)}, False),
    ],
    ids=["volume of all nodes", "sticky volume", "volume of a single writer", "sticky disk"],
)
def test_an_allocation_with_data_on_its_node_is_not_moved(fields: dict[str, Any], *, can_move: bool) -> None:
    cluster = make_scattered_cluster(3)
    for node in list(cluster.replica.iter_all(NODES)):
        volumes = {"v": NodeHostVolume(name="v", path="/srv/v")}
        cluster.put(NODES.build_put(replace(node, host_volumes=volumes)))
    job = cluster.job("shop")
    cluster.put(JOBS.build_put(replace(job, task_groups=(replace(job.groups[0], **fields),))))

    assert bool(propose(cluster).moves) is can_move


def test_an_allocation_that_changed_since_the_proposal_is_not_moved() -> None:
    cluster = make_scattered_cluster(3)
    proposal = propose(cluster)
    cluster.register(make_job("shop", 0))
    cluster.settle()

    assert cluster.lead(start_moves(cluster.replica, proposal.moves, cluster.moment, max_changes=100)).move_count == 0

"""Host volumes: single writers, and allocations that return to their data (scheduling.md 2.6)."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from wharf.cluster.operations.operator.collection import CollectionKind, collect_garbage
from wharf.cluster.operations.volumes import delete_volume
from wharf.cluster.state.tables import HOST_VOLUMES, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import AccessMode, AttachmentMode, VolumeRequest
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeHostVolume, NodeStatus
from wharf.contract.model.volumes import HostVolume, HostVolumeCapability, HostVolumeState


def make_cluster(*nodes: str) -> SimulatedCluster:
    """Return a cluster where each node has its own volume `data`."""
    cluster = SimulatedCluster()
    capabilities = tuple(
        HostVolumeCapability(access_mode=mode, attachment_mode=AttachmentMode.FILE_SYSTEM)
        for mode in (AccessMode.SINGLE_NODE_WRITER, AccessMode.SINGLE_NODE_SINGLE_WRITER, AccessMode.SINGLE_NODE_READER)
    )
    for node_id in nodes:
        volume = HostVolume(
            id=f"v-{node_id}",
            name="data",
            node_id=node_id,
            state=HostVolumeState.READY,
            requested_capabilities=capabilities,
            create_index=WRITE_INDEX,
        )
        cluster.put(HOST_VOLUMES.build_put(volume))
        cluster.with_node(node_id, host_volumes={"data": NodeHostVolume(name="data", path="/d", id=volume.id)})
    return cluster


def make_job(job_id: str, count: int = 1, *, value: int = 0, **fields: Any) -> Job:
    request = VolumeRequest(name="data", type="host", source="data", **fields)
    return a_job(job_id, a_group("web", a_task(env={"V": str(value)}), count=count, volumes={"data": request}))


def make_single_writer_job(job_id: str, count: int = 1, *, value: int = 0) -> Job:
    return make_job(job_id, count, value=value, access_mode=AccessMode.SINGLE_NODE_SINGLE_WRITER)


def test_a_single_writer_volume_has_one_writer() -> None:
    cluster = make_cluster("n0", "n1")
    cluster.register(make_single_writer_job("shop", count=3))
    cluster.process_pending()

    assert sorted(each.node_id for each in cluster.list_active()) == ["n0", "n1"]


def test_a_single_writer_is_not_placed_beside_another_job_that_writes() -> None:
    cluster = make_cluster("n0")
    cluster.register(make_job("writer"))
    cluster.process_pending()
    cluster.register(make_single_writer_job("shop"))
    cluster.process_pending()

    assert cluster.list_active() == []


def test_a_single_writer_waits_for_the_end_of_a_writer_whose_job_was_purged_and_registered_again() -> None:
    cluster = make_cluster("n0")
    cluster.register(make_job("writer"))
    cluster.settle()
    cluster.put(JOBS.build_delete("default", "writer"), JOB_VERSIONS.build_delete("default", "writer", 0))
    cluster.put(JOB_VERSIONS.build_put(make_job("writer", read_only=True)))
    cluster.register(make_single_writer_job("shop"))
    cluster.process_pending()

    assert cluster.list_active() == []


def test_a_single_writer_may_run_beside_a_reader() -> None:
    cluster = make_cluster("n0")
    cluster.register(make_job("reader", read_only=True))
    cluster.process_pending()
    cluster.register(make_single_writer_job("shop"))
    cluster.process_pending()

    assert len(cluster.list_active()) == 1


def test_the_next_version_writes_when_the_previous_one_has_ended() -> None:
    cluster = make_cluster("n0")
    cluster.register(make_single_writer_job("shop"))
    cluster.settle()
    cluster.register(make_single_writer_job("shop", value=1))
    cluster.settle()

    assert [(each.job_version, each.client_status) for each in cluster.list_active()] == [(1, ClientStatus.RUNNING)]


def test_an_allocation_with_a_sticky_volume_returns_to_its_data() -> None:
    cluster = make_cluster("n0", "n1", "n2")
    cluster.register(make_job("shop", count=2, sticky=True))
    cluster.settle()
    before = {each.name: each.node_id for each in cluster.list_active()}
    cluster.register(make_job("shop", count=2, value=1, sticky=True))
    cluster.settle()

    assert {each.name: each.node_id for each in cluster.list_active()} == before


def test_an_allocation_without_a_volume_goes_to_a_node_that_has_one() -> None:
    cluster = make_cluster("n1")
    cluster.with_node("n0")
    cluster.register(a_job("shop", a_group("web", constraints=(a_constraint("${node.unique.id}", "n0"),))))
    cluster.settle()
    assert [each.node_id for each in cluster.list_active()] == ["n0"]
    cluster.register(make_job("shop", value=1, sticky=True))
    cluster.settle()

    assert [each.node_id for each in cluster.list_active()] == ["n1"]


def test_a_volume_claim_survives_garbage_collection_and_ends_with_the_volume() -> None:
    cluster = make_cluster("n0", "n1")
    cluster.register(make_job("shop", sticky=True))
    cluster.settle()
    first_node_id = cluster.list_active()[0].node_id
    cluster.lose_node(first_node_id)
    cluster.process_pending()
    cluster.pass_time(30 * 24 * 3_600)

    for kind in CollectionKind:
        while (
            step := collect_garbage(cluster.replica, kind, cluster.moment, retention_ns=0, max_changes=100)
        ).write is not None:
            cluster.lead(step)
    cluster.retry_blocked()
    cluster.process_pending()
    waiting = cluster.list_active()
    volume = next(each for each in cluster.replica.iter_all(HOST_VOLUMES) if each.node_id == first_node_id)
    cluster.lead(delete_volume(cluster.replica, volume.namespace, volume.id))
    cluster.retry_blocked()
    cluster.settle()

    assert (waiting, [each.node_id for each in cluster.list_active()]) == ([], [({"n0", "n1"} - {first_node_id}).pop()])


def test_an_allocation_that_is_scaled_down_and_up_returns_to_its_data() -> None:
    cluster = make_cluster("n0", "n1", "n2")
    cluster.register(make_job("shop", count=2, sticky=True))
    cluster.settle()
    before = {each.name: each.node_id for each in cluster.list_active()}
    cluster.register(make_job("shop", count=1, sticky=True))
    cluster.settle()
    cluster.register(make_job("shop", count=2, sticky=True))
    cluster.settle()

    assert {each.name: each.node_id for each in cluster.list_active()} == before


def test_an_allocation_with_a_sticky_volume_waits_while_its_node_is_down() -> None:
    cluster = make_cluster("n0", "n1")
    cluster.register(make_job("shop", sticky=True))
    cluster.settle()
    first_node_id = cluster.list_active()[0].node_id
    cluster.lose_node(first_node_id)
    cluster.process_pending()
    waiting = [evaluation.job_id for evaluation in cluster.list_blocked()]
    elsewhere = list(cluster.list_active())
    cluster.put(NODES.build_put(replace(cluster.node(first_node_id), status=NodeStatus.READY)))
    cluster.retry_blocked()
    cluster.settle()

    assert (waiting, elsewhere, [each.node_id for each in cluster.list_active()]) == (["shop"], [], [first_node_id])

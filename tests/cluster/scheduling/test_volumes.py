"""Volumes of hosts: one writer where that is asked, and work that comes back to where its data lies (scheduling.md 2.6)."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task
from tests.cluster.scheduling.loop import Loop
from wharf.cluster.operations.operator.collection import CollectionKind, collect_garbage
from wharf.cluster.operations.volumes import delete_volume
from wharf.cluster.state.tables import HOST_VOLUMES, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import AccessMode, AttachmentMode, VolumeRequest
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeHostVolume, NodeStatus
from wharf.contract.model.volumes import HostVolume, HostVolumeCapability, HostVolumeState


def a_loop(*nodes: str) -> Loop:
    """Each node has a volume of its own, called data."""
    loop = Loop()
    offered = tuple(
        HostVolumeCapability(access_mode=mode, attachment_mode=AttachmentMode.FILE_SYSTEM)
        for mode in (AccessMode.SINGLE_NODE_WRITER, AccessMode.SINGLE_NODE_SINGLE_WRITER, AccessMode.SINGLE_NODE_READER)
    )
    for node_id in nodes:
        volume = HostVolume(
            id=f"v-{node_id}",
            name="data",
            node_id=node_id,
            state=HostVolumeState.READY,
            requested_capabilities=offered,
            create_index=WRITE_INDEX,
        )
        loop.put(HOST_VOLUMES.build_put(volume))
        loop.with_node(node_id, host_volumes={"data": NodeHostVolume(name="data", path="/d", id=volume.id)})
    return loop


def asking(job_id: str, count: int = 1, *, value: int = 0, **fields: Any) -> Job:
    request = VolumeRequest(name="data", type="host", source="data", **fields)
    return a_job(job_id, a_group("web", a_task(env={"V": str(value)}), count=count, volumes={"data": request}))


def alone(job_id: str, count: int = 1, *, value: int = 0) -> Job:
    return asking(job_id, count, value=value, access_mode=AccessMode.SINGLE_NODE_SINGLE_WRITER)


def test_a_volume_that_one_writes_alone_has_one_writer() -> None:
    loop = a_loop("n0", "n1")
    loop.register(alone("shop", count=3))
    loop.think()

    assert sorted(each.node_id for each in loop.live()) == ["n0", "n1"]


def test_who_writes_alone_is_not_put_beside_another_job_that_writes() -> None:
    loop = a_loop("n0")
    loop.register(asking("writer"))
    loop.think()
    loop.register(alone("shop"))
    loop.think()

    assert loop.live() == []


def test_who_writes_alone_may_stand_beside_somebody_who_only_reads() -> None:
    loop = a_loop("n0")
    loop.register(asking("reader", read_only=True))
    loop.think()
    loop.register(alone("shop"))
    loop.think()

    assert len(loop.live()) == 1


def test_the_next_version_writes_when_the_one_before_has_ended() -> None:
    loop = a_loop("n0")
    loop.register(alone("shop"))
    loop.settle()
    loop.register(alone("shop", value=1))
    loop.settle()

    assert [(each.job_version, each.client_status) for each in loop.live()] == [(1, ClientStatus.RUNNING)]


def test_work_with_a_sticky_volume_comes_back_to_where_its_data_lies() -> None:
    loop = a_loop("n0", "n1", "n2")
    loop.register(asking("shop", count=2, sticky=True))
    loop.settle()
    before = {each.name: each.node_id for each in loop.live()}
    loop.register(asking("shop", count=2, value=1, sticky=True))
    loop.settle()

    assert {each.name: each.node_id for each in loop.live()} == before


def test_work_that_had_no_volume_before_goes_to_where_one_is() -> None:
    loop = a_loop("n1")
    loop.with_node("n0")
    loop.register(a_job("shop", a_group("web", constraints=(a_constraint("${node.unique.id}", "n0"),))))
    loop.settle()
    assert [each.node_id for each in loop.live()] == ["n0"]
    loop.register(asking("shop", value=1, sticky=True))
    loop.settle()

    assert [each.node_id for each in loop.live()] == ["n1"]


def test_the_claim_on_a_volume_outlives_the_collection_of_what_is_over_and_ends_with_the_volume() -> None:
    loop = a_loop("n0", "n1")
    loop.register(asking("shop", sticky=True))
    loop.settle()
    home = loop.live()[0].node_id
    loop.lose(home)
    loop.think()
    loop.pass_time(30 * 24 * 3_600)

    for kind in CollectionKind:
        while (
            step := collect_garbage(loop.replica, kind, loop.moment, retention_ns=0, max_changes=100)
        ).write is not None:
            loop.lead(step)
    loop.room_came()
    loop.think()
    waits = loop.live()
    volume = next(each for each in loop.replica.iter_all(HOST_VOLUMES) if each.node_id == home)
    loop.lead(delete_volume(loop.replica, volume.namespace, volume.id))
    loop.room_came()
    loop.settle()

    assert (waits, [each.node_id for each in loop.live()]) == ([], [({"n0", "n1"} - {home}).pop()])


def test_what_is_scaled_down_and_up_again_comes_back_to_its_data() -> None:
    loop = a_loop("n0", "n1", "n2")
    loop.register(asking("shop", count=2, sticky=True))
    loop.settle()
    before = {each.name: each.node_id for each in loop.live()}
    loop.register(asking("shop", count=1, sticky=True))
    loop.settle()
    loop.register(asking("shop", count=2, sticky=True))
    loop.settle()

    assert {each.name: each.node_id for each in loop.live()} == before


def test_work_with_a_sticky_volume_waits_while_the_node_with_its_data_is_down() -> None:
    loop = a_loop("n0", "n1")
    loop.register(asking("shop", sticky=True))
    loop.settle()
    home = loop.live()[0].node_id
    loop.lose(home)
    loop.think()
    waits = [each.job_id for each in loop.waiting()]
    elsewhere = list(loop.live())
    loop.put(NODES.build_put(replace(loop.node(home), status=NodeStatus.READY)))
    loop.room_came()
    loop.settle()

    assert (waits, elsewhere, [each.node_id for each in loop.live()]) == (["shop"], [], [home])

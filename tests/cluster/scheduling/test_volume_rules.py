"""Which volumes of a node satisfy a request, who holds a claim on sticky volumes, and who may write."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import AState, a_node, an_allocation
from wharf.cluster.scheduling.feasibility.volumes import (
    NamespaceVolumes,
    can_write_volumes,
    find_claim_holder,
    find_claim_node,
    has_sticky_volumes,
    has_volume,
    is_claim_holder,
    list_claimed_volumes,
    list_single_writer_volumes,
    make_volume_check,
)
from wharf.cluster.state.tables import ALLOCATIONS, HOST_VOLUMES, JOB_VERSIONS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import AccessMode, AttachmentMode, VolumeRequest
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import Node, NodeHostVolume
from wharf.contract.model.volumes import HostVolume, HostVolumeCapability, HostVolumeState

READER, WRITER = AccessMode.SINGLE_NODE_READER, AccessMode.SINGLE_NODE_WRITER
SINGLE = AccessMode.SINGLE_NODE_SINGLE_WRITER
FILES, BLOCKS = AttachmentMode.FILE_SYSTEM, AttachmentMode.BLOCK_DEVICE


def make_request(source: str = "data", **fields: Any) -> VolumeRequest:
    return VolumeRequest(**{"type": "host", "source": source, **fields})


def make_volume(name: str = "data", *modes: tuple[AccessMode, AttachmentMode], **fields: Any) -> HostVolume:
    capabilities = tuple(HostVolumeCapability(access_mode=access, attachment_mode=kind) for access, kind in modes)
    defaults = {"id": f"v-{name}", "node_id": "n", "state": HostVolumeState.READY, "create_index": WRITE_INDEX}
    return HostVolume(name=name, requested_capabilities=capabilities or None, **{**defaults, **fields})


def make_node(**volumes: NodeHostVolume) -> Node:
    return a_node(
        "n", host_volumes={name.replace("_", "[") + "]" * ("_" in name): each for name, each in volumes.items()}
    )


@pytest.mark.parametrize(
    ("request_fields", "volume", "expected"),
    [
        ({}, None, False),
        ({}, {}, True),
        ({"read_only": True}, {}, True),
        ({}, {"read_only": True}, False),
        ({"read_only": True}, {"read_only": True}, True),
        ({"sticky": True}, {}, False),
        ({"sticky": True, "read_only": True}, {"read_only": True}, False),
    ],
)
def test_a_volume_of_the_configuration_is_not_sticky_and_read_only_ones_are_not_written(
    request_fields: dict[str, Any], volume: dict[str, Any] | None, *, expected: bool
) -> None:
    node = make_node() if volume is None else make_node(data=NodeHostVolume(name="data", path="/d", **volume))

    assert has_volume(node, make_request(**request_fields), lambda _id: None) == expected


@pytest.mark.parametrize(
    ("request_fields", "modes", "fields", "expected"),
    [
        ({}, [(WRITER, FILES)], {}, True),
        ({}, [(READER, FILES)], {}, False),
        ({}, [(WRITER, BLOCKS)], {}, False),
        ({}, [], {}, False),
        ({}, [(READER, FILES), (WRITER, FILES)], {}, True),
        ({}, [(READER, FILES), (WRITER, BLOCKS)], {}, False),
        ({"read_only": True}, [(READER, FILES)], {}, True),
        ({"read_only": True}, [(WRITER, FILES)], {}, False),
        ({"access_mode": SINGLE}, [(SINGLE, FILES)], {}, True),
        ({"access_mode": SINGLE}, [(WRITER, FILES)], {}, False),
        ({"access_mode": READER}, [(READER, FILES)], {}, False),
        ({"access_mode": SINGLE, "read_only": True}, [(SINGLE, FILES)], {}, False),
        ({"access_mode": READER, "read_only": True}, [(READER, FILES)], {}, True),
        ({"attachment_mode": BLOCKS}, [(WRITER, BLOCKS)], {}, True),
        ({"sticky": True}, [(WRITER, FILES)], {}, True),
        ({}, [(WRITER, FILES)], {"state": HostVolumeState.PENDING}, False),
        ({}, [(WRITER, FILES)], {"namespace": "other"}, False),
    ],
)
def test_a_registered_volume_must_be_ready_and_offer_the_access(
    request_fields: dict[str, Any],
    modes: list[tuple[AccessMode, AttachmentMode]],
    fields: dict[str, Any],
    *,
    expected: bool,
) -> None:
    state = AState()
    state.put(HOST_VOLUMES.build_put(make_volume("data", *modes, **fields)))
    node = make_node(data=NodeHostVolume(name="data", path="/d", id="v-data"))

    assert has_volume(node, make_request(**request_fields), NamespaceVolumes(state.replica, "default")) == expected


def test_a_volume_by_index_is_checked_for_the_index_of_the_allocation() -> None:
    group = a_group(
        "web",
        volumes={
            "a": make_request("data", per_alloc=True),
            "b": make_request("logs", per_alloc=True, read_only=True),
            "c": make_request("shared"),
            "d": make_request("csi", type="csi", per_alloc=True),
        },
    )
    ready, read_only = NodeHostVolume(path="/d"), NodeHostVolume(path="/d", read_only=True)
    node = make_node(data_0=ready, data_1=ready, data_2=read_only, logs_1=read_only, logs_2=ready)
    check = make_volume_check(group, lambda _id: None)

    assert check is not None
    assert [check(node, index) for index in range(4)] == [False, True, False, False]
    assert has_volume(node, make_request("data", per_alloc=True), lambda _id: None) is True
    assert has_volume(node, make_request("dat", per_alloc=True), lambda _id: None) is False
    assert make_volume_check(a_group("web", volumes={"c": make_request("shared")}), lambda _id: None) is None
    assert make_volume_check(a_group("web"), lambda _id: None) is None


# -- claims ------------------------------------------------------------------------------------------------------------

STICKY = a_group("web", volumes={"a": make_request("data", sticky=True), "b": make_request("logs", sticky=True)})


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ((), False),
        ((make_request(),), False),
        ((make_request(sticky=True),), True),
        ((make_request(type="csi", sticky=True),), False),
    ],
)
def test_only_sticky_host_volumes_are_claimed(requests: tuple[VolumeRequest, ...], *, expected: bool) -> None:
    volumes = {str(number): request for number, request in enumerate(requests)}

    assert has_sticky_volumes(a_group("web", volumes=volumes or None)) == expected


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        ((make_volume("data"), make_volume("logs"), make_volume("more")), ["v-data", "v-logs"]),
        ((make_volume("data"),), []),
        ((make_volume("logs"),), []),
        ((make_volume("data"), make_volume("logs", node_id="other")), []),
        ((make_volume("data"), make_volume("logs", namespace="other")), []),
    ],
)
def test_a_claim_holds_while_all_its_volumes_exist_on_the_node(
    volumes: tuple[HostVolume, ...], expected: list[str]
) -> None:
    state = AState()
    state.with_node("n")
    state.put(*map(HOST_VOLUMES.build_put, volumes))
    job = a_job("shop", STICKY)
    holder = an_allocation(job, node_id="n")
    state.put(ALLOCATIONS.build_put(holder))
    stored = state.allocation(holder.id)

    assert [volume.id for volume in list_claimed_volumes(state.replica, STICKY, stored)] == expected
    assert (find_claim_node(state.replica, STICKY, stored) is not None) == bool(expected)
    assert is_claim_holder(state.replica, stored, job) == bool(expected)
    assert is_claim_holder(state.replica, stored, a_job("shop", a_group("db"))) is False
    assert is_claim_holder(state.replica, stored, a_job("shop", a_group("web"))) is False


def test_the_newest_allocation_of_its_name_and_group_holds_the_claim() -> None:
    def make(key: str, index: int, *, name: str = "x", group: str = "web") -> Allocation:
        return an_allocation(a_job(), key, name=name, task_group=group, create_index=index)

    old, new, twin = make("b", 1), make("a", 2), make("c", 2)
    others = [make("d", 9, name="y"), make("e", 9, group="db")]

    assert [
        find_claim_holder(allocations, "web", "x")
        for allocations in ([old, new, *others], [new, old], [new, twin, old], [old], others, [])
    ] == [new, new, twin, old, None, None]


def test_only_the_newest_allocation_is_kept_for_its_claim() -> None:
    state = AState()
    job = a_job("shop", STICKY)
    state.put(*(HOST_VOLUMES.build_put(make_volume(name)) for name in ("data", "logs")))
    for key in ("a1", "a2"):
        state.put(ALLOCATIONS.build_put(an_allocation(job, key, node_id="n")))

    assert [is_claim_holder(state.replica, state.allocation(key), job) for key in ("a1", "a2")] == [False, True]


# -- writers -----------------------------------------------------------------------------------------------------------


def make_writer(name: str, source: str = "data", **fields: Any) -> Job:
    return a_job(name, a_group("web", volumes={"v": make_request(source, **fields)}), create_index=WRITE_INDEX)


@pytest.mark.parametrize(
    ("other", "fields", "can_write"),
    [
        (make_writer("other"), {}, False),
        (make_writer("other", read_only=True), {}, True),
        (make_writer("other", "logs"), {}, True),
        (make_writer("other", type="csi"), {}, True),
        (make_writer("other", per_alloc=True), {}, True),
        (make_writer("other", "data", access_mode=SINGLE), {}, False),
        (a_job("other", create_index=WRITE_INDEX), {}, True),
        (make_writer("other"), {"client_status": ClientStatus.COMPLETE}, True),
        (make_writer("other"), {"desired_status": DesiredStatus.STOP}, False),
        (make_writer("other"), {"job_version": 9}, False),  # Nobody knows what it writes.
        (make_writer("other"), {"task_group": "gone"}, True),
        (make_writer("other"), {"node_id": "elsewhere"}, True),
    ],
)
def test_a_single_writer_needs_a_node_where_nothing_else_writes_its_volume(
    other: Job, fields: dict[str, Any], *, can_write: bool
) -> None:
    state = AState()
    other = replace(other, create_index=state.put(JOB_VERSIONS.build_put(other)))
    allocation = an_allocation(other, **{"node_id": "n", **fields})
    group = make_writer("shop", access_mode=SINGLE).groups[0]

    def check(group: TaskGroup, *placed: Allocation) -> bool:
        return can_write_volumes(state.replica, a_node("n"), group, 0, placed)

    assert check(group) is True
    if allocation.is_occupying and allocation.node_id == "n":
        assert check(group, allocation) == can_write
    state.put(ALLOCATIONS.build_put(allocation))
    assert check(group) == can_write
    assert check(make_writer("shop").groups[0]) is True
    assert check(a_group("web")) is True


def test_single_writers_of_volumes_by_index_collide_only_on_their_own_volume() -> None:
    state = AState()
    job = make_writer("shop", per_alloc=True, access_mode=SINGLE)
    job = replace(job, create_index=state.put(JOB_VERSIONS.build_put(job)))
    state.put(ALLOCATIONS.build_put(an_allocation(job, name="shop.web[1]", node_id="n")))

    assert [can_write_volumes(state.replica, a_node("n"), job.groups[0], index, ()) for index in range(3)] == [
        True,
        False,
        True,
    ]


def test_single_writer_requests_are_host_volumes_with_that_access() -> None:
    requests = {
        "a": make_request(access_mode=SINGLE),
        "b": make_request(access_mode=WRITER),
        "c": make_request(access_mode=SINGLE, type="csi"),
    }

    assert list_single_writer_volumes(a_group("web", volumes=requests)) == [requests["a"]]
    assert list_single_writer_volumes(a_group("web")) == []

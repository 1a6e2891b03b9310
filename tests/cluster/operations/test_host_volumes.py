"""Host volumes: registered, replaced, deleted, and updated from what nodes report."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import AState
from wharf.cluster.operations import volumes as host_volumes
from wharf.cluster.operations.nodes import registration
from wharf.cluster.operations.volumes import VolumeWriteResult
from wharf.cluster.state.tables import HOST_VOLUMES, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.volumes import HostVolume, HostVolumeCapability, HostVolumeState


def a_volume(**fields: Any) -> HostVolume:
    given = {
        "name": "data",
        "node_id": "node-1",
        "host_path": "/srv/data",
        "requested_capabilities": (HostVolumeCapability(),),
        **fields,
    }
    return HostVolume(**given)


def register(state: AState, **fields: Any) -> VolumeWriteResult:
    return state.do(host_volumes.register_volume(state.replica, a_volume(**fields), state.moment))


def delete(state: AState, volume_id: str) -> int:
    return state.do(host_volumes.delete_volume(state.replica, "default", volume_id))


def refusal(state: AState, act: Any, *args: Any, **fields: Any) -> tuple[RefusalCode, str]:
    index = state.replica.index
    with pytest.raises(Refusal) as refused:
        act(state, *args, **fields)
    assert state.replica.index == index, "a refused request changes nothing"
    return refused.value.code, refused.value.text


def with_node() -> AState:
    state = AState()
    state.with_node(node_pool="default")
    return state


def volume(state: AState, volume_id: str) -> HostVolume:
    found = state.replica.get(HOST_VOLUMES, "default", volume_id)
    assert found is not None
    return found


def node_says(state: AState, **volumes: str) -> None:
    """The node has these volumes, by name and id."""
    told = {name: NodeHostVolume(name=name, path="/srv", id=volume_id) for name, volume_id in volumes.items()}
    node = replace(state.node(), host_volumes=told)
    state.put(NODES.build_put(node))
    changes, conditions = host_volumes.build_volume_changes(state.replica, state.node(), state.moment, max_volumes=10)
    assert len(changes) == len(conditions)
    if changes:
        state.put(*changes)


def test_a_registered_volume_gets_an_id_the_pool_of_its_node_and_waits_for_the_nodes_word() -> None:
    state = with_node()

    written = register(state)

    stored = volume(state, written.volume.id)
    assert (stored.node_pool, stored.state, stored.host_path) == ("default", HostVolumeState.PENDING, "/srv/data")
    assert (stored.create_index, stored.modify_index) == (written.index, written.index)
    assert stored.create_time == stored.modify_time == state.now_ns
    assert written.volume == stored


def test_a_volume_is_ready_when_its_node_says_so_and_unavailable_when_it_says_so_no_more() -> None:
    state = with_node()
    volume_id = register(state).volume.id

    node_says(state, data=volume_id)
    ready = volume(state, volume_id).state
    node_says(state)
    gone = volume(state, volume_id).state

    assert (ready, gone) == (HostVolumeState.READY, HostVolumeState.UNAVAILABLE)


def test_another_volume_of_that_name_on_the_node_makes_none_ready() -> None:
    state = with_node()
    volume_id = register(state).volume.id

    node_says(state, data="another")

    assert volume(state, volume_id).state is HostVolumeState.PENDING


def test_a_volume_without_name_capability_node_or_path_is_refused_with_all_of_it() -> None:
    code, text = refusal(with_node(), register, name="", requested_capabilities=None, node_id="", host_path="")

    assert code is RefusalCode.INVALID
    assert text == (
        "volume validation failed: 4 errors occurred:\n"
        "\t* missing name\n"
        "\t* must include at least one capability block\n"
        "\t* cannot register volume: node ID is required\n"
        "\t* cannot register volume: host path is required"
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"node_id": "nobody"}, 'node "nobody" does not exist'),
        ({"node_pool": "gpu"}, 'is in node pool "default", not in "gpu"'),
        ({"namespace": "team"}, 'namespace "team" not found'),
        ({"host_path": "srv"}, 'host path must be absolute: "srv"'),
        ({"name": "a b"}, 'invalid name "a b"'),
        (
            {"requested_capabilities": (HostVolumeCapability(access_mode="multi-node-reader-only"),)},
            'invalid access mode: "multi-node-reader-only"',
        ),
        (
            {"requested_capabilities": (HostVolumeCapability(attachment_mode="tape"),)},
            'invalid attachment mode: "tape"',
        ),
        (
            {"requested_capacity_min_bytes": 10, "requested_capacity_max_bytes": 5},
            "capacity_max (5) must be larger than capacity_min (10)",
        ),
    ],
)
def test_what_is_wrong_with_a_volume_is_told(fields: dict[str, Any], told: str) -> None:
    code, text = refusal(with_node(), register, **fields)

    assert (code, told in text) == (RefusalCode.INVALID, True)


def test_a_name_that_the_node_has_already_is_refused() -> None:
    state = with_node()
    volume_id = register(state).volume.id

    assert refusal(state, register)[1] == f'node "node-1" has a volume "data" already: {volume_id}'


def test_a_volume_is_replaced_under_its_id_and_stays_where_it_is() -> None:
    state = with_node()
    first = register(state).volume

    written = register(state, id=first.id, parameters={"a": "b"})

    stored = volume(state, first.id)
    assert (stored.parameters, stored.create_index) == ({"a": "b"}, first.create_index)
    assert written.index == stored.modify_index > first.modify_index
    assert "cannot change the host path" in refusal(state, register, id=first.id, host_path="/other")[1]
    assert "no volume has the ID" in refusal(state, register, id="another")[1]


def test_a_volume_that_work_on_its_node_uses_cannot_be_deleted() -> None:
    state = with_node()
    volume_id = register(state).volume.id
    group = a_group("web", volumes={"v": VolumeRequest(name="v", type="host", source="data")})
    state.register(a_job("shop", group))
    state.with_allocation(state.job(), "a1", client_status=ClientStatus.RUNNING)

    refused = refusal(state, delete, volume_id)
    state.with_client_status("a1", ClientStatus.COMPLETE)
    delete(state, volume_id)

    assert refused == (RefusalCode.INVALID, f"volume {volume_id} in use by allocations: a1")
    assert state.replica.count_records(HOST_VOLUMES) == 0


def test_a_volume_for_each_allocation_is_in_use_by_the_one_of_its_number() -> None:
    state = with_node()
    first = register(state, name="data0").volume.id
    state.put(HOST_VOLUMES.build_put(replace(volume(state, first), name="data[0]")))
    group = a_group("web", volumes={"v": VolumeRequest(name="v", type="host", source="data", per_alloc=True)})
    state.register(a_job("shop", group))
    state.with_allocation(state.job(), "a1", name="shop.web[0]", client_status=ClientStatus.RUNNING)

    assert "in use" in refusal(state, delete, first)[1]


def test_a_volume_that_nobody_knows_cannot_be_deleted() -> None:
    assert refusal(with_node(), delete, "none") == (RefusalCode.NOT_FOUND, "volume not found")


def test_the_node_is_needed_to_take_away_what_it_has_unless_it_is_gone() -> None:
    state = with_node()
    volume_id = register(state).volume.id
    waiting = host_volumes.has_folder_on_node(state.replica, volume(state, volume_id))
    node_says(state, data=volume_id)
    ready = host_volumes.has_folder_on_node(state.replica, volume(state, volume_id))
    state.put(NODES.build_delete("node-1"))
    orphaned = host_volumes.has_folder_on_node(state.replica, volume(state, volume_id))

    assert (waiting, ready, orphaned) == (False, True, False)


def test_a_node_that_registers_says_which_volumes_it_has() -> None:
    state = with_node()
    volume_id = register(state).volume.id
    told = replace(state.node(), host_volumes={"data": NodeHostVolume(name="data", path="/srv/data", id=volume_id)})

    state.lead(registration.register_node(state.replica, told, state.moment, max_evaluations=10))

    assert volume(state, volume_id).state is HostVolumeState.READY

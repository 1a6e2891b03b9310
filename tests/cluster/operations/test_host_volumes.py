"""Host volumes: registered, replaced, deleted, and updated from what nodes report."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import AState, an_allocation
from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations import volumes as host_volumes
from wharf.cluster.operations.nodes import registration
from wharf.cluster.operations.volumes import VolumeWriteResult
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import ALLOCATIONS, HOST_VOLUMES, JOB_VERSIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.log import Write
from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.volumes import (
    PLUGIN_VERSION_ATTRIBUTE,
    HostVolume,
    HostVolumeCapability,
    HostVolumeState,
)


def make_volume(**fields: Any) -> HostVolume:
    arguments = {
        "name": "data",
        "node_id": "node-1",
        "host_path": "/srv/data",
        "requested_capabilities": (HostVolumeCapability(),),
        **fields,
    }
    return HostVolume(**arguments)


def register(state: AState, **fields: Any) -> VolumeWriteResult:
    return state.do(host_volumes.register_volume(state.replica, make_volume(**fields), state.moment))


def delete(state: AState, volume_id: str) -> int:
    return state.do(host_volumes.delete_volume(state.replica, "default", volume_id))


def expect_refusal(state: AState, act: Any, *args: Any, **fields: Any) -> tuple[RefusalCode, str]:
    index = state.replica.index
    with pytest.raises(Refusal) as caught:
        act(state, *args, **fields)
    assert state.replica.index == index, "a refused request changes nothing"
    return caught.value.code, caught.value.text


def make_state() -> AState:
    state = AState()
    state.with_node(node_pool="default")
    return state


def get_stored_volume(state: AState, volume_id: str) -> HostVolume:
    found = state.replica.get(HOST_VOLUMES, "default", volume_id)
    assert found is not None
    return found


def report_volumes(state: AState, **volumes: str) -> None:
    """Register the node with these volumes, as names and ids."""
    reported = {name: NodeHostVolume(name=name, path="/srv", id=volume_id) for name, volume_id in volumes.items()}
    node = replace(state.node(), host_volumes=reported)
    state.put(NODES.build_put(node))
    changes, conditions = host_volumes.build_volume_changes(state.replica, state.node(), state.moment, max_volumes=10)
    assert len(changes) <= len(conditions)
    if changes:
        state.put(*changes)


def test_a_registered_volume_has_an_id_and_the_pool_of_its_node_and_is_pending() -> None:
    state = make_state()

    written = register(state)

    stored = get_stored_volume(state, written.volume.id)
    assert (stored.node_pool, stored.state, stored.host_path) == ("default", HostVolumeState.PENDING, "/srv/data")
    assert (stored.create_index, stored.modify_index) == (written.index, written.index)
    assert stored.create_time == stored.modify_time == state.now_ns
    assert written.volume == stored


def test_a_volume_is_ready_while_its_node_reports_it_and_unavailable_afterwards() -> None:
    state = make_state()
    volume_id = register(state).volume.id

    report_volumes(state, data=volume_id)
    ready = get_stored_volume(state, volume_id).state
    report_volumes(state)
    deleted = get_stored_volume(state, volume_id).state

    assert (ready, deleted) == (HostVolumeState.READY, HostVolumeState.UNAVAILABLE)


def test_a_reported_volume_with_the_same_name_and_another_id_does_not_count() -> None:
    state = make_state()
    volume_id = register(state).volume.id

    report_volumes(state, data="another")

    assert get_stored_volume(state, volume_id).state is HostVolumeState.PENDING


def test_all_missing_fields_of_a_volume_are_reported_together() -> None:
    code, text = expect_refusal(make_state(), register, name="", requested_capabilities=None, node_id="", host_path="")

    assert code is RefusalCode.INVALID
    assert text == (
        "volume validation failed: 4 errors occurred:\n"
        "\t* missing name\n"
        "\t* must include at least one capability block\n"
        "\t* cannot register volume: node ID is required\n"
        "\t* cannot register volume: host path is required"
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
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
def test_problems_of_a_volume_are_reported(fields: dict[str, Any], problem: str) -> None:
    code, text = expect_refusal(make_state(), register, **fields)

    assert (code, problem in text) == (RefusalCode.INVALID, True)


def test_a_volume_name_in_use_on_the_node_is_refused() -> None:
    state = make_state()
    volume_id = register(state).volume.id

    assert expect_refusal(state, register)[1] == f'node "node-1" has a volume "data" already: {volume_id}'


def test_a_volume_is_replaced_by_its_id_and_keeps_its_node() -> None:
    state = make_state()
    first = register(state).volume

    written = register(state, id=first.id, parameters={"a": "b"})

    stored = get_stored_volume(state, first.id)
    assert (stored.parameters, stored.create_index) == ({"a": "b"}, first.create_index)
    assert written.index == stored.modify_index > first.modify_index
    assert "cannot change the host path" in expect_refusal(state, register, id=first.id, host_path="/other")[1]
    assert "no volume has the ID" in expect_refusal(state, register, id="another")[1]


def test_a_volume_used_by_an_allocation_cannot_be_deleted() -> None:
    state = make_state()
    volume_id = register(state).volume.id
    group = a_group("web", volumes={"v": VolumeRequest(name="v", type="host", source="data")})
    state.register(a_job("shop", group))
    state.with_allocation(state.job(), "a1", client_status=ClientStatus.RUNNING)

    refusal = expect_refusal(state, delete, volume_id)
    state.with_client_status("a1", ClientStatus.COMPLETE)
    delete(state, volume_id)

    assert refusal == (RefusalCode.INVALID, f"volume {volume_id} in use by allocations: a1")
    assert state.replica.count_records(HOST_VOLUMES) == 0


def test_a_per_allocation_volume_is_used_by_the_allocation_of_its_number() -> None:
    state = make_state()
    first = register(state, name="data0").volume.id
    state.put(HOST_VOLUMES.build_put(replace(get_stored_volume(state, first), name="data[0]")))
    group = a_group("web", volumes={"v": VolumeRequest(name="v", type="host", source="data", per_alloc=True)})
    state.register(a_job("shop", group))
    state.with_allocation(state.job(), "a1", name="shop.web[0]", client_status=ClientStatus.RUNNING)

    assert "in use" in expect_refusal(state, delete, first)[1]


def test_an_unknown_volume_cannot_be_deleted() -> None:
    assert expect_refusal(make_state(), delete, "none") == (RefusalCode.NOT_FOUND, "volume not found")


def test_the_node_must_delete_the_folder_of_a_volume_unless_the_node_is_deleted() -> None:
    state = make_state()
    volume_id = register(state).volume.id
    waiting = host_volumes.has_folder_on_node(state.replica, get_stored_volume(state, volume_id))
    report_volumes(state, data=volume_id)
    ready = host_volumes.has_folder_on_node(state.replica, get_stored_volume(state, volume_id))
    state.put(NODES.build_delete("node-1"))
    orphaned = host_volumes.has_folder_on_node(state.replica, get_stored_volume(state, volume_id))

    assert (waiting, ready, orphaned) == (False, True, False)


def test_a_registration_updates_the_states_of_the_volumes() -> None:
    state = make_state()
    volume_id = register(state).volume.id
    node = replace(state.node(), host_volumes={"data": NodeHostVolume(name="data", path="/srv/data", id=volume_id)})

    state.lead(registration.register_node(state.replica, node, state.moment, max_evaluations=10))

    assert get_stored_volume(state, volume_id).state is HostVolumeState.READY


@pytest.mark.parametrize(
    ("fields", "is_user"),
    [
        pytest.param({}, True, id="running"),
        pytest.param({"client_status": ClientStatus.COMPLETE}, False, id="ended"),
        pytest.param({"desired_status": DesiredStatus.STOP}, True, id="stopping"),
        pytest.param({"node_id": "node-2"}, False, id="on another node"),
        pytest.param({"namespace": "other"}, False, id="of another namespace"),
        pytest.param({"job_version": 7}, True, id="of a version that is no longer stored"),
        pytest.param({"task_group": "without"}, False, id="of a group that does not request it"),
        pytest.param({"task_group": "csi"}, False, id="of a group with a volume of another type"),
    ],
)
def test_only_allocations_on_its_node_that_request_a_volume_use_it(fields: dict[str, Any], is_user: bool) -> None:
    state = make_state()
    volume_id = register(state).volume.id
    groups = (
        a_group("web", volumes={"v": VolumeRequest(name="v", type="host", source="data")}),
        a_group("csi", volumes={"v": VolumeRequest(name="v", type="csi", source="data")}),
        a_group("without"),
    )
    state.register(a_job())
    state.put(JOB_VERSIONS.build_put(replace(state.job(), task_groups=groups)))
    state.put(
        ALLOCATIONS.build_put(an_allocation(state.job(), "a1", **{"client_status": ClientStatus.RUNNING, **fields}))
    )

    if is_user:
        assert "in use" in expect_refusal(state, delete, volume_id)[1]
    else:
        delete(state, volume_id)
        assert state.replica.count_records(HOST_VOLUMES) == 0


@pytest.mark.parametrize("max_volumes", [1, 2, 3])
def test_a_report_changes_at_most_so_many_volumes_in_one_write(max_volumes: int) -> None:
    state = make_state()
    ids = [register(state, name=name, host_path=f"/srv/{name}").volume.id for name in ("a", "b", "c")]
    reported = {
        name: NodeHostVolume(name=name, path="/srv", id=volume_id)
        for name, volume_id in zip(("a", "b", "c"), ids, strict=True)
    }
    state.put(NODES.build_put(replace(state.node(), host_volumes=reported)))

    changes, conditions = host_volumes.build_volume_changes(
        state.replica, state.node(), state.moment, max_volumes=max_volumes
    )

    assert (len(changes), len(conditions)) == (max_volumes, max_volumes)


def test_a_cluster_without_nodes_cannot_create_a_volume() -> None:
    with pytest.raises(Refusal) as caught:
        host_volumes.VolumeNodeSearch(make_volume(node_id="")).list_candidates()

    assert caught.value.text == "no node can create the volume: there are no nodes"


def test_a_volume_that_its_node_has_yet_to_create_has_neither_a_path_nor_a_capacity() -> None:
    state = make_state()
    requested = make_volume(host_path="", capacity_bytes=7)

    created = state.do(host_volumes.begin_volume_creation(state.replica, requested, "node-1", state.moment))

    assert (created.volume.host_path, created.volume.capacity_bytes) == ("", 0)


def test_a_volume_cannot_be_created_under_a_name_that_is_in_use_on_its_node() -> None:
    state = make_state()
    existing = register(state).volume.id
    requested = make_volume(host_path="")

    with pytest.raises(Refusal) as caught:
        host_volumes.begin_volume_creation(state.replica, requested, "node-1", state.moment)

    assert caught.value.text == f'node "node-1" has a volume "data" already: {existing}'


def test_an_invalid_volume_is_not_created() -> None:
    state = make_state()

    with pytest.raises(Refusal) as caught:
        host_volumes.begin_volume_creation(
            state.replica, make_volume(host_path="", namespace="unknown"), "node-1", state.moment
        )

    assert 'namespace "unknown" not found' in caught.value.text


def test_the_node_with_the_fewest_volumes_is_the_first_candidate() -> None:
    state = AState()
    for node_id, count in (("node-1", 2), ("node-3", 0), ("node-2", 0), ("node-4", 1)):
        existing = {f"v{number}": NodeHostVolume(name=f"v{number}", path="/srv") for number in range(count)}
        state.with_node(node_id, host_volumes=existing or None)
        attributes = {**(state.node(node_id).attributes or {}), PLUGIN_VERSION_ATTRIBUTE.format("mkdir"): "1"}
        state.put(NODES.build_put(replace(state.node(node_id), attributes=attributes)))

    search = host_volumes.VolumeNodeSearch(make_volume(node_id="", plugin_id="mkdir"))
    for node in state.replica.iter_all(NODES):
        search.add(node)
    candidates = search.list_candidates()

    assert [node.id for node in candidates] == ["node-2", "node-3", "node-4", "node-1"]


@pytest.mark.parametrize("fields", [{"client_status": ClientStatus.COMPLETE}, {"namespace": "other"}])
def test_an_allocation_that_does_not_use_a_volume_does_not_hide_those_that_do(fields: dict[str, Any]) -> None:
    state = make_state()
    volume_id = register(state).volume.id
    group = a_group("web", volumes={"v": VolumeRequest(name="v", type="host", source="data")})
    state.register(a_job())
    for namespace in ("default", "other"):
        state.put(JOB_VERSIONS.build_put(replace(state.job(), namespace=namespace, task_groups=(group,))))
    for allocation_id in ("a1", "a2", "a3"):
        extra = fields if allocation_id == "a2" else {}
        allocation = an_allocation(state.job(), allocation_id, **{"client_status": ClientStatus.RUNNING, **extra})
        state.put(ALLOCATIONS.build_put(allocation))

    assert expect_refusal(state, delete, volume_id)[1].endswith("in use by allocations: a1, a3")


@pytest.mark.parametrize(
    ("unchanged", "is_reported"),
    [(HostVolumeState.READY, True), (HostVolumeState.PENDING, False), (HostVolumeState.UNAVAILABLE, False)],
)
def test_a_volume_whose_state_stays_does_not_hide_the_changes_of_others(
    unchanged: HostVolumeState, is_reported: bool
) -> None:
    state = make_state()
    volumes = [register(state, name=name, host_path=f"/srv/{name}").volume for name in ("a", "b", "c")]
    first, middle, last = sorted(volumes, key=lambda volume: volume.id)
    state.put(HOST_VOLUMES.build_put(replace(middle, state=unchanged)))
    reported = {
        volume.name: NodeHostVolume(name=volume.name, path="/srv", id=volume.id)
        for volume in (first, last, *([middle] if is_reported else ()))
    }
    state.put(NODES.build_put(replace(state.node(), host_volumes=reported)))

    changes, _ = host_volumes.build_volume_changes(state.replica, state.node(), state.moment, max_volumes=3)

    assert [change.key for change in changes] == [HOST_VOLUMES.get_key(first), HOST_VOLUMES.get_key(last)]


def begin_deletion(state: AState, volume_id: str) -> int:
    return state.do(host_volumes.begin_volume_deletion(state.replica, "default", volume_id, state.moment))


def make_ready_state() -> tuple[AState, str]:
    """Return a state with a ready volume, and the id of the volume."""
    state = make_state()
    volume_id = register(state).volume.id
    report_volumes(state, data=volume_id)
    assert get_stored_volume(state, volume_id).state is HostVolumeState.READY
    return state, volume_id


def test_a_volume_that_is_being_deleted_stays_unavailable_while_its_node_reports_it() -> None:
    state, volume_id = make_ready_state()
    begin_deletion(state, volume_id)

    report_volumes(state, data=volume_id)

    assert get_stored_volume(state, volume_id).state is HostVolumeState.UNAVAILABLE


def test_a_canceled_deletion_makes_a_volume_ready_if_its_node_reports_it() -> None:
    state, volume_id = make_ready_state()
    begin_deletion(state, volume_id)

    state.do(host_volumes.cancel_volume_deletion(state.replica, "default", volume_id, state.moment))

    volume = get_stored_volume(state, volume_id)
    assert (volume.state, volume.deletion_started) == (HostVolumeState.READY, 0)


def test_a_canceled_deletion_of_a_volume_that_its_node_no_longer_has_leaves_it_unavailable() -> None:
    state, volume_id = make_ready_state()
    begin_deletion(state, volume_id)
    report_volumes(state)

    state.do(host_volumes.cancel_volume_deletion(state.replica, "default", volume_id, state.moment))

    volume = get_stored_volume(state, volume_id)
    assert (volume.state, volume.deletion_started) == (HostVolumeState.UNAVAILABLE, 0)


def decide_registration(state: AState, **volumes: str) -> Write:
    """Return the write of a registration in which the node reports these volumes, as names and ids."""
    reported = {name: NodeHostVolume(name=name, path="/srv", id=volume_id) for name, volume_id in volumes.items()}
    node = replace(state.node(), host_volumes=reported)
    write = registration.register_node(state.replica, node, state.moment, max_evaluations=2).write
    assert write is not None
    return write


@pytest.mark.parametrize("is_reported", [True, False], ids=["reported again", "missing now"])
def test_a_registration_conflicts_with_the_end_of_a_deletion_that_was_decided_on_the_same_state(
    is_reported: bool,
) -> None:
    state, volume_id = make_ready_state()
    begin_deletion(state, volume_id)
    state.put(NODES.build_put(replace(state.node(), secret_digest="digest")))
    if is_reported:
        report_volumes(state)
    report = decide_registration(state, **({"data": volume_id} if is_reported else {}))

    state.do(host_volumes.cancel_volume_deletion(state.replica, "default", volume_id, state.moment))

    assert isinstance(state.try_commit(report), WriteConflict)


def test_a_registration_without_news_updates_the_volumes_that_an_earlier_one_left() -> None:
    state = make_state()
    volumes = [register(state, name=name, host_path=f"/srv/{name}").volume for name in ("a", "b", "c")]
    state.put(NODES.build_put(replace(state.node(), secret_digest="digest")))
    reported = {volume.name: volume.id for volume in volumes}

    for _ in volumes:
        assert not isinstance(state.try_commit(decide_registration(state, **reported)), WriteConflict)

    assert [get_stored_volume(state, volume.id).state for volume in volumes] == [HostVolumeState.READY] * 3


def test_only_deletions_that_began_long_ago_are_ended() -> None:
    state, volume_id = make_ready_state()
    begin_deletion(state, volume_id)
    too_early = host_volumes.end_old_deletions(state.replica, state.moment, max_changes=10)

    state.now_ns += host_volumes.MAX_DELETION_NS
    decision = host_volumes.end_old_deletions(state.replica, state.moment, max_changes=10)

    assert too_early is None
    assert decision is not None
    assert state.do(decision) == 1
    assert get_stored_volume(state, volume_id).state is HostVolumeState.READY


def test_a_volume_that_is_being_deleted_cannot_be_registered_again() -> None:
    state, volume_id = make_ready_state()
    begin_deletion(state, volume_id)

    code, text = expect_refusal(state, register, id=volume_id)

    assert (code, f"volume {volume_id} is being deleted" in text) == (RefusalCode.INVALID, True)


def test_a_deletion_conflicts_with_a_plan_that_was_decided_on_the_same_state() -> None:
    state, volume_id = make_ready_state()
    decision = host_volumes.begin_volume_deletion(state.replica, "default", volume_id, state.moment)
    state.put(capacity_versions.write_cluster_version())

    assert decision.write is not None
    assert isinstance(state.try_commit(decision.write), WriteConflict)


def register_job_with_volume(state: AState, *sources: str) -> Job:
    """Register a version of the job `shop` whose group requests the host volumes with these names."""
    requests = {
        source: VolumeRequest(type="host", source=source, access_mode="single-node-writer") for source in sources
    }
    state.register(a_job("shop", a_group("web", volumes=requests)))
    return state.job("shop")


def test_a_plan_places_nothing_on_a_volume_whose_deletion_has_begun_since() -> None:
    state, volume_id = make_ready_state()
    register_job_with_volume(state, "data")
    (evaluation,) = state.open_evaluations("shop")
    plan = state.plan(evaluation)
    begin_deletion(state, volume_id)

    check = check_plan(plan, state.replica, max_changes=100)

    assert [len(placed) for placed in plan.placements.values()] == [1]
    assert check.dropped_nodes == ["node-1"]


@pytest.mark.parametrize(("is_deleted", "newest_sources"), [(False, ["other"]), (True, [])])
def test_a_placement_of_an_earlier_version_needs_the_volumes_of_that_version(
    *, is_deleted: bool, newest_sources: list[str]
) -> None:
    state, volume_id = make_ready_state()
    earlier = register_job_with_volume(state, "data")
    newest = register_job_with_volume(state, *newest_sources)
    plan = Plan(state.open_evaluations("shop")[-1], newest, placements={"node-1": (an_allocation(earlier),)})
    if is_deleted:
        begin_deletion(state, volume_id)

    check = check_plan(plan, state.replica, max_changes=100)

    assert check.dropped_nodes == (["node-1"] if is_deleted else [])

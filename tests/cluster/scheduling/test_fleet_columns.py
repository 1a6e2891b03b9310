"""The columns of the fleet and of drafts: rows, values of references, used resources, and preempted capacity."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import SECOND_NS, AState, a_node, an_allocation
from wharf.cluster.scheduling.fleet.columns import INITIAL_ROWS
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.fleet.fleet import MAX_CACHED_PROPERTIES, MAX_CACHED_SIZES, MISSING_CODE, Fleet
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedPort,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import Node, NodeStatus, SchedulingEligibility
from wharf.contract.model.nodes.resources import NodeMemory, ReservedCpu, ReservedResources
from wharf.contract.model.resource_usage import MAX_AMOUNT, Usage

RACK = "${meta.rack}"
GPU = (("acme", "gpu", "x"), "id")


def make_resources(cpu: int = 10, memory_mb: int = 20, disk_mb: int = 30, **fields: Any) -> AllocatedResources:
    ports = tuple(AllocatedPort(label=str(port), value=port, host_ip="10.0.0.1") for port in fields.pop("ports", ()))
    task = AllocatedTaskResources(
        cpu=AllocatedCpu(cpu_shares=cpu, reserved_cores=fields.pop("cores", None)),
        memory=AllocatedMemory(memory_mb=memory_mb),
        **fields,
    )
    return AllocatedResources(
        tasks={"server": task}, shared=AllocatedSharedResources(disk_mb=disk_mb, ports=ports or None)
    )


SMALL = make_resources()
WITH_ALL = make_resources(
    ports=(80,), cores=(3,), devices=(AllocatedDevice(vendor="acme", type="gpu", name="x", device_ids=("id",)),)
)


def make_node(node_id: str, **fields: Any) -> Node:
    return a_node(node_id, **{"status": NodeStatus.READY, **fields})


def make_fleet(*node_ids: str) -> Fleet:
    fleet = Fleet()
    for node_id in node_ids or ("a", "b"):
        fleet.set_node(make_node(node_id))
    return fleet


def make_allocation(allocation_id: str = "a1", node_id: str = "a", **fields: Any) -> Allocation:
    return an_allocation(a_job(), allocation_id, node_id=node_id, **{"allocated_resources": SMALL, **fields})


def get_used(fleet: Fleet | FleetDraft, row: int = 0) -> tuple[int, int, int, int]:
    """Return the number of allocations in a row, and their CPU, memory and disk."""
    columns = (fleet.count, fleet.cpu_used, fleet.memory_used, fleet.disk_used)
    return tuple(int(column[row]) for column in columns)  # type: ignore[return-value]


def list_exclusive(fleet: Fleet, row: int = 0) -> list[object]:
    """Return the ports, cores and devices in use in a row, and the rows with port 80."""
    in_use = fleet.exclusive_resources.get(row)
    if in_use is None:
        return [None, get_holders(fleet, 80)]
    return [dict(in_use.ports), dict(in_use.cores), dict(in_use.devices), get_holders(fleet, 80)]


def get_holders(fleet: Fleet, port: int) -> dict[int, int]:
    """Return the rows where the port is in use, with the number of uses."""
    return {**fleet.port_holders.get(port, {})}


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_the_capacity_of_a_node_follows_its_changes() -> None:
    fleet = Fleet()
    rows = []
    for node in (
        make_node("a", cpu=700, memory_mb=800, node_max_allocs=5),
        make_node("a", cpu=900, memory_mb=1_000, status=NodeStatus.DOWN),
        make_node("a", cpu=1, scheduling_eligibility=SchedulingEligibility.INELIGIBLE),
    ):
        fleet.set_node(node)
        columns = (fleet.cpu, fleet.memory, fleet.disk, fleet.max_allocations, fleet.is_ready)
        rows.append(tuple(column.tolist()[0] for column in columns))

    assert rows == [
        (700, 800, 100_000, 5, True),
        (900, 1_000, 100_000, 0, False),
        (1, 1_000, 100_000, 0, False),
    ]
    assert (len(fleet), list(fleet.iter_nodes())) == (1, [(0, fleet.get_node(0))])


def test_each_change_of_a_node_increases_the_revision() -> None:
    fleet = Fleet()
    revisions = [fleet.node_revision]
    changes: tuple[Callable[[], None], ...] = (
        lambda: fleet.set_node(make_node("a")),
        lambda: fleet.set_node(make_node("a")),
        lambda: fleet.remove_node("a"),
        lambda: fleet.remove_node("a"),
        lambda: fleet.apply_change(None, make_allocation()),
    )
    for change in changes:
        change()
        revisions.append(fleet.node_revision)

    assert revisions == sorted(revisions)
    assert [later > earlier for earlier, later in itertools.pairwise(revisions)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_the_row_of_a_removed_node_is_cleared_and_used_again() -> None:
    fleet = make_fleet("a", "b", "c")
    fleet.get_property_column(RACK)
    fleet.apply_change(None, make_allocation(node_id="b", allocated_resources=WITH_ALL))
    fleet.remove_node("b")
    in_between = (
        get_used(fleet, 1),
        bool(fleet.is_ready[1]),
        [int(column[1]) for column in (fleet.kind, fleet.datacenter, fleet.pool, fleet.cpu, fleet.memory, fleet.disk)],
        list_exclusive(fleet, 1),
        [row for row, _ in fleet.iter_nodes()],
        sorted(fleet.row_by_node_id),
    )
    fleet.set_node(make_node("d", cpu=5, meta={"rack": "r1"}))
    fleet.set_node(make_node("e"))

    assert in_between == ((0, 0, 0, 0), False, [MISSING_CODE] * 3 + [0] * 3, [None, {}], [0, 2], ["a", "c"])
    assert fleet.row_by_node_id == {"a": 0, "c": 2, "d": 1, "e": 3}
    assert (int(fleet.cpu[1]), fleet.get_property_column(RACK).codes[:4].tolist()) == (5, [-1, 0, -1, -1])
    assert get_used(fleet, 1) == (0, 0, 0, 0)


def test_allocations_that_were_stored_before_their_node_are_counted_with_it_once() -> None:
    fleet = Fleet()
    allocations = [
        make_allocation("a1"),
        make_allocation("a2", allocated_resources=WITH_ALL),
        make_allocation("a3", client_status=ClientStatus.COMPLETE),
        make_allocation("a4", allocated_resources=None),
    ]
    fleet.set_node(make_node("a"), allocations)
    first = get_used(fleet)
    fleet.set_node(make_node("a", cpu=5), allocations)

    assert first == get_used(fleet) == (3, 20, 40, 60)
    assert list_exclusive(fleet) == [{("10.0.0.1", 80): 1}, {3: 1}, {GPU: 1}, {0: 1}]


def test_columns_grow_beyond_their_first_size_and_keep_their_values() -> None:
    fleet = Fleet()
    column = fleet.get_property_column(RACK)
    count = 2 * INITIAL_ROWS + 1
    for number in range(count):
        fleet.set_node(
            make_node(
                f"n{number}",
                cpu=100 + number,
                memory_mb=200 + number,
                node_max_allocs=number,
                datacenter=f"dc{number % 3}",
                node_pool=f"pool{number % 2}",
                meta={"rack": str(number)} if number % 2 else {},
                attributes={"x": str(number % 5)},
            )
        )
        fleet.apply_change(
            None, make_allocation(f"a{number}", f"n{number}", allocated_resources=make_resources(number))
        )

    for number in range(count):
        assert (fleet.cpu[number], fleet.memory[number], fleet.disk[number]) == (100 + number, 200 + number, 100_000)
        assert (fleet.max_allocations[number], bool(fleet.is_ready[number])) == (number, True)
        assert get_used(fleet, number) == (1, number, 20, 30)
        assert fleet.datacenters.values[fleet.datacenter[number]] == f"dc{number % 3}"
        assert fleet.pools.values[fleet.pool[number]] == f"pool{number % 2}"
        assert fleet.kind_examples[fleet.kind[number]].attributes == {"x": str(number % 5)}
        code = column.codes[number]
        assert (column.values.values[code] if code != MISSING_CODE else None) == (str(number) if number % 2 else None)
    for codes in (column.codes, fleet.kind, fleet.datacenter, fleet.pool):
        assert set(codes[count:].tolist()) == {MISSING_CODE}
    for amounts in (fleet.cpu, fleet.memory, fleet.disk, fleet.cpu_used, fleet.count, fleet.is_ready):
        assert len(amounts) > count
        assert not amounts[count:].any()


def test_the_column_of_a_reference_is_cached_and_follows_new_and_changed_nodes() -> None:
    fleet = make_fleet("a", "gone")
    fleet.remove_node("gone")
    column = fleet.get_property_column(RACK)
    before = column.codes[:2].tolist()
    fleet.set_node(make_node("b", meta={"rack": "r1"}))
    fleet.set_node(make_node("a", meta={"rack": "r2"}))

    assert (before, column.codes[:2].tolist(), column.values.values) == ([-1, -1], [1, 0], ["r1", "r2"])
    assert fleet.get_property_column(RACK) is column
    assert fleet.get_property_column("${node.unique.name}").codes[:2].tolist() == [0, 1]


def test_only_the_columns_used_last_are_cached() -> None:
    fleet = make_fleet("a")
    columns = [fleet.get_property_column(f"${{meta.{number}}}") for number in range(MAX_CACHED_PROPERTIES)]
    assert fleet.get_property_column("${meta.0}") is columns[0]
    fleet.get_property_column("${meta.new}")

    assert fleet.get_property_column("${meta.0}") is columns[0]
    assert fleet.get_property_column("${meta.2}") is columns[2]
    assert fleet.get_property_column("${meta.1}") is not columns[1]


@pytest.mark.parametrize(
    "fields",
    [{"meta": {"rack": "r1"}}, {"datacenter": "dc2"}, {"node_pool": "gpu"}, {"node_class": "x"}, {"attributes": {}}],
)
def test_a_changed_description_changes_the_kind_of_a_node(fields: dict[str, Any]) -> None:
    fleet = make_fleet("a", "b")
    fleet.set_node(make_node("a", **fields))
    back = fleet.kind.tolist()[:2]
    fleet.set_node(make_node("a"))

    assert (back, fleet.kind.tolist()[:2], len(fleet.kind_examples)) == ([1, 0], [0, 0], 2)
    assert fleet.datacenters.values[fleet.datacenter[0]] == "dc1"


# -- allocations -------------------------------------------------------------------------------------------------------


def test_the_used_resources_follow_allocations_from_start_to_end() -> None:
    fleet = make_fleet("a", "b")
    running = make_allocation(allocated_resources=WITH_ALL)
    ended = replace(running, client_status=ClientStatus.COMPLETE)
    lost_early = replace(running, id="a2", client_status=ClientStatus.LOST)
    history = []
    for before, after in (
        (None, running),
        (running, replace(running, client_status=ClientStatus.RUNNING)),
        (None, lost_early),
        (lost_early, None),
        (running, ended),
        (ended, None),
        (None, make_allocation("a3", "unknown")),
        (None, make_allocation("a4", allocated_resources=None)),
    ):
        fleet.apply_change(before, after)
        history.append((get_used(fleet), bool(fleet.exclusive_resources), bool(fleet.port_holders)))

    used, free = ((1, *history[0][0][1:]), True, True), ((0, 0, 0, 0), False, False)
    assert history == [used, used, used, used, free, free, free, ((1, 0, 0, 0), False, False)]
    assert history[0][0][2:] == (20, 30)
    assert get_used(fleet, 1) == (0, 0, 0, 0)


def test_an_allocation_that_changes_its_resources_or_its_node_is_counted_anew() -> None:
    fleet = make_fleet("a", "b")
    first = make_allocation()
    larger = replace(first, allocated_resources=make_resources(100, 200, 300))
    moved = replace(larger, node_id="b")
    equal = replace(moved, allocated_resources=make_resources(100, 200, 300))
    bare = replace(moved, allocated_resources=None)
    history = []
    for before, after in ((None, first), (first, larger), (larger, moved), (moved, equal), (equal, bare), (bare, None)):
        fleet.apply_change(before, after)
        history.append((get_used(fleet, 0), get_used(fleet, 1)))

    none = (0, 0, 0, 0)
    assert history == [
        ((1, 10, 20, 30), none),
        ((1, 100, 200, 300), none),
        (none, (1, 100, 200, 300)),
        (none, (1, 100, 200, 300)),
        (none, (1, 0, 0, 0)),
        (none, none),
    ]


def test_ports_cores_and_devices_are_counted_until_the_last_use_ends() -> None:
    fleet = make_fleet("a", "b")
    first, second = (make_allocation(f"a{n}", allocated_resources=WITH_ALL) for n in (1, 2))
    other = make_allocation("a3", "b", allocated_resources=make_resources(ports=(80, 81)))
    history = []
    for before, after in ((None, first), (None, second), (None, other), (first, None), (second, None), (other, None)):
        fleet.apply_change(before, after)
        history.append([list_exclusive(fleet), get_holders(fleet, 80), get_holders(fleet, 81)])

    def used(count: int, holders: dict[int, int]) -> list[object]:
        return [{("10.0.0.1", 80): count}, {3: count}, {GPU: count}, holders]

    assert history == [
        [used(1, {0: 1}), {0: 1}, {}],
        [used(2, {0: 2}), {0: 2}, {}],
        [used(2, {0: 2, 1: 1}), {0: 2, 1: 1}, {1: 1}],
        [used(1, {0: 1, 1: 1}), {0: 1, 1: 1}, {1: 1}],
        [[None, {1: 1}], {1: 1}, {1: 1}],
        [[None, {}], {}, {}],
    ]
    assert fleet.port_holders == {}


def test_many_allocations_are_added_at_once_and_unknown_nodes_are_left_out() -> None:
    fleet, expected = make_fleet("a", "b"), make_fleet("a", "b")
    allocations = [
        make_allocation("a1"),
        make_allocation("a2", allocated_resources=WITH_ALL),
        make_allocation("a3", "b", allocated_resources=make_resources(1, 2, 3)),
        make_allocation("a4", "unknown"),
        make_allocation("a5", allocated_resources=None),
        make_allocation("a6", "b", allocated_resources=make_resources(1, 2, 3, ports=(80,))),
    ]
    fleet.add_allocations(allocations)
    for allocation in allocations:
        expected.apply_change(None, allocation)

    for row in (0, 1):
        assert get_used(fleet, row) == get_used(expected, row)
        assert list_exclusive(fleet, row) == list_exclusive(expected, row)
    assert get_used(fleet, 1) == (2, 2, 4, 6)
    fleet.add_allocations([])
    assert get_used(fleet, 1) == (2, 2, 4, 6)


def test_the_sums_of_placements_are_those_of_each_node() -> None:
    fleet = make_fleet("a", "b")
    placements = {
        "b": [make_allocation(), make_allocation(allocated_resources=make_resources(1, 2, 3))],
        "unknown": [make_allocation()],
        "a": [make_allocation(allocated_resources=None), make_allocation(allocated_resources=WITH_ALL)],
    }

    sums = fleet.sum_placements(placements.items())

    assert (sums.rows.tolist(), sums.counts.tolist(), [*sums.exclusive_rows]) == ([1, 0], [2, 2], [0])
    assert (sums.cpu.tolist()[0], sums.memory_mb.tolist(), sums.disk_mb.tolist()) == (11, [22, 20], [33, 30])
    empty = fleet.sum_placements([])
    assert (empty.rows.tolist(), empty.counts.tolist(), empty.exclusive_rows) == ([], [], frozenset())


TOO_LARGE = 2**63 - 1
"""The largest number that a record can contain."""


def test_stored_amounts_that_are_too_large_count_as_the_largest_amount() -> None:
    too_large = make_resources(TOO_LARGE, TOO_LARGE, TOO_LARGE)
    fleet = Fleet()
    reserved = ReservedResources(cpu=ReservedCpu(cpu_shares=-5), memory=NodeMemory(memory_mb=-5))
    fleet.set_node(make_node("a", cpu=TOO_LARGE, memory_mb=TOO_LARGE, reserved_resources=reserved))

    for number in range(3):
        fleet.apply_change(None, make_allocation(f"a{number}", allocated_resources=too_large))
    sums = fleet.sum_placements([("a", [make_allocation(allocated_resources=too_large)] * 3)])

    assert (fleet.cpu.tolist()[0], fleet.memory.tolist()[0]) == (MAX_AMOUNT, MAX_AMOUNT)
    assert get_used(fleet) == (3, 3 * MAX_AMOUNT, 3 * MAX_AMOUNT, 3 * MAX_AMOUNT)
    assert (sums.cpu.tolist(), sums.disk_mb.tolist()) == ([3 * MAX_AMOUNT], [3 * MAX_AMOUNT])


def test_more_resource_records_are_measured_than_are_cached() -> None:
    fleet = make_fleet("a")
    count = MAX_CACHED_SIZES + 2
    records = [make_resources(number, 0, 0) for number in range(count)]

    assert [fleet.measure_resources(record)[0].cpu for record in records] == list(range(count))
    assert fleet.measure_resources(records[0]) == (Usage(0, 0, 0), False)
    assert fleet.measure_resources(WITH_ALL)[1] is True


# -- preempted capacity ------------------------------------------------------------------------------------------------


def make_victim(allocation_id: str = "v", node_id: str = "a", **fields: Any) -> Allocation:
    return make_allocation(allocation_id, node_id, preempted_by_allocation="p", modify_time=SECOND_NS, **fields)


def test_the_capacity_of_a_victim_is_held_from_its_end_until_its_preemptor_is_stored() -> None:
    fleet = make_fleet("a", "b")
    running, ended = make_victim(node_id="b"), make_victim(node_id="b", client_status=ClientStatus.COMPLETE)
    history = []
    for before, after in (
        (None, running),
        (running, ended),
        (ended, replace(ended, modify_time=2 * SECOND_NS)),
        (None, make_allocation("other", "b", preempted_allocations=("x",), modify_time=SECOND_NS)),
        (None, make_allocation("p", "b", preempted_allocations=("w", "v"), modify_time=SECOND_NS)),
        (ended, ended),
    ):
        fleet.apply_change(before, after)
        history.append(
            {
                key: (held.row, held.victim.id, held.preemptor_id, held.expires_at_ns)
                for key, held in fleet.preempted_capacity.items()
            }
        )

    held = {"v": (1, "v", "p", 61 * SECOND_NS)}
    assert history == [{}, held, held, held, {}, {}]


def test_capacity_is_held_for_a_minute_at_most() -> None:
    fleet = make_fleet()
    fleet.apply_change(None, make_victim("v1", client_status=ClientStatus.COMPLETE))
    for at_ns, is_held in ((61 * SECOND_NS, True), (61 * SECOND_NS + 1, False)):
        ended = make_victim("v2", client_status=ClientStatus.COMPLETE)
        fleet.apply_change(None, replace(ended, modify_time=at_ns))
        assert ("v1" in fleet.preempted_capacity, "v2" in fleet.preempted_capacity) == (is_held, True)


def test_capacity_is_held_only_for_victims_on_known_nodes_and_ends_with_the_node() -> None:
    fleet = make_fleet("a", "b")
    for victim in (make_victim("v1"), make_victim("v2", "b"), make_victim("v3", "unknown")):
        fleet.apply_change(victim, replace(victim, client_status=ClientStatus.FAILED))
    not_preempted = make_allocation("v4")
    fleet.apply_change(not_preempted, replace(not_preempted, client_status=ClientStatus.FAILED))
    held = sorted(fleet.preempted_capacity)
    fleet.remove_node("a")

    assert (held, sorted(fleet.preempted_capacity)) == (["v1", "v2"], ["v2"])


def test_a_fleet_of_a_snapshot_holds_capacity_for_preemptors_that_are_not_stored_yet() -> None:
    state = AState()
    state.put(NODES.build_put(replace(make_node("a"), create_index=WRITE_INDEX)))
    used = make_victim("v1", client_status=ClientStatus.COMPLETE)
    waiting = replace(used, id="v2", preempted_by_allocation="later")
    state.put(*(ALLOCATIONS.build_put(each) for each in (used, waiting, make_allocation("p"), make_allocation("x"))))

    fleet = Fleet.from_snapshot(state.replica)

    assert list(fleet.preempted_capacity) == ["v2"]
    assert get_used(fleet) == (2, 20, 40, 60)


# -- drafts ------------------------------------------------------------------------------------------------------------


def test_a_draft_adds_removes_and_restores_allocations_without_a_change_of_the_fleet() -> None:
    fleet = make_fleet("a", "b")
    fleet.apply_change(None, make_allocation(allocated_resources=WITH_ALL))
    with_port = make_resources(1, 2, 3, ports=(80,))
    draft = FleetDraft(fleet)
    of_fleet = get_used(fleet)
    history = []

    def record() -> None:
        in_use = draft.get_exclusive_resources(0)
        used = tuple(now - before for now, before in zip(get_used(draft), of_fleet, strict=True))
        history.append((used, in_use.ports.get(("10.0.0.1", 80), 0), set(draft.iter_rows_with_port(80))))

    record()
    draft.add_allocation(0, with_port, Usage(1, 2, 3))
    record()
    draft.remove_allocation(0, with_port)
    record()
    draft.remove_allocation(0, WITH_ALL)
    record()
    draft.restore_allocation(0, WITH_ALL)
    record()
    draft.add_allocation(1, with_port, Usage(1, 2, 3))
    record()
    draft.remove_allocation(1, with_port)
    record()

    none, minus = (0, 0, 0, 0), tuple(-amount for amount in of_fleet)
    assert history == [
        (none, 1, {0}),
        ((1, 1, 2, 3), 2, {0}),
        (none, 1, {0}),
        (minus, 0, set()),
        (none, 1, {0}),
        (none, 1, {0, 1}),
        (none, 1, {0}),
    ]
    assert (draft.changed_rows, draft.freed_rows) == ([0, 0, 0, 0, 1, 1], [0, 0, 1])
    assert (get_used(fleet), list_exclusive(fleet)) == (of_fleet, [{("10.0.0.1", 80): 1}, {3: 1}, {GPU: 1}, {0: 1}])


def test_a_draft_counts_reserved_capacity_and_amounts_of_many_nodes() -> None:
    fleet = make_fleet("a", "b", "c")
    draft = FleetDraft(fleet)
    rows = fleet.cpu[:2].astype("int64")
    rows[:] = (2, 0)
    counts = rows.copy()
    counts[:] = (3, 1)

    draft.add_amounts(rows, counts, Usage(10, 20, 30))
    draft.reserve_capacity(1, Usage(1, 2, 3))

    assert [get_used(draft, row) for row in range(3)] == [(1, 10, 20, 30), (1, 1, 2, 3), (3, 30, 60, 90)]
    assert (draft.changed_rows, draft.freed_rows) == ([2, 0, 1], [])


def test_a_draft_counts_the_placements_of_a_plan_that_is_being_committed() -> None:
    fleet = make_fleet("a", "b")
    fleet.apply_change(None, make_allocation())
    placements = {
        "b": [make_allocation("p1", "b", allocated_resources=WITH_ALL), make_allocation("p2", "b")],
        "a": [make_allocation("p3", allocated_resources=None)],
    }

    with fleet.expect_placements(placements):
        draft = FleetDraft(fleet)
    after = FleetDraft(fleet)

    count, _, memory_mb, disk_mb = get_used(draft, 1)
    assert (get_used(draft), (count, memory_mb, disk_mb)) == ((2, 10, 20, 30), (2, 40, 60))
    assert (list(draft.iter_rows_with_port(80)), draft.get_exclusive_resources(1).cores) == ([1], {3: 1})
    assert get_used(fleet) == get_used(after) == (1, 10, 20, 30)
    assert get_used(after, 1) == (0, 0, 0, 0)
    assert list(after.iter_rows_with_port(80)) == []

"""Which allocations are preempted for a placement: the cheapest ones on one node, and no more than needed."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import AState, an_allocation
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.placement.preemption import (
    MAX_SCANNED_NODES,
    MAX_VICTIMS,
    VictimSearch,
    is_preemptible_by,
    is_preemption_enabled,
)
from wharf.cluster.state.tables import ALLOCATIONS, JOB_VERSIONS, JOBS, SCHEDULER_CONFIGURATION
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.jobs.job import JobType
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration
from wharf.contract.model.resource_usage import Usage

PREEMPTOR = a_job("shop", priority=80)


class VictimHarness(AState):
    """A state with the nodes n1 to n3, of 1,000 MHz, 1,000 MB and 100,000 MB of disk each, and jobs by priority."""

    def __init__(self, nodes: int = 3) -> None:
        super().__init__()
        for number in range(nodes):
            self.with_node(f"n{number + 1}")

    def add_job(self, job_id: str, priority: int, max_parallel: int = 0) -> None:
        migrate = MigratePolicy(max_parallel=max_parallel) if max_parallel else None
        job = a_job(job_id, a_group("web", migrate=migrate), priority=priority, create_index=WRITE_INDEX)
        self.put(JOBS.build_put(job), JOB_VERSIONS.build_put(job))

    def add(
        self, key: str, amounts: tuple[int, int, int], priority: int = 10, node_id: str = "n1", **fields: Any
    ) -> None:
        """Place an allocation with this CPU, memory and disk, by default of a job of its own."""
        job_id = fields.pop("job_id", f"job-{key}")
        if self.replica.get(JOBS, "default", job_id) is None:
            self.add_job(job_id, priority)
        task = AllocatedTaskResources(
            cpu=AllocatedCpu(cpu_shares=amounts[0]), memory=AllocatedMemory(memory_mb=amounts[1])
        )
        resources = AllocatedResources(tasks={"server": task}, shared=AllocatedSharedResources(disk_mb=amounts[2]))
        allocation = an_allocation(a_job(job_id), key, node_id=node_id, allocated_resources=resources, **fields)
        self.put(ALLOCATIONS.build_put(allocation))

    def make_search(self) -> VictimSearch:
        return VictimSearch(self.replica, FleetDraft(Fleet.from_snapshot(self.replica)), PREEMPTOR)

    def find(self, *amounts: int, rows: tuple[int, ...] = (0,), search: VictimSearch | None = None) -> list[str]:
        victims = (search or self.make_search()).find_victims(rows, Usage(*amounts))
        return sorted(victim.id for victim in victims)


@pytest.mark.parametrize(("priority", "expected"), [(69, True), (70, True), (71, False), (80, False), (90, False)])
def test_a_job_preempts_jobs_whose_priority_is_lower_by_ten(priority: int, *, expected: bool) -> None:
    state = VictimHarness()
    state.add("a", (1_000, 0, 0), priority)

    assert is_preemptible_by(priority, 80) == expected
    assert state.find(500) == (["a"] if expected else [])


@pytest.mark.parametrize("type", [JobType.SERVICE, JobType.BATCH, JobType.SYSTEM, JobType.SYSBATCH])
def test_preemption_is_enabled_for_each_type_of_job(type: JobType) -> None:
    fields = {
        JobType.SERVICE: "service_scheduler_enabled",
        JobType.BATCH: "batch_scheduler_enabled",
        JobType.SYSTEM: "system_scheduler_enabled",
        JobType.SYSBATCH: "sys_batch_scheduler_enabled",
    }
    enabled = {}
    for other in fields:
        state = AState()
        config = PreemptionConfig(**{name: kind is other for kind, name in fields.items()})
        configuration = SchedulerConfiguration(preemption_config=config, create_index=WRITE_INDEX)
        state.put(SCHEDULER_CONFIGURATION.build_put(configuration))
        enabled[other] = is_preemption_enabled(state.replica, a_job(type=type))

    assert [other for other, is_enabled in enabled.items() if is_enabled] == [type]


@pytest.mark.parametrize(
    ("fields", "victims"),
    [
        ({}, ["a"]),
        ({"client_status": ClientStatus.COMPLETE}, []),
        ({"desired_status": DesiredStatus.STOP}, []),
        ({"job_id": "shop"}, []),
        ({"namespace": "other"}, []),
    ],
)
def test_only_active_allocations_of_other_existing_jobs_are_preempted(
    fields: dict[str, Any], victims: list[str]
) -> None:
    state = VictimHarness()
    state.add("a", (1_000, 0, 0), **fields)

    assert state.find(500) == victims


def test_a_job_of_the_same_name_in_another_namespace_is_another_job() -> None:
    state = VictimHarness()
    state.put(JOBS.build_put(a_job("shop", namespace="other", priority=10, create_index=WRITE_INDEX)))
    state.add("a", (1_000, 0, 0), job_id="shop", namespace="other")

    assert state.find(500) == ["a"]


@pytest.mark.parametrize(
    ("demand", "victims"),
    [
        ((100, 100, 10_000), []),
        ((101, 100, 10_000), ["cpu"]),
        ((100, 101, 10_000), ["memory"]),
        ((100, 100, 10_001), ["disk"]),
        ((101, 101, 10_001), ["cpu", "disk", "memory"]),
        ((401, 0, 0), ["rest"]),
        ((1_001, 0, 0), []),
    ],
)
def test_the_victims_free_exactly_what_is_missing(demand: tuple[int, int, int], victims: list[str]) -> None:
    state = VictimHarness()
    state.add("cpu", (300, 0, 0))
    state.add("memory", (0, 300, 0))
    state.add("disk", (0, 0, 30_000))
    state.add("rest", (600, 600, 60_000), priority=20)

    assert state.find(*demand) == victims


def test_the_victim_whose_usage_is_nearest_to_what_is_missing_is_chosen() -> None:
    state = VictimHarness()
    for key, amounts in (
        ("tiny", (50, 0, 0)),
        ("near", (310, 10, 0)),
        ("far", (600, 10, 0)),
        ("memory", (40, 900, 0)),
    ):
        state.add(key, amounts)

    assert state.find(300) == ["near"]
    assert state.find(590) == ["far"]
    assert state.find(0, 500) == ["memory"]
    assert state.find(300, 500) == ["memory", "near"]
    # Relative to the needed amounts, a CPU that misses half counts as much as a memory that misses half.
    assert state.find(45) == ["tiny"]


def test_low_priorities_are_preempted_first_and_victims_that_became_needless_are_spared() -> None:
    state = VictimHarness()
    state.add("low", (200, 0, 0), 10)
    state.add("middle", (300, 0, 0), 20)
    state.add("high", (500, 0, 0), 30)

    assert [state.find(cpu) for cpu in (200, 201, 500, 501, 1_000)] == [
        ["low"],
        ["middle"],
        ["low", "middle"],
        ["high", "middle"],
        ["high", "low", "middle"],
    ]


def test_the_node_with_the_lowest_highest_priority_and_then_the_fewest_victims_is_chosen() -> None:
    state = VictimHarness()
    state.add("a", (1_000, 0, 0), 30, "n1")
    state.add("b1", (500, 0, 0), 20, "n2")
    state.add("b2", (500, 0, 0), 20, "n2")
    state.add("c", (1_000, 0, 0), 20, "n3")

    assert [state.find(1_000, rows=rows) for rows in ((0, 1, 2), (0, 1), (0,), (2, 1), (1, 2), ())] == [
        ["c"],
        ["b1", "b2"],
        ["a"],
        ["c"],
        ["c"],
        [],
    ]


def test_of_equal_costs_the_first_node_is_chosen_and_a_node_that_becomes_free_needs_no_victim() -> None:
    state = VictimHarness()
    for number in (1, 2):
        state.add(f"v{number}", (1_000, 0, 0), 20, f"n{number}")
    state.add("stopping", (1_000, 0, 0), 20, "n3", desired_status=DesiredStatus.STOP)

    assert [state.find(500, rows=rows) for rows in ((0, 1), (1, 0), (0, 2), (2, 0))] == [["v1"], ["v2"], [], []]


def test_a_later_placement_does_not_count_on_what_earlier_ones_were_promised() -> None:
    state = VictimHarness()
    for number in range(4):
        state.add(f"v{number}", (250, 0, 0), 10 + number)
    search = state.make_search()

    found = [state.find(cpu, search=search) for cpu in (200, 50, 10, 700)]

    # The second placement uses the rest of what the first victim frees, the third needs another victim.
    assert found == [["v0"], [], ["v1"], ["v2", "v3"]]
    assert state.find(100, search=search) == []


def test_a_group_loses_more_than_max_parallel_only_if_nothing_else_helps() -> None:
    state = VictimHarness()
    state.add_job("guarded", 10, max_parallel=1)
    for key in ("g1", "g2", "g3"):
        state.add(key, (300, 0, 0), job_id="guarded")
    state.add("other", (100, 0, 0))

    assert len(state.find(300)) == 1
    assert "other" in state.find(400)
    assert len(state.find(900)) == 3
    search = state.make_search()
    first = state.find(250, search=search)
    assert len(first) == 1
    assert state.find(60, search=search) == ["other"]


def test_an_evaluation_preempts_a_limited_number_of_allocations_on_a_limited_number_of_nodes() -> None:
    state = VictimHarness(nodes=2)
    for number in range(40):
        state.add(f"v{number:02}", (25, 0, 0), node_id="n1", job_id="many")
    state.add("single", (1_000, 0, 0), 20, "n2")
    search = state.make_search()

    assert len(state.find(25 * MAX_VICTIMS)) == MAX_VICTIMS
    assert state.find(25 * MAX_VICTIMS + 1) == []
    assert state.find(25 * MAX_VICTIMS + 1, rows=(0, 1)) == ["single"]
    assert state.find(1_000, rows=(*[0] * (MAX_SCANNED_NODES - 1), 1)) == ["single"]
    assert state.find(1_000, rows=(*[0] * MAX_SCANNED_NODES, 1)) == []
    assert len(state.find(25 * (MAX_VICTIMS - 1), search=search)) == MAX_VICTIMS - 1
    assert (len(state.find(25, search=search)), state.find(25, search=search)) == (1, [])


def test_a_job_that_was_deleted_or_changed_meanwhile_is_judged_by_its_current_priority() -> None:
    state = VictimHarness()
    state.add("a", (1_000, 0, 0), 10, job_version=3)
    first = state.find(500)
    state.put(JOBS.build_put(replace(state.job("job-a"), priority=75)))

    assert (first, state.find(500)) == (["a"], [])

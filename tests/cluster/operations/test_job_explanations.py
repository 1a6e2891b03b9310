"""Explanations of jobs: what they wait for, and what would help (issue: explain)."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import (
    a_batch_job,
    a_constraint,
    a_group,
    a_job,
    a_parameterized_job,
    a_periodic_job,
    a_system_job,
    a_task,
    some_resources,
)
from tests.kit.state import SECOND_NS, SETTINGS, AState, an_evaluation
from wharf.cluster.operations.evaluations import reserve_node
from wharf.cluster.operations.explanations.jobs import explain_job, list_unexplained_jobs
from wharf.cluster.operations.explanations.text import format_time
from wharf.cluster.operations.jobs.dispatch import DispatchRequest, dispatch_job
from wharf.cluster.scheduling.capacity.quotas import RemainingQuota
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    HOST_VOLUMES,
    JOB_VERSIONS,
    JOBS,
    NODES,
    PERIODIC_LAUNCHES,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus, EvaluationTrigger
from wharf.contract.model.explanations import GroupExplanation, JobExplanation, WaitReason
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.job import Job, JobStatus, JobType, Parameterized, Periodic
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.periodic import find_next_launch
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import (
    DrainStrategy,
    DriverInfo,
    NodeHostVolume,
    NodeStatus,
    SchedulingEligibility,
    set_drain_strategy,
)
from wharf.contract.model.nodes.resources import DeviceInstance, NodeCpu, NodeDevice
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.quotas import RegionLimit
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import to_datetime
from wharf.contract.model.volumes import HostVolume, HostVolumeCapability, HostVolumeState


def make_sized_job(cpu: int = 100, memory_mb: int = 64, count: int = 1, **fields: Any) -> Job:
    resources = some_resources(cpu=cpu, memory_mb=memory_mb)
    return a_job("shop", a_group("web", a_task(driver="mock", resources=resources), count=count, **fields))


def make_fleet(*memory_mb: int, **fields: Any) -> AState:
    state = AState()
    for number, each in enumerate(memory_mb, start=1):
        state.with_node(f"node-{number}", memory_mb=each, **fields)
    return state


def process_evaluations(state: AState, job_id: str = "shop") -> None:
    """Process every pending evaluation of the job, as the leader does."""
    while waiting := [
        e for e in state.evaluations(job_id) if e.status is EvaluationStatus.PENDING and not e.wait_until
    ]:
        plan: Plan | None = state.plan(waiting[0])
        while plan is not None:
            checked = check_plan(plan, state.replica, max_changes=200)
            if checked.write is None:
                break
            state.put_led(*checked.write.changes)
            plan = checked.remaining_plan


def explain_registered_job(state: AState, job: Job) -> JobExplanation:
    """Register the job, process its evaluations and return its explanation."""
    state.register(job)
    process_evaluations(state, job.id)
    return explain_job(state.replica, "default", job.id)


def get_web_group(result: JobExplanation) -> GroupExplanation:
    (group,) = [each for each in result.groups if each.group == "web"]
    return group


def get_exclusions(result: JobExplanation) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {each.rule: (each.nodes, each.examples) for each in get_web_group(result).excluded}


def list_wait_reasons(state: AState, job_id: str = "shop") -> list[WaitReason]:
    return [each.waits_for for each in explain_job(state.replica, "default", job_id).waits]


# -- the smallest change


def test_a_memory_shortage_on_small_nodes_is_explained_with_the_possible_request_and_the_size_of_a_node() -> None:
    result = explain_registered_job(make_fleet(3_500, 3_500, 3_500), make_sized_job(memory_mb=4_096))

    assert get_web_group(result).smallest_change == (
        "lower MemoryMB of web/server from 4096 to 3500, or add a node with at least 4096 MB of memory"
    )


def test_freeing_resources_is_suggested_only_on_nodes_that_are_large_enough() -> None:
    state = make_fleet(1_000, 3_000)
    explain_registered_job(state, replace(make_sized_job(memory_mb=2_500), id="first", name="first"))

    result = explain_registered_job(state, make_sized_job(memory_mb=2_000))

    assert get_web_group(result).smallest_change == (
        "lower MemoryMB of web/server from 2000 to 1000, or free 1500 MB on node-2"
    )


def test_the_summary_names_the_job_the_reason_and_the_remedy() -> None:
    result = explain_registered_job(make_fleet(3_500, 3_500, 3_500), make_sized_job(memory_mb=4_096))

    assert result.text == (
        "shop waits for resources: web lacks 1 allocation: none of 3 nodes can run one (3 have too little memory); "
        "lower MemoryMB of web/server from 4096 to 3500, or add a node with at least 4096 MB of memory"
    )


def test_the_remedy_is_for_the_node_with_the_smallest_shortage() -> None:
    result = explain_registered_job(make_fleet(1_000, 3_000), make_sized_job(memory_mb=4_000))

    assert (
        get_web_group(result).smallest_change
        == "lower MemoryMB of web/server from 4000 to 3000, or add a node with at least 4000 MB of memory"
    )
    assert [(each.dimension, each.nodes, each.missing, each.unit) for each in get_web_group(result).exhausted] == [
        ("memory", 2, 1_000, "MB")
    ]


def test_the_remedy_says_that_it_is_for_one_of_several_allocations() -> None:
    result = explain_registered_job(make_fleet(3_500), make_sized_job(memory_mb=4_096, count=3))

    assert get_web_group(result).smallest_change == (
        "for one more allocation: lower MemoryMB of web/server from 4096 to 3500, or add a node with at least 4096 MB of memory"
    )


def test_a_remedy_that_names_the_nodes_is_not_limited_to_one_allocation() -> None:
    job = make_sized_job(count=3, constraints=(a_constraint("${node.class}", "gpu"),))

    result = explain_registered_job(make_fleet(3_500), job)

    assert get_web_group(result).smallest_change.startswith("drop the constraint ${node.class} = gpu")


def test_two_shortages_are_both_explained() -> None:
    result = explain_registered_job(make_fleet(1_000), make_sized_job(cpu=3_000, memory_mb=1_500))

    assert get_web_group(result).smallest_change == (
        "lower CPU of web/server from 3000 to 1000 and MemoryMB of web/server from 1500 to 1000, "
        "or add a node with at least 3000 MHz of CPU and 1500 MB of memory"
    )


@pytest.mark.parametrize(("cpu", "memory_mb"), [(100, 4_096), (3_000, 64), (5_000, 4_096)])
def test_the_proposed_smallest_change_leads_to_a_placement(cpu: int, memory_mb: int) -> None:
    state = make_fleet(3_500)
    result = get_web_group(explain_registered_job(state, make_sized_job(cpu=cpu, memory_mb=memory_mb)))
    lowered = {
        words.split()[0]: int(words.split()[-1])
        for words in result.smallest_change.partition(", or ")[0].removeprefix("lower ").split(" and ")
    }

    state.register(make_sized_job(cpu=lowered.get("CPU", cpu), memory_mb=lowered.get("MemoryMB", memory_mb)))
    process_evaluations(state)

    assert get_web_group(explain_job(state.replica, "default", "shop")).starting == 1


def test_the_constraint_that_prevents_placement_is_named_with_the_number_of_excluded_nodes() -> None:
    windows = Constraint(l_target="${attr.kernel.name}", r_target="windows", operand="=")
    result = explain_registered_job(make_fleet(1_000, 1_000), make_sized_job(constraints=(windows,)))

    assert get_exclusions(result) == {str(windows): (2, ("node-1", "node-2"))}
    assert (
        get_web_group(result).smallest_change
        == f"drop the constraint {windows}: 2 nodes could then take the allocation"
    )


@pytest.mark.parametrize("place", ["job", "group", "task"])
def test_a_constraint_is_suggested_to_be_dropped_wherever_it_is(place: str) -> None:
    windows = Constraint(l_target="${attr.kernel.name}", r_target="windows", operand="=")
    spread_out = () if place == "task" else (Constraint(operand="distinct_hosts"),)
    fields: dict[str, Any] = {
        each: {"constraints": (*spread_out, windows)} if each == place else {} for each in ("job", "group", "task")
    }
    tasks = (a_task("plain", driver="mock"), a_task("other", driver="mock", **fields["task"]))

    result = explain_registered_job(
        make_fleet(1_000, 1_000), a_job("shop", a_group("web", *tasks, **fields["group"]), **fields["job"])
    )

    expected = f"drop the constraint {windows}: 2 nodes could then take the allocation"
    assert get_web_group(result).smallest_change == expected


@pytest.mark.parametrize("place", ["job", "group", "task"])
def test_all_unmet_constraints_are_named_and_suggested_to_be_dropped_together(place: str) -> None:
    windows, plan9, linux = (
        Constraint(l_target="${attr.kernel.name}", r_target=name, operand="=") for name in ("windows", "plan9", "linux")
    )
    fields: dict[str, Any] = {
        each: {"constraints": (windows, linux, plan9)} if each == place else {} for each in ("job", "group", "task")
    }
    task = a_task("server", driver="mock", **fields["task"])
    state = make_fleet(1_000, attributes={"kernel.name": "linux", "driver.mock": "1"})

    result = explain_registered_job(state, a_job("shop", a_group("web", task, **fields["group"]), **fields["job"]))

    assert get_exclusions(result) == {str(windows): (1, ("node-1",)), str(plan9): (1, ("node-1",))}
    assert (
        get_web_group(result).smallest_change
        == f"drop the constraints {windows} and {plan9}: 1 node could then take the allocation"
    )


def test_a_missing_driver_is_named_beside_an_unmet_constraint() -> None:
    windows = Constraint(l_target="${attr.kernel.name}", r_target="windows", operand="=")
    job = a_job("shop", a_group("web", a_task(driver="qemu"), constraints=(windows,)))

    result = explain_registered_job(make_fleet(1_000), job)

    assert [each.rule for each in get_web_group(result).excluded] == [str(windows), "missing drivers"]
    assert get_web_group(result).smallest_change.startswith("no node has the driver qemu")


def test_unmet_constraints_on_a_node_without_enough_resources_are_named_together() -> None:
    windows = Constraint(l_target="${attr.kernel.name}", r_target="windows", operand="=")

    result = explain_registered_job(make_fleet(1_000), make_sized_job(memory_mb=4_096, constraints=(windows,)))

    assert get_web_group(result).smallest_change == (
        f"add a node that meets {windows} and has enough free resources, or change this constraint"
    )


def test_a_used_port_is_explained_by_the_port_if_a_constraint_is_met() -> None:
    linux = Constraint(l_target="${attr.kernel.name}", r_target="linux", operand="=")
    network = NetworkResource(reserved_ports=(Port(label="http", value=8080),))
    state = make_fleet(4_000, attributes={"kernel.name": "linux", "driver.mock": "1"})

    result = explain_registered_job(state, make_sized_job(count=2, networks=(network,), constraints=(linux,)))

    assert get_web_group(result).smallest_change == (
        "free the port 8080 on node-1, request another or a dynamic port, or add a node"
    )


def test_a_driver_that_no_node_has_is_explained_with_the_available_ones() -> None:
    result = explain_registered_job(make_fleet(1_000), a_job("shop", a_group("web", a_task(driver="qemu"))))

    assert get_web_group(result).smallest_change.startswith("no node has the driver qemu; available: ")


def test_a_driver_that_nodes_lack_is_explained_with_the_reasons_of_the_nodes() -> None:
    state = AState()
    absent = DriverInfo(detected=False, health_description="no container engine at /run/docker.sock")
    broken = DriverInfo(detected=True, health_description="the engine does not answer")
    for number, drivers in enumerate(({"docker": absent}, {"docker": absent}, {"docker": broken}, {}), start=1):
        state.with_node(f"node-{number}", drivers=drivers, attributes={"kernel.name": "linux"})

    result = explain_registered_job(
        state, a_job("shop", a_group("web", a_task(driver="docker", config={"image": "x"})))
    )

    reasons = (
        "driver docker: missing on 2 of 4 nodes (not installed: no container engine at /run/docker.sock); "
        "driver docker: unhealthy on 1 of 4 nodes (the engine does not answer); "
        "driver docker: missing on 1 of 4 nodes (the node knows no driver of this name)"
    )
    assert [each.text for each in get_web_group(result).excluded] == [reasons]
    assert result.text.startswith(
        f"shop waits for a suitable node: web lacks 1 allocation: none of 4 nodes can run one ({reasons})"
    )


def test_a_single_node_is_described_in_the_singular() -> None:
    result = explain_registered_job(make_fleet(1_000), make_sized_job(cpu=900_000))

    assert result.text.startswith(
        "shop waits for resources: web lacks 1 allocation: the only node cannot run one (1 ha"
    )


def test_a_driver_with_a_dissimilar_name_is_not_suggested() -> None:
    result = explain_registered_job(make_fleet(1_000), a_job("shop", a_group("web", a_task(driver="rocket"))))

    assert get_web_group(result).smallest_change.startswith("no node has the driver rocket; available: ")


def test_a_missing_volume_is_named() -> None:
    group = replace(a_group("web", a_task(driver="mock")), volumes={"d": VolumeRequest(type="host", source="data")})

    result = explain_registered_job(make_fleet(1_000), a_job("shop", group))

    assert get_web_group(result).smallest_change == (
        "create the volume data, with the access that the job requests, on node-1: use `wharf volume create`"
    )


@pytest.mark.parametrize(
    ("request_fields", "change", "access"),
    [
        (
            {"read_only": True},
            "remove ReadOnly of the request and set it in VolumeMounts",
            "single-node-reader-only",
        ),
        (
            {"access_mode": "single-node-multi-writer"},
            "change AccessMode of the request",
            "single-node-multi-writer",
        ),
    ],
)
def test_a_volume_without_the_requested_access_is_named_with_the_access_that_it_offers(
    request_fields: dict[str, Any], change: str, access: str
) -> None:
    on_node = NodeHostVolume(name="data", path="/srv", id="v1")
    state = make_fleet(1_000, host_volumes={"data": on_node})
    volume = HostVolume(
        id="v1",
        name="data",
        node_id="node-1",
        state=HostVolumeState.READY,
        requested_capabilities=(HostVolumeCapability(),),
        create_index=WRITE_INDEX,
    )
    state.put(HOST_VOLUMES.build_put(volume))
    request = VolumeRequest(type="host", source="data", **request_fields)
    group = replace(a_group("web", a_task(driver="mock")), volumes={"d": request})

    result = explain_registered_job(state, a_job("shop", group))

    assert get_web_group(result).smallest_change == (
        f"{change}: the volume data of node-1 offers single-node-writer, not {access}"
    )


def test_a_misspelled_driver_is_explained_with_a_suggestion() -> None:
    result = explain_registered_job(make_fleet(1_000), a_job("shop", a_group("web", a_task(driver="mokc"))))

    assert get_web_group(result).smallest_change == "no node has the driver mokc: did you mean mock?"


def test_if_no_node_is_eligible_the_remedy_is_to_make_one_eligible() -> None:
    state = make_fleet(1_000, scheduling_eligibility=SchedulingEligibility.INELIGIBLE)
    result = explain_registered_job(state, make_sized_job())

    assert get_exclusions(result) == {"node is ineligible": (1, ("node-1",))}
    assert (
        get_web_group(result).smallest_change
        == "let node-1 take allocations again: it is ineligible, and `wharf node eligibility --enable node-1` ends that"
    )


def test_a_returned_node_that_has_not_reported_its_allocations_is_named() -> None:
    state = make_fleet(1_000, last_missed_heartbeat_index=5)
    state.put(NODES.build_put(replace(state.node(), status=NodeStatus.INITIALIZING)))
    result = explain_registered_job(state, make_sized_job())

    assert get_exclusions(result) == {"node has returned but not reported its allocations yet": (1, ("node-1",))}
    assert get_web_group(result).smallest_change == "wait until node-1 has reported its allocations"


def test_if_no_node_exists_the_remedy_is_to_add_one() -> None:
    assert (
        get_web_group(explain_registered_job(AState(), make_sized_job())).smallest_change
        == "add a node: the cluster has none"
    )


def test_an_empty_datacenter_is_explained_with_the_existing_ones() -> None:
    result = explain_registered_job(make_fleet(1_000), replace(make_sized_job(), datacenters=("mars",)))

    assert get_exclusions(result) == {"datacenter dc1 is not in the job's list": (1, ("node-1",))}
    assert get_web_group(result).smallest_change == "set a datacenter that has nodes of the job's pool: dc1"


def test_distinct_hosts_need_more_nodes_or_a_lower_count() -> None:
    distinct = Constraint(operand="distinct_hosts", r_target="true")
    result = explain_registered_job(make_fleet(1_000), make_sized_job(count=2, constraints=(distinct,)))

    assert get_exclusions(result) == {"distinct_hosts": (1, ("node-1",))}
    assert get_web_group(result).smallest_change == "add a node that distinct_hosts allows, or lower the count of web"


def test_an_occupied_port_must_be_freed() -> None:
    network = NetworkResource(mode="host", reserved_ports=(Port(label="http", value=8_080),))
    result = explain_registered_job(make_fleet(1_000), make_sized_job(count=2, networks=(network,)))

    assert get_web_group(result).unplaced == 1
    assert get_web_group(result).smallest_change == (
        "free the port 8080 on node-1, request another or a dynamic port, or add a node"
    )


def make_gpu_job(count: int) -> Job:
    resources = some_resources(devices=(RequestedDevice(name="acme/gpu", count=count),))
    return a_job("shop", a_group("web", a_task(driver="mock", resources=resources)))


def add_gpu(state: AState) -> AState:
    gpu = NodeDevice(vendor="acme", type="gpu", name="x1", instances=(DeviceInstance(id="one", healthy=True),))
    node = state.node()
    assert node.node_resources is not None
    state.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, devices=(gpu,)))))
    return state


def test_a_missing_device_is_named_and_a_lower_count_is_suggested_if_it_helps() -> None:
    without_devices, with_few = (
        explain_registered_job(make_fleet(1_000), make_gpu_job(2)),
        explain_registered_job(add_gpu(make_fleet(1_000)), make_gpu_job(2)),
    )

    assert (get_web_group(without_devices).smallest_change, get_web_group(with_few).smallest_change) == (
        "no node has a healthy device acme/gpu that satisfies the request; no devices are available",
        "lower the Count of acme/gpu of web/server from 2 to 1: no node has more",
    )


def test_devices_in_use_must_be_freed() -> None:
    state = add_gpu(make_fleet(1_000))
    explain_registered_job(state, replace(make_gpu_job(1), id="other"))

    assert get_web_group(explain_registered_job(state, make_gpu_job(1))).smallest_change == (
        "free devices acme/gpu on node-1, or add a node"
    )


def test_a_missing_network_is_named_by_mode_or_name() -> None:
    mode = NetworkResource(mode="cni/blue")
    port = NetworkResource(mode="host", dynamic_ports=(Port(label="http", host_network="public"),))

    assert [
        get_web_group(explain_registered_job(make_fleet(1_000), make_sized_job(networks=(each,)))).smallest_change
        for each in (mode, port)
    ] == [
        "no node has a network with mode cni/blue; available: host, none",
        "use a host network that nodes have: default",
    ]


def test_a_core_shortage_is_explained_with_the_possible_request() -> None:
    state = make_fleet(1_000)
    node = state.node()
    assert node.node_resources is not None
    cpu = NodeCpu(cpu_shares=4_000, total_cpu_cores=4, reservable_cpu_cores=(0, 1, 2, 3))
    state.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, cpu=cpu))))

    def explain_core_shortage(cores: int, job_id: str) -> Job:
        task = a_task(driver="mock", resources=some_resources(cpu=0, cores=cores))
        return replace(a_job("shop", a_group("web", task)), id=job_id)

    explain_registered_job(state, explain_core_shortage(3, "other"))
    result = explain_registered_job(state, explain_core_shortage(2, "shop"))
    too_many = explain_registered_job(make_fleet(1_000), explain_core_shortage(2, "shop"))

    assert get_web_group(result).text == (
        "web lacks 1 allocation: the only node cannot run one (1 has too few cores); "
        "lower Cores of web/server from 2 to 1, or free 1 core on node-1"
    )
    assert get_web_group(too_many).smallest_change == (
        "request CPU instead of Cores: no node has cores that can be reserved for a task"
    )


def add_reservable_cores(state: AState, count: int) -> AState:
    """Give the only node this many cores of 1,000 MHz that can be reserved."""
    node = state.node()
    assert node.node_resources is not None
    cpu = NodeCpu(cpu_shares=count * 1_000, total_cpu_cores=count, reservable_cpu_cores=tuple(range(count)))
    state.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, cpu=cpu))))
    return state


def make_core_job(cores: int, memory_mb: int) -> Job:
    resources = some_resources(cpu=0, cores=cores, memory_mb=memory_mb)
    return a_job("shop", a_group("web", a_task(driver="mock", resources=resources)))


def test_a_shortage_of_cores_and_memory_is_explained_with_a_request_that_lowers_both() -> None:
    state = add_reservable_cores(make_fleet(1_000), 4)

    assert get_web_group(explain_registered_job(state, make_core_job(64, memory_mb=5_000))).smallest_change == (
        "lower Cores of web/server from 64 to 4 and MemoryMB of web/server from 5000 to 1000, or add a node with at "
        "least 64 cores and 5000 MB of memory"
    )


def test_cores_whose_speed_is_used_by_other_tasks_are_not_suggested() -> None:
    state = add_reservable_cores(make_fleet(1_000), 4)
    explain_registered_job(state, replace(make_sized_job(cpu=50), id="other"))
    explain_registered_job(state, replace(make_core_job(1, memory_mb=10), id="third"))

    assert get_web_group(explain_registered_job(state, make_core_job(4, memory_mb=10))).smallest_change == (
        "lower Cores of web/server from 4 to 2, or free 1 core on node-1"
    )


@pytest.mark.parametrize("used_cpu", [0, 1_500, 2_000])
def test_more_cores_than_any_node_has_get_the_same_advice_on_empty_and_busy_nodes(used_cpu: int) -> None:
    state = add_reservable_cores(make_fleet(1_000), 2)
    if used_cpu:
        explain_registered_job(state, replace(make_sized_job(cpu=used_cpu), id="other"))

    assert get_web_group(explain_registered_job(state, make_core_job(64, memory_mb=10))).smallest_change == (
        "lower Cores of web/server from 64 to 2, or add a node with at least 64 cores and 10 MB of memory"
    )


@pytest.mark.parametrize("used_mb", [0, 900])
def test_more_memory_than_any_node_has_gets_the_same_advice_on_empty_and_busy_nodes(used_mb: int) -> None:
    state = make_fleet(1_000)
    if used_mb:
        explain_registered_job(state, replace(make_sized_job(memory_mb=used_mb), id="other"))

    assert get_web_group(explain_registered_job(state, make_sized_job(memory_mb=5_000))).smallest_change == (
        "lower MemoryMB of web/server from 5000 to 1000, or add a node with at least 5000 MB of memory"
    )


def test_a_job_that_needs_more_than_its_whole_quota_can_never_run() -> None:
    state = make_fleet(1_000)
    (reason,) = RemainingQuota("small", RegionLimit(memory_mb=50), {}).list_exceeded_limits({"memory_mb": 100})
    state.register(make_sized_job())
    state.end_evaluations(
        status=EvaluationStatus.BLOCKED,
        quota_limit_reached="small",
        failed_tg_allocs={"web": AllocMetric(quota_exhausted=(reason,))},
    )

    assert explain_job(state.replica, "default", "shop").text == (
        'shop cannot run with the quota "small": web: memory exhausted (100 needed > 50 limit: can never run, more than '
        "the whole quota); request less, or raise the quota small"
    )


def test_distinct_properties_are_explained_with_the_exhausted_value() -> None:
    distinct = Constraint(l_target="${node.datacenter}", operand="distinct_property", r_target="1")

    assert get_web_group(
        explain_registered_job(make_fleet(1_000), make_sized_job(count=2, constraints=(distinct,)))
    ).smallest_change == (
        "add a node whose ${node.datacenter} is not dc1, raise the limit of distinct_property, or lower the count of web"
    )


def test_only_nodes_without_an_allocation_are_explained_for_a_system_job() -> None:
    state = make_fleet(3_500, 1_000, 1_000, 1_000)
    resources = some_resources(cpu=100, memory_mb=2_000)
    result = explain_registered_job(
        state, a_system_job("shop", a_group("web", a_task(driver="mock", resources=resources)))
    )

    web = get_web_group(result)
    assert (web.wanted, web.starting, web.unplaced, web.nodes) == (4, 1, 3, 3)
    assert result.waits[0].text == (
        "waits for resources: web lacks 3 allocations: none of the other 3 nodes can run one "
        "(3 have too little memory); lower MemoryMB of web/server from 2000 to 1000"
    )


def test_a_system_job_that_runs_everywhere_desires_one_allocation_per_node() -> None:
    web = get_web_group(
        explain_registered_job(make_fleet(1_000, 1_000), a_system_job("shop", a_group("web", a_task(driver="mock"))))
    )

    assert (web.wanted, web.starting, web.unplaced) == (2, 2, 0)


def test_a_completed_sysbatch_job_desired_as_many_allocations_as_ended() -> None:
    state = make_fleet(1_000, 1_000)
    explain_registered_job(state, a_job("shop", a_group("web", a_task(driver="mock")), type=JobType.SYSBATCH))
    for each in list(state.replica.iter_all(ALLOCATIONS)):
        state.with_client_status(each.id, ClientStatus.COMPLETE)

    result = explain_job(state.replica, "default", "shop")

    assert (result.text, get_web_group(result).wanted) == ("shop is done: 2 allocations completed", 2)


# -- reasons to wait


def test_a_job_that_was_not_evaluated_yet_has_a_queue_position() -> None:
    state = make_fleet(1_000)
    state.register(replace(make_sized_job(), id="other", priority=80))
    state.register(make_sized_job())

    result = explain_job(state.replica, "default", "shop")

    assert (result.queue_place, result.queue_length) == (2, 2)
    assert result.text == "shop waits for its evaluation (job-register): 2 of 2 in the queue"


def test_a_paused_scheduler_is_the_first_reason() -> None:
    state = make_fleet(1_000)
    state.put(SCHEDULER_CONFIGURATION.build_put(SchedulerConfiguration(pause_eval_broker=True)))
    state.register(make_sized_job())

    assert list_wait_reasons(state) == [WaitReason.PAUSED_SCHEDULER, WaitReason.QUEUE]


def test_a_delayed_reschedule_is_explained_with_its_time() -> None:
    state = make_fleet(1_000)
    explain_registered_job(state, make_sized_job())
    at = to_datetime(state.now_ns + 30 * SECOND_NS)
    state.put_led(
        EVALUATIONS.build_put(an_evaluation(state.job(), wait_until=at, triggered_by=EvaluationTrigger.ALLOC_FAILURE))
    )

    texts = [
        each.text for each in explain_job(state.replica, "default", "shop").waits if each.waits_for is WaitReason.DELAY
    ]

    assert texts == [f"waits: failed allocations are rescheduled at {at:%Y-%m-%d %H:%M:%SZ}"]


def test_a_disconnected_allocation_is_not_explained_as_failed() -> None:
    state = make_fleet(1_000)
    explain_registered_job(state, make_sized_job())
    at = to_datetime(state.now_ns + 30 * SECOND_NS)
    (disconnected,) = state.replica.iter_all(ALLOCATIONS)
    state.with_client_status(disconnected.id, ClientStatus.UNKNOWN)
    state.put_led(
        EVALUATIONS.build_put(
            an_evaluation(state.job(), wait_until=at, triggered_by=EvaluationTrigger.ALLOC_RESCHEDULE)
        )
    )

    texts = [
        each.text for each in explain_job(state.replica, "default", "shop").waits if each.waits_for is WaitReason.DELAY
    ]

    assert texts == [f"waits: allocations on disconnected nodes are replaced at {at:%Y-%m-%d %H:%M:%SZ}"]


@pytest.mark.parametrize(
    ("status", "group", "waits_for"),
    [
        (DeploymentStatus.PAUSED, DeploymentGroup(desired_total=1), WaitReason.RESUMPTION),
        (DeploymentStatus.FAILED, DeploymentGroup(desired_total=1), WaitReason.CHANGE),
        (DeploymentStatus.RUNNING, DeploymentGroup(desired_total=1), WaitReason.HEALTH),
        (DeploymentStatus.RUNNING, DeploymentGroup(desired_canaries=1, healthy_allocs=1), WaitReason.PROMOTION),
        (DeploymentStatus.RUNNING, DeploymentGroup(desired_canaries=1), WaitReason.HEALTH),
        (DeploymentStatus.RUNNING, DeploymentGroup(desired_total=1, healthy_allocs=1), WaitReason.NOTHING),
    ],
)
def test_a_running_deployment_is_explained_with_what_it_waits_for(
    status: DeploymentStatus, group: DeploymentGroup, waits_for: WaitReason
) -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job())
    state.end_evaluations()
    job = state.job()
    state.with_allocation(job, client_status=ClientStatus.RUNNING)
    deployment = Deployment(
        id="d1", namespace="default", job_id="shop", job_version=job.version, job_create_index=job.create_index,
        status=status, task_groups={"web": group},
    )  # fmt: skip
    state.put_led(DEPLOYMENTS.build_put(deployment))

    assert list_wait_reasons(state) == [waits_for]


def test_allocations_on_drained_or_disconnected_nodes_are_explained_with_the_node() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job())
    state.end_evaluations()
    state.with_allocation(state.job(), client_status=ClientStatus.RUNNING)

    state.put(NODES.build_put(set_drain_strategy(state.node(), DrainStrategy())))
    assert list_wait_reasons(state) == [WaitReason.DRAIN]
    state.put(NODES.build_put(replace(set_drain_strategy(state.node(), None), status=NodeStatus.DISCONNECTED)))
    assert list_wait_reasons(state) == [WaitReason.NODE]


def test_an_allocation_that_has_not_started_waits_for_its_node() -> None:
    assert [each.waits_for for each in explain_registered_job(make_fleet(1_000), make_sized_job()).waits][
        -1
    ] is WaitReason.TASKS


def test_the_summary_names_a_crash_beside_the_first_reason() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job())
    state.end_evaluations()
    job = state.job()
    ended = TaskEvent(type=TaskEventType.TERMINATED, display_message="Exit Code: 1")
    crashed = TaskState(state=TaskStatus.PENDING, events=(ended, TaskEvent(type=TaskEventType.RESTARTING)))
    state.with_allocation(job, client_status=ClientStatus.PENDING, task_states={"main": crashed})
    deployment = Deployment(
        id="d1", namespace="default", job_id="shop", job_version=job.version, job_create_index=job.create_index,
        status=DeploymentStatus.RUNNING, task_groups={"web": DeploymentGroup(desired_total=1)},
    )  # fmt: skip
    state.put_led(DEPLOYMENTS.build_put(deployment))

    assert (
        ", and has 1 allocation waiting to be restarted (shop.web[0], main: Exit Code: 1)"
        in explain_job(state.replica, "default", "shop").text
    )


def test_a_complete_job_is_explained_as_running_as_requested() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job())
    state.end_evaluations()
    state.with_allocation(state.job(), client_status=ClientStatus.RUNNING)

    result = explain_job(state.replica, "default", "shop")

    assert (result.text, result.is_explained) == ("shop runs as requested: 1 allocation", True)


def test_a_completed_batch_job_is_explained_as_done() -> None:
    state = make_fleet(1_000)
    state.register(a_batch_job("nightly"))
    state.end_evaluations("nightly")
    state.with_allocation(state.job("nightly"), client_status=ClientStatus.COMPLETE)

    assert explain_job(state.replica, "default", "nightly").text == "nightly is done: 1 allocation completed"


def test_a_stopped_batch_job_is_not_explained_as_done() -> None:
    state = make_fleet(1_000)
    state.register(a_batch_job("nightly"))
    state.end_evaluations("nightly")
    state.with_allocation(
        state.job("nightly"),
        client_status=ClientStatus.COMPLETE,
        desired_status=DesiredStatus.STOP,
        desired_description="alloc is being migrated",
    )

    assert explain_job(state.replica, "default", "nightly").text == (
        "nightly is dead: 1 allocation was stopped before completion (nightly.web[0], alloc is being migrated)"
    )


def test_the_last_failed_evaluation_is_the_reason() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job())
    state.end_evaluations(status=EvaluationStatus.FAILED, status_description="maximum attempts reached (5)")

    result = explain_job(state.replica, "default", "shop")

    assert result.text == "shop does not change, because its last evaluation failed: maximum attempts reached (5)"


def test_a_dead_job_whose_records_were_collected_is_not_explained_by_failures() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job(count=5))
    state.end_evaluations()
    state.put(JOBS.build_put(replace(state.job(), status=JobStatus.DEAD)))

    assert explain_job(state.replica, "default", "shop").text == (
        "shop is dead and lacks 5 allocations: the records of its last attempts were collected; evaluate the job, or "
        "register it again"
    )


def test_parent_jobs_wait_for_their_next_launch_or_a_dispatch() -> None:
    state = make_fleet(1_000)
    state.register(a_periodic_job("nightly"))
    state.register(a_parameterized_job("convert"))

    assert list_wait_reasons(state, "nightly") == [WaitReason.LAUNCH]
    assert list_wait_reasons(state, "convert") == [WaitReason.DISPATCH]


def test_the_next_launch_is_not_in_the_past_whatever_the_clock_was_at_the_last_one() -> None:
    state = make_fleet(1_000)
    state.register(a_periodic_job("nightly", spec="30 * * * *"))
    last_launch = state.replica.get(PERIODIC_LAUNCHES, "default", "nightly")
    assert last_launch is not None

    texts = []
    for years in (-2, 2):
        moved = replace(last_launch, launch=last_launch.launch + datetime.timedelta(days=365 * years))
        state.put(PERIODIC_LAUNCHES.build_put(moved))
        texts.append(explain_job(state.replica, "default", "nightly", now_ns=state.now_ns).text)

    next_launch = find_next_launch(Periodic(specs=("30 * * * *",)), to_datetime(state.now_ns))
    assert next_launch is not None
    assert texts == [f"nightly is launched next at {format_time(next_launch)}"] * 2


def test_unused_schedules_of_a_stored_job_are_named() -> None:
    state = make_fleet(1_000)
    state.register(a_periodic_job("nightly"))
    stored = replace(state.job("nightly"), periodic=Periodic(specs=("0 * * * *",) * 5_000))
    state.put(JOBS.build_put(stored))

    text = explain_job(state.replica, "default", "nightly", now_ns=state.now_ns).text

    assert text.endswith("; only the first 20 of its 5000 cron expressions are used, split the job")


def test_an_exhausted_quota_is_named() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job())
    metric = AllocMetric(quota_exhausted=("memory exhausted (100 needed > 50 limit)",))
    state.end_evaluations(
        status=EvaluationStatus.BLOCKED, quota_limit_reached="small", failed_tg_allocs={"web": metric}
    )

    result = explain_job(state.replica, "default", "shop")

    assert result.text == (
        'shop waits for capacity in the quota "small": web: memory exhausted (100 needed > 50 limit)'
    )
    assert (
        get_web_group(result).text
        == 'web lacks 1 allocation: nodes have free resources, but the quota "small" is used up'
    )


def test_placements_are_explained_with_the_scores_of_their_nodes() -> None:
    result = explain_registered_job(make_fleet(1_000, 2_000), make_sized_job())

    (placement,) = result.placements
    assert placement.nodes_evaluated == 2
    assert placement.scores[0].node_id == placement.node_id


def test_an_unknown_job_cannot_be_explained() -> None:
    with pytest.raises(Refusal, match="job not found"):
        explain_job(AState().replica, "default", "shop")


# -- every job has an explanation


def test_a_job_with_an_unexplained_shortage_is_found() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job())
    state.put(*(EVALUATIONS.build_delete(each.id) for each in state.evaluations()))

    assert [each.partition(":")[0] for each in list_unexplained_jobs(state.replica)] == ["default/shop"]
    assert [job.id for job in state.replica.iter_all(JOBS)] == ["shop"]


def test_every_evaluated_job_has_an_explanation() -> None:
    state = make_fleet(1_000, 1_000)
    for number, job in enumerate(
        (
            make_sized_job(),
            make_sized_job(memory_mb=9_000),
            make_sized_job(count=50),
            make_sized_job(cpu=1),
            a_batch_job(),
            replace(make_sized_job(), node_pool="all"),
        )
    ):
        job = replace(job, id=f"job-{number}")
        state.register(job)
        process_evaluations(state, job.id)

    assert list_unexplained_jobs(state.replica) == []


def test_a_blocked_job_is_explained_with_its_queue_position_if_others_wait_too() -> None:
    state = make_fleet(1_000)
    for job_id in ("first", "second"):
        state.register(replace(make_sized_job(memory_mb=4_096), id=job_id))
        process_evaluations(state, job_id)

    result = explain_job(state.replica, "default", "second")

    assert (result.queue_place, result.queue_length, "it is 2 of 2 in the queue, since" in result.text) == (2, 2, True)


def test_a_job_that_waited_too_long_is_explained_with_its_reserved_node() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job(memory_mb=4_096))
    process_evaluations(state)
    (waiting,) = (each for each in state.evaluations() if each.status is EvaluationStatus.BLOCKED)
    state.commit(reserve_node(state.replica, waiting, "node-1"))

    assert (
        "node node-1 is reserved for it, because it has waited long"
        in explain_job(state.replica, "default", "shop").text
    )


def test_a_constraint_without_a_right_side_has_no_trailing_space() -> None:
    constraint = Constraint(l_target="${attr.gpu}", operand="is_set")

    assert (
        '(1 by "${attr.gpu} is_set")'
        in explain_registered_job(make_fleet(1_000), make_sized_job(constraints=[constraint])).text
    )


def make_children(number: int, *, max_running: int) -> tuple[AState, list[str]]:
    """Create a parent with dispatched children, and process their evaluations."""
    state = make_fleet(1_000)
    state.register(a_batch_job("convert", parameterized_job=Parameterized(max_running=max_running)))
    created = []
    for _ in range(number):
        request = DispatchRequest(namespace="default", job_id="convert")
        created.append(state.lead(dispatch_job(state.replica, request, state.moment, SETTINGS)).job_id)
        process_evaluations(state, created[-1])
    return state, created


def test_a_child_that_waits_for_a_slot_is_explained_with_its_parent_and_a_remedy() -> None:
    state, created = make_children(3, max_running=1)

    assert explain_job(state.replica, "default", created[2]).text == (
        f"{created[2]} waits for a slot of convert: 1 of at most 1 children are running; it is 2 of 2 in the queue; "
        "raise max_running of convert to 3 to start it now"
    )


def test_a_child_with_a_free_slot_needs_no_higher_limit() -> None:
    state, created = make_children(3, max_running=1)
    state.register(a_batch_job("convert", parameterized_job=Parameterized(max_running=2)))

    assert explain_job(state.replica, "default", created[1]).text == (
        f"{created[1]} waits for a slot of convert: 1 of at most 2 children are running; it is 1 of 2 in the queue; "
        "it starts with its next evaluation"
    )


def test_a_parent_is_explained_with_its_children() -> None:
    state, _ = make_children(3, max_running=1)

    assert explain_job(state.replica, "default", "convert").text == (
        "convert waits to be dispatched; its children: 1 running, 2 pending"
    )


def test_a_parent_is_explained_without_groups() -> None:
    state, _ = make_children(1, max_running=1)

    assert explain_job(state.replica, "default", "convert").groups == ()


def test_a_stopped_parent_is_explained_with_its_live_children() -> None:
    state, _ = make_children(2, max_running=1)
    state.put(JOBS.build_put(replace(state.job("convert"), stop=True)))

    assert explain_job(state.replica, "default", "convert").text == (
        "convert is stopped and launches no more children; its children: 1 running, 1 pending"
    )


def test_a_schedule_without_future_times_launches_only_on_request() -> None:
    state = make_fleet(1_000)
    state.register(a_periodic_job("never", spec="0 0 31 2 *"))

    result = explain_job(state.replica, "default", "never")

    assert result.text == "never is launched on request only, because its schedule has no launch time left"
    assert result.is_explained


# -- details of the texts


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (1, "node-1"),
        (3, "node-1, node-2, node-3"),
        (4, "node-1, node-2, node-3 and 1 more nodes"),
        (5, "node-1, node-2, node-3 and 2 more nodes"),
    ],
)
def test_only_the_first_three_draining_nodes_are_named(count: int, names: str) -> None:
    state = make_fleet(*[1_000] * count)
    state.register(make_sized_job(count=count))
    state.end_evaluations()
    for number in range(1, count + 1):
        state.with_allocation(state.job(), f"a{number}", node_id=f"node-{number}", client_status=ClientStatus.RUNNING)
        drained = set_drain_strategy(state.node(f"node-{number}"), DrainStrategy())
        state.put(NODES.build_put(drained))

    waits = explain_job(state.replica, "default", "shop").waits

    allocations = "1 allocation" if count == 1 else f"{count} allocations"
    assert f"has {allocations} on {names} (being drained)" in [wait.text for wait in waits]


def block(state: AState, **fields: Any) -> str:
    """Store a blocked evaluation of `shop` and return the text of what it waits for."""
    state.put(
        EVALUATIONS.build_put(an_evaluation(state.job(), "blocked", **{"status": EvaluationStatus.BLOCKED, **fields}))
    )
    (text,) = [wait.text for wait in explain_job(state.replica, "default", "shop").waits if wait.eval_id == "blocked"]
    return text


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        pytest.param(
            {"triggered_by": EvaluationTrigger.MAX_PLAN_ATTEMPTS}, "had too many conflicts", id="conflicts only"
        ),
        pytest.param(
            {"triggered_by": EvaluationTrigger.MAX_PLAN_ATTEMPTS, "failed_tg_allocs": {"web": AllocMetric()}},
            "waits for resources: web lacks",
            id="conflicts and no resources",
        ),
        pytest.param(
            {"triggered_by": EvaluationTrigger.QUEUED_ALLOCS, "failed_tg_allocs": {"web": AllocMetric()}},
            "waits for resources: web lacks",
            id="no resources",
        ),
        pytest.param(
            {"triggered_by": EvaluationTrigger.QUEUED_ALLOCS},
            "waits for resources: the last scheduling pass found no node",
            id="no group is known",
        ),
    ],
)
def test_a_blocked_evaluation_waits_because_of_conflicts_or_resources(fields: dict[str, Any], start: str) -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job(memory_mb=4_096))
    state.end_evaluations()

    assert block(state, **fields).startswith(start)


def test_only_groups_that_were_not_placed_are_explained_with_their_capacity() -> None:
    state = make_fleet(1_000)
    large = a_task(driver="mock", resources=some_resources(memory_mb=4_096))
    state.register(a_job("shop", a_group("web", large), a_group("api", a_task(driver="mock"))))
    state.end_evaluations()
    block(state, failed_tg_allocs={"web": AllocMetric()})

    texts = {group.group: group.text for group in explain_job(state.replica, "default", "shop").groups}

    assert texts["web"].startswith("web lacks 1 allocation")
    assert texts["api"] == ""


def test_the_missing_allocations_of_each_group_are_counted_without_ended_ones() -> None:
    state = make_fleet(1_000)
    state.register(a_job("shop", a_group("web", count=3), a_group("api", count=2)))
    for allocation_id, group, status in (
        ("a1", "web", ClientStatus.RUNNING),
        ("a2", "web", ClientStatus.FAILED),
        ("a3", "web", ClientStatus.COMPLETE),
        ("a4", "api", ClientStatus.PENDING),
    ):
        state.with_allocation(state.job(), allocation_id, task_group=group, client_status=status)

    groups = explain_job(state.replica, "default", "shop").groups

    assert [(group.group, group.wanted, group.running, group.starting, group.unplaced) for group in groups] == [
        ("web", 3, 1, 0, 2),
        ("api", 2, 0, 1, 1),
    ]


def test_a_job_that_waits_for_nothing_has_no_queue_position() -> None:
    state = make_fleet(1_000)
    result = explain_registered_job(state, make_sized_job())

    assert (result.queue_place, result.queue_length) == (0, 0)


def test_every_blocked_evaluation_of_a_job_is_explained() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job(memory_mb=4_096))
    state.end_evaluations()
    for evaluation_id, fields in (
        ("slot", {"waits_behind": "parent"}),
        ("quota", {"quota_limit_reached": "small"}),
        ("resources", {}),
    ):
        evaluation = an_evaluation(state.job(), evaluation_id, status=EvaluationStatus.BLOCKED, **fields)
        state.put(EVALUATIONS.build_put(evaluation))

    waits = explain_job(state.replica, "default", "shop").waits

    assert {wait.eval_id: wait.waits_for for wait in waits} == {
        "slot": WaitReason.SCHEDULING_SLOT,
        "quota": WaitReason.QUOTA,
        "resources": WaitReason.CAPACITY,
    }


def test_completed_allocations_of_a_batch_group_and_running_canaries_of_a_service_are_counted_apart() -> None:
    state = AState()
    state.register(a_batch_job("nightly"))
    state.with_allocation(state.job("nightly"), "done", client_status=ClientStatus.COMPLETE)
    state.register(a_job("shop"))
    canary = AllocDeploymentStatus(canary=True)
    state.with_allocation(state.job("shop"), "a1", client_status=ClientStatus.RUNNING)
    state.with_allocation(state.job("shop"), "c1", client_status=ClientStatus.RUNNING, deployment_status=canary)

    (batch,) = explain_job(state.replica, "default", "nightly").groups
    (service,) = explain_job(state.replica, "default", "shop").groups

    assert (batch.running, batch.complete, batch.canaries) == (0, 1, 0)
    assert (service.running, service.complete, service.canaries) == (2, 0, 1)


def test_a_batch_job_whose_new_version_failed_is_not_done_because_an_earlier_version_completed() -> None:
    state = AState()
    state.with_node()
    state.register(a_batch_job("shop"))
    state.with_allocation(state.job(), "a1", client_status=ClientStatus.COMPLETE)
    state.register(replace(state.job(), meta={"version": "1"}))
    ended = TaskEvent(type=TaskEventType.TERMINATED, display_message="Exit Code: 3")
    failed = TaskState(state=TaskStatus.DEAD, failed=True, events=(ended,))
    state.with_allocation(state.job(), "a2", client_status=ClientStatus.FAILED, task_states={"server": failed})
    state.end_evaluations()

    result = explain_job(state.replica, "default", "shop")

    assert result.text == (
        "shop has failed, and its policies allow no further attempt (shop.web[0], server: Exit Code: 3); "
        "correct the job and submit it with `wharf job run FILE`"
    )
    assert (get_web_group(result).complete, get_web_group(result).unplaced) == (0, 1)


# -- nodes that an operator has closed


def make_pinned_job(node: str) -> Job:
    job = make_sized_job()
    return replace(job, constraints=(Constraint(l_target="${node.unique.name}", operand="=", r_target=node),))


@pytest.mark.parametrize(
    ("close", "state_text", "command"),
    [
        ({"scheduling_eligibility": SchedulingEligibility.INELIGIBLE}, "ineligible", "wharf node eligibility --enable node-2"),
        (
            {
                "drain_strategy": DrainStrategy(),
                "drain": True,
                "scheduling_eligibility": SchedulingEligibility.INELIGIBLE,
            },
            "draining",
            "wharf node drain --disable node-2",
        ),
    ],
)  # fmt: skip
def test_a_job_that_fits_only_a_closed_node_is_advised_to_let_it_take_allocations_again(
    close: dict[str, Any], state_text: str, command: str
) -> None:
    state = make_fleet(1_000, 1_000)
    state.put(NODES.build_put(replace(state.node("node-2"), **close)))

    result = explain_registered_job(state, make_pinned_job("node-2"))

    (wait,) = result.waits
    assert get_web_group(result).smallest_change.startswith(
        f"let node-2 take allocations again: it is {state_text}, and `{command}` ends that, or drop the constraint"
    )
    assert f"1 other node is left out: node is {state_text} (node-2)" in wait.text
    assert wait.advice == (get_web_group(result).smallest_change,)


def test_nodes_that_are_left_out_are_not_counted_among_those_that_lack_resources() -> None:
    state = make_fleet(1_000, 1_000, 500)
    state.put(NODES.build_put(replace(state.node("node-3"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))

    result = explain_registered_job(state, make_sized_job(memory_mb=2_000))

    assert (
        "none of 2 nodes can run one (2 have too little memory); 1 other node is left out: node is ineligible (node-3)"
    ) in result.text
    assert "again" not in result.text  # It is too small as well.


# -- the cause of a failed rollout


def fail_rollout(*, is_stable: bool, crashes: bool = True, **evaluation: Any) -> JobExplanation:
    """Return the explanation of a service whose version 1 failed. `evaluation` are fields of its last evaluation."""
    state = AState()
    state.with_node()
    state.register(a_job("shop", a_group("web")))
    state.put(JOB_VERSIONS.build_put(replace(state.job(), stable=is_stable)))
    state.register(replace(state.job(), meta={"version": "1"}))
    ended = TaskEvent(type=TaskEventType.TERMINATED, display_message="Exit Code: 7")
    failed = TaskState(state=TaskStatus.DEAD, failed=True, events=(ended,))
    if crashes:
        state.with_allocation(state.job(), client_status=ClientStatus.FAILED, task_states={"server": failed})
    job = state.job()
    deployment = Deployment(
        id="d1", namespace="default", job_id="shop", job_version=1, job_create_index=job.create_index,
        status=DeploymentStatus.FAILED, status_description="Failed due to progress deadline",
        modify_time=1_767_225_600 * SECOND_NS, create_index=WRITE_INDEX,
    )  # fmt: skip
    state.put(DEPLOYMENTS.build_put(deployment))
    state.end_evaluations(**evaluation)
    return explain_job(state.replica, "default", "shop")


def test_a_failed_rollout_names_its_time_and_the_allocation_that_failed_and_advises_the_stable_version() -> None:
    result = fail_rollout(is_stable=True)

    assert result.text == (
        "shop does not continue: the deployment of version 1 failed at 2026-01-01 00:00:00Z (Failed due to progress "
        "deadline): shop.web[0], server: Exit Code: 7; return to version 0 with `wharf job revert shop 0`, or correct "
        "the job and submit it with `wharf job run FILE`"
    )
    assert result.waits[0].advice == (
        "return to version 0 with `wharf job revert shop 0`, or correct the job and submit it with `wharf job run FILE`",
    )


def test_a_failed_first_version_is_to_be_corrected_because_there_is_no_stable_one() -> None:
    assert fail_rollout(is_stable=False).waits[0].advice == ("correct the job and submit it with `wharf job run FILE`",)


def test_a_rollout_that_failed_without_a_failed_allocation_may_start_again_with_the_same_version() -> None:
    assert "`wharf job scale shop web 1`" in fail_rollout(is_stable=True, crashes=False).text


def test_a_rollout_that_failed_because_of_a_quota_names_the_quota_and_what_has_to_be_done_before_it_starts_again() -> (
    None
):
    metric = AllocMetric(quota_exhausted=("cpu exhausted (600 needed > 500 limit)",))
    result = fail_rollout(
        is_stable=True, crashes=False, deployment_id="d1", quota_limit_reached="shops", failed_tg_allocs={"web": metric}
    )

    assert result.text == (
        "shop does not continue: the deployment of version 1 failed at 2026-01-01 00:00:00Z (Failed due to progress "
        'deadline): the quota "shops" is used up: web: cpu exhausted (600 needed > 500 limit); 1 allocation missing: raise '
        'the quota "shops", or free a part of it, and start a new deployment with `wharf job scale shop web 1`'
    )


def test_a_rollout_that_failed_because_no_node_had_free_resources_names_them() -> None:
    metric = AllocMetric(nodes_evaluated=3, dimension_exhausted={"memory": 3})
    result = fail_rollout(is_stable=True, crashes=False, deployment_id="d1", failed_tg_allocs={"web": metric})

    assert "web lacked 1 allocation: none of 3 nodes could run one (3 had too little memory)" in result.text
    assert "free resources, or add a node, and start a new deployment with" in result.text


def test_the_summary_names_the_failure_behind_a_rollout_that_waits_for_its_deadline() -> None:
    state = AState()
    state.with_node()
    state.register(a_job("shop", a_group("web")))
    job = state.job()
    killed = TaskEvent(type=TaskEventType.TERMINATED, display_message="OOM Killed, Exit Code: 137")
    failed = TaskState(state=TaskStatus.DEAD, failed=True, events=(killed,))
    state.with_allocation(job, client_status=ClientStatus.FAILED, task_states={"server": failed})
    deployment = Deployment(
        id="d1", namespace="default", job_id="shop", job_version=0, job_create_index=job.create_index,
        task_groups={"web": DeploymentGroup(desired_total=1)}, status=DeploymentStatus.RUNNING,
        create_index=WRITE_INDEX,
    )  # fmt: skip
    state.put(DEPLOYMENTS.build_put(deployment))
    state.end_evaluations()

    result = explain_job(state.replica, "default", "shop")

    assert "failed: shop.web[0], server: OOM Killed, Exit Code: 137" in result.text


def test_a_closed_node_with_enough_resources_is_the_last_advice_if_others_lack_only_resources() -> None:
    state = make_fleet(1_000, 3_000)
    state.put(NODES.build_put(replace(state.node("node-2"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))

    result = explain_registered_job(state, make_sized_job(memory_mb=2_000))

    assert get_web_group(result).smallest_change == (
        "lower MemoryMB of web/server from 2000 to 1000, or add a node with at least 2000 MB of memory, or let node-2 "
        "take allocations again: it is ineligible, and `wharf node eligibility --enable node-2` ends that"
    )

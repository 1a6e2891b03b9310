"""Explanations of jobs: what they wait for, and what would help (issue: explain)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import (
    a_batch_job,
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
from wharf.cluster.operations.jobs.dispatch import DispatchRequest, dispatch_job
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOBS, NODES, SCHEDULER_CONFIGURATION
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus, EvaluationTrigger
from wharf.contract.model.explanations import GroupExplanation, JobExplanation, WaitReason
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.job import Job, JobType, Parameterized
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.nodes.node import DrainStrategy, NodeStatus, SchedulingEligibility, set_drain_strategy
from wharf.contract.model.nodes.resources import DeviceInstance, NodeCpu, NodeDevice
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import to_datetime


def sized(cpu: int = 100, memory_mb: int = 64, count: int = 1, **fields: Any) -> Job:
    resources = some_resources(cpu=cpu, memory_mb=memory_mb)
    return a_job("shop", a_group("web", a_task(driver="mock", resources=resources), count=count, **fields))


def a_fleet(*memory_mb: int, **fields: Any) -> AState:
    state = AState()
    for number, each in enumerate(memory_mb, start=1):
        state.with_node(f"node-{number}", memory_mb=each, **fields)
    return state


def process(state: AState, job_id: str = "shop") -> None:
    """Every evaluation of the job that is to be looked at is, as the leader would."""
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


def asked(state: AState, job: Job) -> JobExplanation:
    """The job registered, looked at, and explained."""
    state.register(job)
    process(state, job.id)
    return explain_job(state.replica, "default", job.id)


def of_web(told: JobExplanation) -> GroupExplanation:
    (group,) = [each for each in told.groups if each.group == "web"]
    return group


def excluded(told: JobExplanation) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {each.rule: (each.nodes, each.examples) for each in of_web(told).excluded}


def waits(state: AState, job_id: str = "shop") -> list[WaitReason]:
    return [each.waits_for for each in explain_job(state.replica, "default", job_id).waits]


# -- the smallest change


def test_what_lacks_memory_is_told_how_much_less_it_may_ask_for_or_how_much_is_to_be_freed() -> None:
    told = asked(a_fleet(3_500, 3_500, 3_500), sized(memory_mb=4_096))

    assert of_web(told).smallest_change == (
        "lower MemoryMB of web/server from 4096 to 3500, or free 596 MB on any of 3 nodes"
    )


def test_the_sentence_comes_first_and_names_the_job_the_reason_and_the_way_out() -> None:
    told = asked(a_fleet(3_500, 3_500, 3_500), sized(memory_mb=4_096))

    assert told.text == (
        "shop waits for resources: web lacks 1 allocation: none of 3 nodes can run one (3 have too little memory); "
        "lower MemoryMB of web/server from 4096 to 3500, or free 596 MB on any of 3 nodes"
    )


def test_the_node_that_lacks_least_is_the_one_that_counts() -> None:
    told = asked(a_fleet(1_000, 3_000), sized(memory_mb=4_000))

    assert of_web(told).smallest_change == "lower MemoryMB of web/server from 4000 to 3000, or free 1000 MB on node-2"
    assert [(each.dimension, each.nodes, each.missing, each.unit) for each in of_web(told).exhausted] == [
        ("memory", 2, 1_000, "MB")
    ]


def test_what_lacks_two_things_is_told_both() -> None:
    told = asked(a_fleet(1_000), sized(cpu=3_000, memory_mb=1_500))

    assert of_web(told).smallest_change == (
        "lower CPU of web/server from 3000 to 1000 and MemoryMB of web/server from 1500 to 1000, "
        "or free 2000 MHz and 500 MB on node-1"
    )


@pytest.mark.parametrize(("cpu", "memory_mb"), [(100, 4_096), (3_000, 64), (5_000, 4_096)])
def test_with_the_smallest_change_it_is_placed(cpu: int, memory_mb: int) -> None:
    state = a_fleet(3_500)
    told = of_web(asked(state, sized(cpu=cpu, memory_mb=memory_mb)))
    lowered = {
        words.split()[0]: int(words.split()[-1])
        for words in told.smallest_change.partition(", or ")[0].removeprefix("lower ").split(" and ")
    }

    state.register(sized(cpu=lowered.get("CPU", cpu), memory_mb=lowered.get("MemoryMB", memory_mb)))
    process(state)

    assert of_web(explain_job(state.replica, "default", "shop")).starting == 1


def test_the_constraint_without_which_nodes_would_take_it_is_named_with_how_many_it_leaves_out() -> None:
    windows = Constraint(l_target="${attr.kernel.name}", r_target="windows", operand="=")
    told = asked(a_fleet(1_000, 1_000), sized(constraints=(windows,)))

    assert excluded(told) == {str(windows): (2, ("node-1", "node-2"))}
    assert of_web(told).smallest_change == f"drop the constraint {windows}: 2 nodes could then take the allocation"


def test_a_driver_that_no_node_has_is_to_be_mended() -> None:
    told = asked(a_fleet(1_000), a_job("shop", a_group("web", a_task(driver="qemu"))))

    assert of_web(told).smallest_change.startswith("no node has the driver qemu; available: ")


def test_the_only_node_is_told_as_one() -> None:
    told = asked(a_fleet(1_000), sized(cpu=900_000))

    assert told.text.startswith("shop waits for resources: web lacks 1 allocation: the only node cannot run one (1 ha")


def test_a_driver_whose_name_is_not_alike_is_not_told_as_meant() -> None:
    told = asked(a_fleet(1_000), a_job("shop", a_group("web", a_task(driver="rocket"))))

    assert of_web(told).smallest_change.startswith("no node has the driver rocket; available: ")


def test_a_volume_that_no_node_has_is_told_by_its_name() -> None:
    group = replace(a_group("web", a_task(driver="mock")), volumes={"d": VolumeRequest(type="host", source="data")})

    told = asked(a_fleet(1_000), a_job("shop", group))

    assert of_web(told).smallest_change == (
        "create the volume data, with the access that the job requests, on node-1: use `wharf volume create`"
    )


def test_a_misspelled_driver_is_told_with_the_one_that_may_be_meant() -> None:
    told = asked(a_fleet(1_000), a_job("shop", a_group("web", a_task(driver="mokc"))))

    assert of_web(told).smallest_change == "no node has the driver mokc: did you mean mock?"


def test_where_no_node_takes_work_the_way_is_to_bring_one_back() -> None:
    state = a_fleet(1_000, scheduling_eligibility=SchedulingEligibility.INELIGIBLE)
    told = asked(state, sized())

    assert excluded(told) == {"node is ineligible": (1, ("node-1",))}
    assert of_web(told).smallest_change == "make a node of the job's pool and datacenters ready: node-1 (ineligible)"


def test_where_there_is_no_node_at_all_the_way_is_to_add_one() -> None:
    assert of_web(asked(AState(), sized())).smallest_change == "add a node: the cluster has none"


def test_a_datacenter_that_nobody_is_in_is_told_with_those_that_are_there() -> None:
    told = asked(a_fleet(1_000), replace(sized(), datacenters=("mars",)))

    assert excluded(told) == {"datacenter dc1 is not in the job's list": (1, ("node-1",))}
    assert of_web(told).smallest_change == "set a datacenter that has nodes of the job's pool: dc1"


def test_hosts_that_must_differ_need_more_nodes_or_a_lower_count() -> None:
    distinct = Constraint(operand="distinct_hosts", r_target="true")
    told = asked(a_fleet(1_000), sized(count=2, constraints=(distinct,)))

    assert excluded(told) == {"distinct_hosts": (1, ("node-1",))}
    assert of_web(told).smallest_change == "add a node that distinct_hosts allows, or lower the count of web"


def test_a_port_that_is_taken_is_to_be_freed() -> None:
    network = NetworkResource(mode="host", reserved_ports=(Port(label="http", value=8_080),))
    told = asked(a_fleet(1_000), sized(count=2, networks=(network,)))

    assert of_web(told).unplaced == 1
    assert of_web(told).smallest_change == (
        "free the port 8080 on node-1, request another or a dynamic port, or add a node"
    )


def asking_for(count: int) -> Job:
    resources = some_resources(devices=(RequestedDevice(name="acme/gpu", count=count),))
    return a_job("shop", a_group("web", a_task(driver="mock", resources=resources)))


def with_a_gpu(state: AState) -> AState:
    gpu = NodeDevice(vendor="acme", type="gpu", name="x1", instances=(DeviceInstance(id="one", healthy=True),))
    node = state.node()
    assert node.node_resources is not None
    state.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, devices=(gpu,)))))
    return state


def test_a_device_that_no_node_has_is_told_by_its_name_and_a_lower_count_where_that_helps() -> None:
    none, few = asked(a_fleet(1_000), asking_for(2)), asked(with_a_gpu(a_fleet(1_000)), asking_for(2))

    assert (of_web(none).smallest_change, of_web(few).smallest_change) == (
        "no node has a healthy device acme/gpu that satisfies the request; no devices are available",
        "lower the Count of acme/gpu of web/server from 2 to 1: no node has more",
    )


def test_devices_that_others_hold_are_to_be_freed() -> None:
    state = with_a_gpu(a_fleet(1_000))
    asked(state, replace(asking_for(1), id="other"))

    assert of_web(asked(state, asking_for(1))).smallest_change == ("free devices acme/gpu on node-1, or add a node")


def test_a_network_that_no_node_has_is_told_by_its_mode_or_name() -> None:
    mode = NetworkResource(mode="cni/blue")
    port = NetworkResource(mode="host", dynamic_ports=(Port(label="http", host_network="public"),))

    assert [of_web(asked(a_fleet(1_000), sized(networks=(each,)))).smallest_change for each in (mode, port)] == [
        "no node has a network with mode cni/blue; available: host, none",
        "use a host network that nodes have: default",
    ]


def test_cores_are_told_by_how_many_fewer_a_node_would_take() -> None:
    state = a_fleet(1_000)
    node = state.node()
    assert node.node_resources is not None
    cpu = NodeCpu(cpu_shares=4_000, total_cpu_cores=4, reservable_cpu_cores=(0, 1, 2, 3))
    state.put(NODES.build_put(replace(node, node_resources=replace(node.node_resources, cpu=cpu))))

    def of_cores(cores: int, job_id: str) -> Job:
        task = a_task(driver="mock", resources=some_resources(cpu=0, cores=cores))
        return replace(a_job("shop", a_group("web", task)), id=job_id)

    asked(state, of_cores(3, "other"))
    told = asked(state, of_cores(2, "shop"))
    too_many = asked(a_fleet(1_000), of_cores(2, "shop"))

    assert of_web(told).text == (
        "web lacks 1 allocation: the only node cannot run one (1 have too few cores); "
        "lower Cores of web/server from 2 to 1, or free 1 core on node-1"
    )
    assert of_web(too_many).smallest_change == (
        "request CPU instead of Cores: no node has cores that can be reserved for a task"
    )


def test_properties_that_must_differ_are_told_with_the_value_that_is_used_up() -> None:
    distinct = Constraint(l_target="${node.datacenter}", operand="distinct_property", r_target="1")

    assert of_web(asked(a_fleet(1_000), sized(count=2, constraints=(distinct,)))).smallest_change == (
        "add a node whose ${node.datacenter} is not dc1, raise the limit of distinct_property, or lower the count of web"
    )


def test_of_a_system_job_only_the_nodes_that_have_none_of_it_are_told() -> None:
    state = a_fleet(3_500, 1_000, 1_000, 1_000)
    resources = some_resources(cpu=100, memory_mb=2_000)
    told = asked(state, a_system_job("shop", a_group("web", a_task(driver="mock", resources=resources))))

    web = of_web(told)
    assert (web.wanted, web.starting, web.unplaced, web.nodes) == (4, 1, 3, 3)
    assert told.waits[0].text == (
        "waits for resources: web lacks 3 allocations: none of the other 3 nodes can run one "
        "(3 have too little memory); lower MemoryMB of web/server from 2000 to 1000, or free 1000 MB on any of 3 nodes"
    )


def test_a_system_job_that_runs_everywhere_wants_as_many_as_there_are_nodes() -> None:
    web = of_web(asked(a_fleet(1_000, 1_000), a_system_job("shop", a_group("web", a_task(driver="mock")))))

    assert (web.wanted, web.starting, web.unplaced) == (2, 2, 0)


def test_a_sysbatch_job_that_is_done_wanted_as_many_as_have_ended() -> None:
    state = a_fleet(1_000, 1_000)
    asked(state, a_job("shop", a_group("web", a_task(driver="mock")), type=JobType.SYSBATCH))
    for each in list(state.replica.iter_all(ALLOCATIONS)):
        state.with_client_status(each.id, ClientStatus.COMPLETE)

    told = explain_job(state.replica, "default", "shop")

    assert (told.text, of_web(told).wanted) == ("shop is done: 2 allocations completed", 2)


# -- what is waited for


def test_a_job_that_nobody_looked_at_yet_has_its_place_in_the_queue() -> None:
    state = a_fleet(1_000)
    state.register(replace(sized(), id="other", priority=80))
    state.register(sized())

    told = explain_job(state.replica, "default", "shop")

    assert (told.queue_place, told.queue_length) == (2, 2)
    assert told.text == "shop waits for its evaluation (job-register): 2 of 2 in the queue"


def test_while_the_scheduler_is_paused_that_is_said_first() -> None:
    state = a_fleet(1_000)
    state.put(SCHEDULER_CONFIGURATION.build_put(SchedulerConfiguration(pause_eval_broker=True)))
    state.register(sized())

    assert waits(state) == [WaitReason.PAUSED_SCHEDULER, WaitReason.QUEUE]


def test_what_failed_and_is_tried_later_is_told_with_its_time() -> None:
    state = a_fleet(1_000)
    asked(state, sized())
    at = to_datetime(state.now_ns + 30 * SECOND_NS)
    state.put_led(
        EVALUATIONS.build_put(an_evaluation(state.job(), wait_until=at, triggered_by=EvaluationTrigger.ALLOC_FAILURE))
    )

    texts = [
        each.text for each in explain_job(state.replica, "default", "shop").waits if each.waits_for is WaitReason.DELAY
    ]

    assert texts == [f"waits: failed allocations are rescheduled at {at:%Y-%m-%d %H:%M:%SZ}"]


def test_what_is_out_of_contact_and_replaced_later_is_not_told_as_failed() -> None:
    state = a_fleet(1_000)
    asked(state, sized())
    at = to_datetime(state.now_ns + 30 * SECOND_NS)
    (away,) = state.replica.iter_all(ALLOCATIONS)
    state.with_client_status(away.id, ClientStatus.UNKNOWN)
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
def test_a_deployment_tells_what_it_waits_for(
    status: DeploymentStatus, group: DeploymentGroup, waits_for: WaitReason
) -> None:
    state = a_fleet(1_000)
    state.register(sized())
    state.end_evaluations()
    job = state.job()
    state.with_allocation(job, client_status=ClientStatus.RUNNING)
    deployment = Deployment(
        id="d1", namespace="default", job_id="shop", job_version=job.version, job_create_index=job.create_index,
        status=status, task_groups={"web": group},
    )  # fmt: skip
    state.put_led(DEPLOYMENTS.build_put(deployment))

    assert waits(state) == [waits_for]


def test_work_on_a_node_that_is_drained_or_out_of_contact_is_told_with_its_node() -> None:
    state = a_fleet(1_000)
    state.register(sized())
    state.end_evaluations()
    state.with_allocation(state.job(), client_status=ClientStatus.RUNNING)

    state.put(NODES.build_put(set_drain_strategy(state.node(), DrainStrategy())))
    assert waits(state) == [WaitReason.DRAIN]
    state.put(NODES.build_put(replace(set_drain_strategy(state.node(), None), status=NodeStatus.DISCONNECTED)))
    assert waits(state) == [WaitReason.NODE]


def test_what_was_placed_and_has_not_started_waits_for_its_node() -> None:
    assert [each.waits_for for each in asked(a_fleet(1_000), sized()).waits][-1] is WaitReason.TASKS


def test_a_job_as_it_is_wanted_says_so() -> None:
    state = a_fleet(1_000)
    state.register(sized())
    state.end_evaluations()
    state.with_allocation(state.job(), client_status=ClientStatus.RUNNING)

    told = explain_job(state.replica, "default", "shop")

    assert (told.text, told.is_explained) == ("shop runs as requested: 1 allocation", True)


def test_batch_work_that_ended_well_says_so() -> None:
    state = a_fleet(1_000)
    state.register(a_batch_job("nightly"))
    state.end_evaluations("nightly")
    state.with_allocation(state.job("nightly"), client_status=ClientStatus.COMPLETE)

    assert explain_job(state.replica, "default", "nightly").text == "nightly is done: 1 allocation completed"


def test_batch_work_that_was_stopped_before_its_end_is_not_told_as_ended_well() -> None:
    state = a_fleet(1_000)
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


def test_an_evaluation_that_failed_last_is_the_reason() -> None:
    state = a_fleet(1_000)
    state.register(sized())
    state.end_evaluations(status=EvaluationStatus.FAILED, status_description="maximum attempts reached (5)")

    told = explain_job(state.replica, "default", "shop")

    assert told.text == "shop does not change, because its last evaluation failed: maximum attempts reached (5)"


def test_parents_wait_for_their_next_launch_or_a_dispatch() -> None:
    state = a_fleet(1_000)
    state.register(a_periodic_job("nightly"))
    state.register(a_parameterized_job("convert"))

    assert waits(state, "nightly") == [WaitReason.LAUNCH]
    assert waits(state, "convert") == [WaitReason.DISPATCH]


def test_a_quota_that_is_used_up_is_told_by_its_name() -> None:
    state = a_fleet(1_000)
    state.register(sized())
    metric = AllocMetric(quota_exhausted=("memory exhausted (100 needed > 50 limit)",))
    state.end_evaluations(
        status=EvaluationStatus.BLOCKED, quota_limit_reached="small", failed_tg_allocs={"web": metric}
    )

    told = explain_job(state.replica, "default", "shop")

    assert told.text == ('shop waits for capacity in the quota "small": web: memory exhausted (100 needed > 50 limit)')
    assert of_web(told).text == 'web lacks 1 allocation: nodes have free resources, but the quota "small" is used up'


def test_what_is_placed_is_told_with_the_scores_of_its_node() -> None:
    told = asked(a_fleet(1_000, 2_000), sized())

    (placement,) = told.placements
    assert placement.nodes_evaluated == 2
    assert placement.scores[0].node_id == placement.node_id


def test_a_job_that_nobody_knows_cannot_be_explained() -> None:
    with pytest.raises(Refusal, match="job not found"):
        explain_job(AState().replica, "default", "shop")


# -- no job without an answer


def test_a_job_that_lacks_something_while_nothing_is_under_way_is_found() -> None:
    state = a_fleet(1_000)
    state.register(sized())
    state.put(*(EVALUATIONS.build_delete(each.id) for each in state.evaluations()))

    assert [each.partition(":")[0] for each in list_unexplained_jobs(state.replica)] == ["default/shop"]
    assert [job.id for job in state.replica.iter_all(JOBS)] == ["shop"]


def test_every_job_that_the_scheduler_has_looked_at_has_an_answer() -> None:
    state = a_fleet(1_000, 1_000)
    for number, job in enumerate(
        (
            sized(),
            sized(memory_mb=9_000),
            sized(count=50),
            sized(cpu=1),
            a_batch_job(),
            replace(sized(), node_pool="all"),
        )
    ):
        job = replace(job, id=f"job-{number}")
        state.register(job)
        process(state, job.id)

    assert list_unexplained_jobs(state.replica) == []


def test_what_waits_for_room_is_told_its_place_in_the_line_where_others_wait_too() -> None:
    state = a_fleet(1_000)
    for job_id in ("first", "second"):
        state.register(replace(sized(memory_mb=4_096), id=job_id))
        process(state, job_id)

    told = explain_job(state.replica, "default", "second")

    assert (told.queue_place, told.queue_length, "it is 2 of 2 in the queue, since" in told.text) == (2, 2, True)


def test_what_has_waited_too_long_is_told_which_node_is_kept_for_it() -> None:
    state = a_fleet(1_000)
    state.register(sized(memory_mb=4_096))
    process(state)
    (waiting,) = (each for each in state.evaluations() if each.status is EvaluationStatus.BLOCKED)
    state.commit(reserve_node(state.replica, waiting, "node-1"))

    assert (
        "node node-1 is reserved for it, because it has waited long"
        in explain_job(state.replica, "default", "shop").text
    )


def test_a_constraint_without_a_right_side_is_told_without_a_blank_behind_it() -> None:
    constraint = Constraint(l_target="${attr.gpu}", operand="is_set")

    assert '(1 by "${attr.gpu} is_set")' in asked(a_fleet(1_000), sized(constraints=[constraint])).text


def with_children(number: int, *, max_running: int) -> tuple[AState, list[str]]:
    """A parent of so many children, each looked at."""
    state = a_fleet(1_000)
    state.register(a_batch_job("convert", parameterized_job=Parameterized(max_running=max_running)))
    made = []
    for _ in range(number):
        asked_for = DispatchRequest(namespace="default", job_id="convert")
        made.append(state.lead(dispatch_job(state.replica, asked_for, state.moment, SETTINGS)).job_id)
        process(state, made[-1])
    return state, made


def test_a_child_that_waits_for_its_turn_is_told_behind_whom_and_what_would_have_it_begin() -> None:
    state, made = with_children(3, max_running=1)

    assert explain_job(state.replica, "default", made[2]).text == (
        f"{made[2]} waits for a slot of convert: 1 of at most 1 children are running; it is 2 of 2 in the queue; "
        "raise max_running of convert to 3 to start it now"
    )


def test_a_child_whose_turn_has_come_is_told_that_it_begins_and_nothing_need_be_raised() -> None:
    state, made = with_children(3, max_running=1)
    state.register(a_batch_job("convert", parameterized_job=Parameterized(max_running=2)))

    assert explain_job(state.replica, "default", made[1]).text == (
        f"{made[1]} waits for a slot of convert: 1 of at most 2 children are running; it is 1 of 2 in the queue; "
        "it starts with its next evaluation"
    )


def test_a_parent_tells_of_its_children() -> None:
    state, _ = with_children(3, max_running=1)

    assert explain_job(state.replica, "default", "convert").text == (
        "convert waits to be dispatched; its children: 1 running, 2 pending"
    )


def test_a_parent_has_no_groups_of_its_own_to_tell_of() -> None:
    state, _ = with_children(1, max_running=1)

    assert explain_job(state.replica, "default", "convert").groups == ()


def test_a_parent_that_is_stopped_tells_of_children_that_go_on() -> None:
    state, _ = with_children(2, max_running=1)
    state.put(JOBS.build_put(replace(state.job("convert"), stop=True)))

    assert explain_job(state.replica, "default", "convert").text == (
        "convert is stopped and launches no more children; its children: 1 running, 1 pending"
    )


def test_a_time_table_that_is_over_launches_by_hand_only() -> None:
    state = a_fleet(1_000)
    state.register(a_periodic_job("never", spec="0 0 31 2 *"))

    told = explain_job(state.replica, "default", "never")

    assert told.text == "never is launched on request only, because its schedule has no launch time left"
    assert told.is_explained

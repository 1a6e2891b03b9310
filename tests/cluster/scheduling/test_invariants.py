"""Invariants under random events: hypothesis drives a small cluster through evaluate, commit and report."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS
from wharf.cluster.state.tables import ALLOCATIONS, JOB_VERSIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredTransition
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.nodes.node import NodeStatus

STEPS = st.lists(
    st.sampled_from(
        [
            "register",
            "count",
            "fails",
            "unhealthy",
            "completes",
            "down",
            "reconnect",
            "migrate",
            "time",
            "run nodes",
            "stop",
            "limit node",
        ]
    ),
    min_size=3,
    max_size=14,
)
MAX_PARALLEL = 2
NO_RESCHEDULE = ReschedulePolicy(attempts=0, interval=0, unlimited=False)
QUICK_RESCHEDULE = ReschedulePolicy(delay=5 * SECOND_NS, delay_function="constant")


def make_version(value: int, count: int, *, kind: JobType, canary: int, ports: bool) -> Job:
    networks = (NetworkResource(reserved_ports=(Port(label="web", value=80),)),) if ports else None
    task = a_task(resources=some_resources(cpu=300, memory_mb=10), env={"VERSION": str(value)})
    group = a_group("web", task, count=count, networks=networks)
    if kind is JobType.SERVICE:
        update = UpdatePolicy(max_parallel=MAX_PARALLEL, min_healthy_time=SECOND_NS, canary=canary)
        group = replace(group, update=update, reschedule_policy=QUICK_RESCHEDULE)
    if kind is JobType.BATCH:
        group = replace(group, reschedule_policy=replace(QUICK_RESCHEDULE, unlimited=True))
    return a_job("shop", group, type=kind)


class Driver:
    """Takes random steps and checks the invariants after each."""

    def __init__(
        self, data: st.DataObject, kind: JobType, *, ports: bool | None = None, canary: int | None = None
    ) -> None:
        self.data, self.kind = data, kind
        self.cluster = SimulatedCluster()
        for number in range(4):
            self.cluster.with_node(f"n{number}", cpu=1_000)
        self.version, self.count = 0, 1 if kind is JobType.SYSTEM else 3
        drawn = data.draw(st.sampled_from([0, 0, 1, 2])) if kind is JobType.SERVICE else 0
        self.canary = drawn if canary is None else canary
        self.ports = data.draw(st.booleans()) if ports is None else ports
        self.completed: dict[str, None] = {}
        self.register()
        self.cluster.settle()

    def register(self) -> None:
        job = make_version(self.version, self.count, kind=self.kind, canary=self.canary, ports=self.ports)
        self.cluster.register(job)

    def pick_allocation(self) -> Allocation | None:
        active = self.cluster.list_active()
        return active[self.data.draw(st.integers(0, len(active) - 1))] if active else None

    def take_step(self, step: str) -> None:
        """Take a random step of this kind."""
        cluster, picked = self.cluster, self.pick_allocation()
        match step:
            case "register":
                self.version += 1
                self.register()
            case "count":
                self.count = self.data.draw(st.integers(0, 6))
                self.register()
            case "stop":
                cluster.register(
                    replace(
                        make_version(self.version, self.count, kind=self.kind, canary=0, ports=self.ports), stop=True
                    )
                )
            case "fails" if picked is not None and self.is_connected(picked):
                cluster.report(picked, ClientStatus.FAILED, healthy=False)
                cluster.evaluate_job()
            case "unhealthy" if picked is not None and self.is_connected(picked):
                cluster.report(picked, ClientStatus.RUNNING, healthy=False)
            case "completes" if picked is not None and self.is_connected(picked):
                cluster.report(picked, ClientStatus.COMPLETE)
                if self.kind is JobType.BATCH:
                    self.completed[picked.name + f"/{picked.job_version}"] = None
                cluster.evaluate_job()
            case "migrate" if picked is not None:
                cluster.put_led(
                    ALLOCATIONS.build_put(replace(picked, desired_transition=DesiredTransition(migrate=True)))
                )
                cluster.evaluate_job()
            case "down":
                cluster.lose_node(self.data.draw(st.sampled_from(["n0", "n1"])))
            case "reconnect":
                cluster.reconnect_node(self.data.draw(st.sampled_from(["n0", "n1"])))
            case "limit node":
                node = cluster.node("n3")
                cluster.put(NODES.build_put(replace(node, node_max_allocs=self.data.draw(st.sampled_from([0, 1])))))
            case "time":
                cluster.pass_time(self.data.draw(st.sampled_from([1, 6, 40])))
            case "run nodes":
                cluster.run_nodes()
        cluster.process_pending()

    def is_connected(self, allocation: Allocation) -> bool:
        return self.cluster.node(allocation.node_id).status is NodeStatus.READY

    def settle(self) -> None:
        """Let all nodes be healthy and run until nothing changes."""
        for number in range(4):
            self.cluster.put(
                NODES.build_put(replace(self.cluster.node(f"n{number}"), status=NodeStatus.READY, node_max_allocs=0))
            )
        for _ in range(12):
            self.cluster.evaluate_job()
            before = self.cluster.list_allocations()
            for _ in range(3):
                self.cluster.process_pending()
                self.cluster.run_nodes()
                self.cluster.retry_blocked()
            if self.cluster.list_allocations() == before:
                return
            self.cluster.pass_time(40)


def get_capacity_and_use(cluster: SimulatedCluster, node_id: str) -> list[tuple[int, int]]:
    """Return capacity and use of the node: MHz, MB of memory, MB of disk. Computed without production code."""
    node, used = cluster.node(node_id), [0, 0, 0]
    for allocation in cluster.list_allocations():
        if allocation.node_id == node_id and allocation.is_occupying:
            resources = allocation.allocated_resources
            assert resources is not None
            used[0] += sum(task.cpu.cpu_shares for task in (resources.tasks or {}).values())
            used[1] += sum(task.memory.memory_mb for task in (resources.tasks or {}).values())
            used[2] += resources.shared.disk_mb
    node_resources = node.node_resources
    assert node_resources is not None
    return list(
        zip(
            used,
            [node_resources.cpu.cpu_shares, node_resources.memory.memory_mb, node_resources.disk.disk_mb],
            strict=True,
        )
    )


@given(STEPS, st.sampled_from([JobType.SERVICE, JobType.BATCH]), st.data())
@settings(max_examples=12, deadline=None)
def test_no_node_is_ever_over_committed(steps: list[str], kind: JobType, data: st.DataObject) -> None:
    driver = Driver(data, kind)
    cluster = driver.cluster

    def check() -> None:
        for number in range(4):
            assert all(used <= capacity for used, capacity in get_capacity_and_use(cluster, f"n{number}"))

    cluster.checks.append(check)
    for step in steps:
        driver.take_step(step)
    driver.settle()


@given(STEPS, st.sampled_from([JobType.SERVICE, JobType.BATCH]), st.data())
@settings(max_examples=12, deadline=None)
def test_a_port_has_one_owner(steps: list[str], kind: JobType, data: st.DataObject) -> None:
    driver = Driver(data, kind, ports=True)
    cluster = driver.cluster

    def check() -> None:
        used_ports = [
            (allocation.node_id, port.host_ip, port.value)
            for allocation in cluster.list_allocations()
            if allocation.is_occupying and allocation.allocated_resources is not None
            for port in allocation.allocated_resources.shared.ports or ()
        ]
        assert sorted(set(used_ports)) == sorted(used_ports)

    cluster.checks.append(check)
    for step in steps:
        driver.take_step(step)
    driver.settle()
    assert any(
        allocation.allocated_resources and allocation.allocated_resources.shared.ports
        for allocation in cluster.list_allocations()
    )


@given(STEPS, st.data())
@settings(max_examples=25, deadline=None)
def test_counts_are_reached_or_explained(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE)
    for step in steps:
        driver.take_step(step)
    driver.register()
    driver.settle()
    cluster = driver.cluster

    active, explained = cluster.list_active(), [each for each in cluster.open_evaluations() if each.failed_tg_allocs]
    deployment = cluster.deployment() if driver.count else None
    awaits_promotion = deployment is not None and deployment.is_awaiting_promotion
    waiting = [each for each in cluster.open_evaluations() if each.wait_until is not None]
    # Failed allocations of a failed deployment stay until a user submits a new version.
    has_failed = deployment is not None and deployment.status == "failed"
    assert len(active) == driver.count or explained or awaits_promotion or waiting or has_failed


@given(STEPS, st.data())
@settings(max_examples=20, deadline=None)
def test_canaries_never_exceed_the_requested_number(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE, canary=data.draw(st.sampled_from([0, 1, 2])))
    cluster = driver.cluster

    def check() -> None:
        job = cluster.job()
        canaries = [
            each
            for each in cluster.list_active()
            if each.deployment_status is not None
            and each.deployment_status.canary
            and (each.job_version, each.job_create_index) == (job.version, job.create_index)
        ]
        assert len(canaries) <= driver.canary

    cluster.checks.append(check)
    for step in ["register", *steps]:
        driver.take_step(step)


@given(STEPS, st.data())
@settings(max_examples=20, deadline=None)
def test_an_update_takes_down_at_most_max_parallel_allocations(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE)
    cluster = driver.cluster

    def check() -> None:
        allocations, job = cluster.list_allocations(), cluster.job()
        updated = [
            allocation
            for allocation in allocations
            if allocation.desired_description == "alloc is being updated due to job update"
            and not has_running_replacement(cluster, allocation)
            and allocation.job_create_index == job.create_index
            and not any(
                other_allocation.name == allocation.name
                and other_allocation.create_index > allocation.create_index
                and other_allocation.is_client_terminal
                for other_allocation in allocations
            )
        ]
        newest = max((each.modify_index for each in updated), default=0)
        updated_last = [each for each in updated if each.modify_index == newest]
        assert len(updated_last) <= MAX_PARALLEL

    cluster.checks.append(check)
    for step in steps:
        driver.take_step(step)


def has_running_replacement(cluster: SimulatedCluster, allocation: Allocation) -> bool:
    replacement = cluster.replica.get(ALLOCATIONS, allocation.next_allocation) if allocation.next_allocation else None
    return replacement is not None and replacement.client_status is ClientStatus.RUNNING


@given(STEPS, st.sampled_from([JobType.SERVICE, JobType.BATCH, JobType.SYSTEM]), st.data())
@settings(max_examples=20, deadline=None)
def test_a_stopped_job_leaves_nothing_running(steps: list[str], kind: JobType, data: st.DataObject) -> None:
    driver = Driver(data, kind)
    for step in steps:
        if kind is JobType.SYSTEM and step == "count":
            continue
        driver.take_step(step)
    driver.take_step("stop")
    driver.settle()

    assert [allocation.name for allocation in driver.cluster.list_allocations() if allocation.is_occupying] == []
    assert driver.cluster.job().status == "dead"


@given(
    st.lists(st.sampled_from(["fails", "completes", "down", "reconnect", "time", "run nodes", "migrate"]), max_size=14),
    st.data(),
)
@settings(max_examples=25, deadline=None)
def test_completed_batch_allocations_never_run_again(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.BATCH)

    def check() -> None:
        run_again = [
            each.name for each in driver.cluster.list_active() if each.name + f"/{each.job_version}" in driver.completed
        ]
        assert run_again == []

    driver.cluster.checks.append(check)
    for step in steps:
        driver.take_step(step)
    driver.settle()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6), st.sampled_from([0, 1, 3]))
@settings(max_examples=20, deadline=None)
def test_a_revert_ends_at_the_stable_version(versions: list[tuple[bool, bool]], canary: int) -> None:
    """Each version is healthy or unhealthy from its first allocation on, and some are submitted before the previous one
    has ended.
    """
    cluster = SimulatedCluster()
    for number in range(4):
        cluster.with_node(f"n{number}", cpu=1_000)
    is_healthy_by_value = {"0": True}

    def job(value: str) -> Job:
        update = UpdatePolicy(
            max_parallel=MAX_PARALLEL,
            min_healthy_time=SECOND_NS,
            canary=canary,
            auto_revert=True,
            auto_promote=bool(canary),
        )
        task = a_task(resources=some_resources(cpu=100, memory_mb=10), env={"VERSION": value})
        return a_job("shop", a_group("web", task, count=3, update=update, reschedule_policy=NO_RESCHEDULE))

    def get_value(job_version: int) -> str:
        version = cluster.replica.get(JOB_VERSIONS, "default", "shop", job_version)
        assert version is not None
        (task,) = version.groups[0].tasks or ()
        return (task.env or {})["VERSION"]

    def report_health() -> None:
        for each in cluster.list_active():
            if each.client_status is ClientStatus.RUNNING and (
                each.deployment_status is None or each.deployment_status.healthy is None
            ):
                cluster.report(each, ClientStatus.RUNNING, healthy=is_healthy_by_value[get_value(each.job_version)])

    def settle_all() -> None:
        for _ in range(60):
            before = cluster.list_allocations()
            cluster.process_pending()
            cluster.run_nodes(healthy=None)
            report_health()
            cluster.process_pending()
            if cluster.list_allocations() == before:
                return
        raise AssertionError("the cluster does not settle")

    cluster.register(job("0"))
    settle_all()
    stable = "0"
    for number, (is_healthy, is_submitted_early) in enumerate(versions, 1):
        value = str(number)
        is_healthy_by_value[value] = is_healthy
        cluster.register(job(value))
        cluster.process_pending()
        if is_submitted_early and number < len(versions):
            continue  # It never became stable.
        settle_all()
        stable = value if is_healthy else stable

        assert (
            {stable}
            == {get_value(each.job_version) for each in cluster.list_active()}
            == {get_value(cluster.job().version)}
        )
        assert len(cluster.list_active()) == 3

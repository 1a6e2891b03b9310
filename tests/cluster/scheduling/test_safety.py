"""Invariants under random events: hypothesis drives a small cluster through evaluate, commit and report."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.cluster.scheduling.loop import Loop
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
            "sick",
            "completes",
            "down",
            "back",
            "migrate",
            "time",
            "obey",
            "stop",
            "smaller",
        ]
    ),
    min_size=3,
    max_size=14,
)
MAX_PARALLEL = 2
NEVER_AGAIN = ReschedulePolicy(attempts=0, interval=0, unlimited=False)
SOON = ReschedulePolicy(delay=5 * SECOND_NS, delay_function="constant")


def a_version(value: int, count: int, *, kind: JobType, canary: int, ports: bool) -> Job:
    networks = (NetworkResource(reserved_ports=(Port(label="web", value=80),)),) if ports else None
    task = a_task(resources=some_resources(cpu=300, memory_mb=10), env={"VERSION": str(value)})
    group = a_group("web", task, count=count, networks=networks)
    if kind is JobType.SERVICE:
        update = UpdatePolicy(max_parallel=MAX_PARALLEL, min_healthy_time=SECOND_NS, canary=canary)
        group = replace(group, update=update, reschedule_policy=SOON)
    if kind is JobType.BATCH:
        group = replace(group, reschedule_policy=replace(SOON, unlimited=True))
    return a_job("shop", group, type=kind)


class Driver:
    """Takes random steps and checks the invariants after each."""

    def __init__(
        self, data: st.DataObject, kind: JobType, *, ports: bool | None = None, canary: int | None = None
    ) -> None:
        self.data, self.kind = data, kind
        self.loop = Loop()
        for number in range(4):
            self.loop.with_node(f"n{number}", cpu=1_000)
        self.version, self.count = 0, 1 if kind is JobType.SYSTEM else 3
        drawn = data.draw(st.sampled_from([0, 0, 1, 2])) if kind is JobType.SERVICE else 0
        self.canary = drawn if canary is None else canary
        self.ports = data.draw(st.booleans()) if ports is None else ports
        self.completed: dict[str, None] = {}
        self.register()
        self.loop.settle()

    def register(self) -> None:
        job = a_version(self.version, self.count, kind=self.kind, canary=self.canary, ports=self.ports)
        self.loop.register(job)

    def pick(self) -> Allocation | None:
        live = self.loop.list_active()
        return live[self.data.draw(st.integers(0, len(live) - 1))] if live else None

    def take_step(self, step: str) -> None:
        loop, picked = self.loop, self.pick()
        match step:
            case "register":
                self.version += 1
                self.register()
            case "count":
                self.count = self.data.draw(st.integers(0, 6))
                self.register()
            case "stop":
                loop.register(
                    replace(a_version(self.version, self.count, kind=self.kind, canary=0, ports=self.ports), stop=True)
                )
            case "fails" if picked is not None and self.is_in_contact(picked):
                loop.report(picked, ClientStatus.FAILED, healthy=False)
                loop.evaluate_job()
            case "sick" if picked is not None and self.is_in_contact(picked):
                loop.report(picked, ClientStatus.RUNNING, healthy=False)
            case "completes" if picked is not None and self.is_in_contact(picked):
                loop.report(picked, ClientStatus.COMPLETE)
                if self.kind is JobType.BATCH:
                    self.completed[picked.name + f"/{picked.job_version}"] = None
                loop.evaluate_job()
            case "migrate" if picked is not None:
                loop.put_led(ALLOCATIONS.build_put(replace(picked, desired_transition=DesiredTransition(migrate=True))))
                loop.evaluate_job()
            case "down":
                loop.lose_node(self.data.draw(st.sampled_from(["n0", "n1"])))
            case "back":
                loop.reconnect_node(self.data.draw(st.sampled_from(["n0", "n1"])))
            case "smaller":
                node = loop.node("n3")
                loop.put(NODES.build_put(replace(node, node_max_allocs=self.data.draw(st.sampled_from([0, 1])))))
            case "time":
                loop.pass_time(self.data.draw(st.sampled_from([1, 6, 40])))
            case "obey":
                loop.run_nodes()
        loop.process_pending()

    def is_in_contact(self, allocation: Allocation) -> bool:
        return self.loop.node(allocation.node_id).status is NodeStatus.READY

    def settle(self) -> None:
        """Let all nodes be healthy and run until nothing changes."""
        for number in range(4):
            self.loop.put(
                NODES.build_put(replace(self.loop.node(f"n{number}"), status=NodeStatus.READY, node_max_allocs=0))
            )
        for _ in range(12):
            self.loop.evaluate_job()
            before = self.loop.list_allocations()
            for _ in range(3):
                self.loop.process_pending()
                self.loop.run_nodes()
                self.loop.retry_blocked()
            if self.loop.list_allocations() == before:
                return
            self.loop.pass_time(40)


def get_capacity_and_use(loop: Loop, node_id: str) -> list[tuple[int, int]]:
    """Return capacity and use of the node: MHz, MB of memory, MB of disk. Computed without production code."""
    node, used = loop.node(node_id), [0, 0, 0]
    for allocation in loop.list_allocations():
        if allocation.node_id == node_id and allocation.is_occupying:
            resources = allocation.allocated_resources
            assert resources is not None
            used[0] += sum(task.cpu.cpu_shares for task in (resources.tasks or {}).values())
            used[1] += sum(task.memory.memory_mb for task in (resources.tasks or {}).values())
            used[2] += resources.shared.disk_mb
    has = node.node_resources
    assert has is not None
    return list(zip(used, [has.cpu.cpu_shares, has.memory.memory_mb, has.disk.disk_mb], strict=True))


@given(STEPS, st.sampled_from([JobType.SERVICE, JobType.BATCH]), st.data())
@settings(max_examples=12, deadline=None)
def test_no_node_is_ever_over_committed(steps: list[str], kind: JobType, data: st.DataObject) -> None:
    driver = Driver(data, kind)
    loop = driver.loop

    def check() -> None:
        for number in range(4):
            assert all(used <= room for used, room in get_capacity_and_use(loop, f"n{number}"))

    loop.checks.append(check)
    for step in steps:
        driver.take_step(step)
    driver.settle()


@given(STEPS, st.sampled_from([JobType.SERVICE, JobType.BATCH]), st.data())
@settings(max_examples=12, deadline=None)
def test_a_port_has_one_owner(steps: list[str], kind: JobType, data: st.DataObject) -> None:
    driver = Driver(data, kind, ports=True)
    loop = driver.loop

    def check() -> None:
        owned = [
            (allocation.node_id, port.host_ip, port.value)
            for allocation in loop.list_allocations()
            if allocation.is_occupying and allocation.allocated_resources is not None
            for port in allocation.allocated_resources.shared.ports or ()
        ]
        assert sorted(set(owned)) == sorted(owned)

    loop.checks.append(check)
    for step in steps:
        driver.take_step(step)
    driver.settle()
    assert any(
        allocation.allocated_resources and allocation.allocated_resources.shared.ports
        for allocation in loop.list_allocations()
    )


@given(STEPS, st.data())
@settings(max_examples=25, deadline=None)
def test_counts_are_reached_or_explained(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE)
    for step in steps:
        driver.take_step(step)
    driver.register()
    driver.settle()
    loop = driver.loop

    live, explained = loop.list_active(), [each for each in loop.open_evaluations() if each.failed_tg_allocs]
    deployment = loop.deployment() if driver.count else None
    tried = deployment is not None and deployment.is_awaiting_promotion
    waits = [each for each in loop.open_evaluations() if each.wait_until is not None]
    # Failed allocations of a failed deployment stay until a user submits a new version.
    is_given_up = deployment is not None and deployment.status == "failed"
    assert len(live) == driver.count or explained or tried or waits or is_given_up


@given(STEPS, st.data())
@settings(max_examples=20, deadline=None)
def test_canaries_never_exceed_the_requested_number(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE, canary=data.draw(st.sampled_from([0, 1, 2])))
    loop = driver.loop

    def check() -> None:
        job = loop.job()
        canaries = [
            each
            for each in loop.list_active()
            if each.deployment_status is not None
            and each.deployment_status.canary
            and (each.job_version, each.job_create_index) == (job.version, job.create_index)
        ]
        assert len(canaries) <= driver.canary

    loop.checks.append(check)
    for step in ["register", *steps]:
        driver.take_step(step)


@given(STEPS, st.data())
@settings(max_examples=20, deadline=None)
def test_an_update_takes_down_at_most_max_parallel_allocations(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE)
    loop = driver.loop

    def check() -> None:
        everyone, job = loop.list_allocations(), loop.job()
        exchanged = [
            allocation
            for allocation in everyone
            if allocation.desired_description == "alloc is being updated due to job update"
            and not is_followed_by_a_running_one(loop, allocation)
            and allocation.job_create_index == job.create_index
            and not any(
                other.name == allocation.name
                and other.create_index > allocation.create_index
                and other.is_client_terminal
                for other in everyone
            )
        ]
        newest = max((each.modify_index for each in exchanged), default=0)
        together = [each for each in exchanged if each.modify_index == newest]
        assert len(together) <= MAX_PARALLEL

    loop.checks.append(check)
    for step in steps:
        driver.take_step(step)


def is_followed_by_a_running_one(loop: Loop, allocation: Allocation) -> bool:
    following = loop.replica.get(ALLOCATIONS, allocation.next_allocation) if allocation.next_allocation else None
    return following is not None and following.client_status is ClientStatus.RUNNING


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

    assert [allocation.name for allocation in driver.loop.list_allocations() if allocation.is_occupying] == []
    assert driver.loop.job().status == "dead"


@given(
    st.lists(st.sampled_from(["fails", "completes", "down", "back", "time", "obey", "migrate"]), max_size=14), st.data()
)
@settings(max_examples=25, deadline=None)
def test_completed_batch_allocations_never_run_again(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.BATCH)

    def check() -> None:
        again = [
            each.name for each in driver.loop.list_active() if each.name + f"/{each.job_version}" in driver.completed
        ]
        assert again == []

    driver.loop.checks.append(check)
    for step in steps:
        driver.take_step(step)
    driver.settle()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6), st.sampled_from([0, 1, 3]))
@settings(max_examples=20, deadline=None)
def test_a_revert_ends_at_the_stable_version(versions: list[tuple[bool, bool]], canary: int) -> None:
    """Each version is healthy or unhealthy from its first allocation on, and some are submitted before the previous one
    has ended.
    """
    loop = Loop()
    for number in range(4):
        loop.with_node(f"n{number}", cpu=1_000)
    is_well = {"0": True}

    def job(value: str) -> Job:
        update = UpdatePolicy(
            max_parallel=MAX_PARALLEL,
            min_healthy_time=SECOND_NS,
            canary=canary,
            auto_revert=True,
            auto_promote=bool(canary),
        )
        task = a_task(resources=some_resources(cpu=100, memory_mb=10), env={"VERSION": value})
        return a_job("shop", a_group("web", task, count=3, update=update, reschedule_policy=NEVER_AGAIN))

    def value_of(job_version: int) -> str:
        version = loop.replica.get(JOB_VERSIONS, "default", "shop", job_version)
        assert version is not None
        (task,) = version.groups[0].tasks or ()
        return (task.env or {})["VERSION"]

    def tell_health() -> None:
        for each in loop.list_active():
            if each.client_status is ClientStatus.RUNNING and (
                each.deployment_status is None or each.deployment_status.healthy is None
            ):
                loop.report(each, ClientStatus.RUNNING, healthy=is_well[value_of(each.job_version)])

    def settle_all() -> None:
        for _ in range(60):
            before = loop.list_allocations()
            loop.process_pending()
            loop.run_nodes(healthy=None)
            tell_health()
            loop.process_pending()
            if loop.list_allocations() == before:
                return
        raise AssertionError("it never comes to rest")

    loop.register(job("0"))
    settle_all()
    stable = "0"
    for number, (well, is_hasty) in enumerate(versions, 1):
        value = str(number)
        is_well[value] = well
        loop.register(job(value))
        loop.process_pending()
        if is_hasty and number < len(versions):
            continue  # It never became stable.
        settle_all()
        stable = value if well else stable

        assert {stable} == {value_of(each.job_version) for each in loop.list_active()} == {value_of(loop.job().version)}
        assert len(loop.list_active()) == 3

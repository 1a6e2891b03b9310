"""What always holds, whatever jobs and nodes do: hypothesis drives a small cluster through evaluate, commit, report."""

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
    """Takes the steps, and looks after each of them."""

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
        live = self.loop.live()
        return live[self.data.draw(st.integers(0, len(live) - 1))] if live else None

    def take(self, step: str) -> None:
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
                loop.tell(picked, ClientStatus.FAILED, healthy=False)
                loop.look_at()
            case "sick" if picked is not None and self.is_in_contact(picked):
                loop.tell(picked, ClientStatus.RUNNING, healthy=False)
            case "completes" if picked is not None and self.is_in_contact(picked):
                loop.tell(picked, ClientStatus.COMPLETE)
                if self.kind is JobType.BATCH:
                    self.completed[picked.name + f"/{picked.job_version}"] = None
                loop.look_at()
            case "migrate" if picked is not None:
                loop.put_led(ALLOCATIONS.build_put(replace(picked, desired_transition=DesiredTransition(migrate=True))))
                loop.look_at()
            case "down":
                loop.lose(self.data.draw(st.sampled_from(["n0", "n1"])))
            case "back":
                loop.come_back(self.data.draw(st.sampled_from(["n0", "n1"])))
            case "smaller":
                node = loop.node("n3")
                loop.put(NODES.build_put(replace(node, node_max_allocs=self.data.draw(st.sampled_from([0, 1])))))
            case "time":
                loop.pass_time(self.data.draw(st.sampled_from([1, 6, 40])))
            case "obey":
                loop.obey()
        loop.think()

    def is_in_contact(self, allocation: Allocation) -> bool:
        return self.loop.node(allocation.node_id).status is NodeStatus.READY

    def rest(self) -> None:
        """All nodes are well and do as they are told, until there is nothing more to do."""
        for number in range(4):
            self.loop.put(
                NODES.build_put(replace(self.loop.node(f"n{number}"), status=NodeStatus.READY, node_max_allocs=0))
            )
        for _ in range(12):
            self.loop.look_at()
            before = self.loop.of()
            for _ in range(3):
                self.loop.think()
                self.loop.obey()
                self.loop.room_came()
            if self.loop.of() == before:
                return
            self.loop.pass_time(40)


def room_and_use(loop: Loop, node_id: str) -> list[tuple[int, int]]:
    """What is used of what there is: MHz, MB of memory, MB of disk. Plainly, apart from the product's arithmetic."""
    node, used = loop.node(node_id), [0, 0, 0]
    for allocation in loop.of():
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

    def look() -> None:
        for number in range(4):
            assert all(used <= room for used, room in room_and_use(loop, f"n{number}"))

    loop.looks.append(look)
    for step in steps:
        driver.take(step)
    driver.rest()


@given(STEPS, st.sampled_from([JobType.SERVICE, JobType.BATCH]), st.data())
@settings(max_examples=12, deadline=None)
def test_a_port_has_one_owner(steps: list[str], kind: JobType, data: st.DataObject) -> None:
    driver = Driver(data, kind, ports=True)
    loop = driver.loop

    def look() -> None:
        owned = [
            (allocation.node_id, port.host_ip, port.value)
            for allocation in loop.of()
            if allocation.is_occupying and allocation.allocated_resources is not None
            for port in allocation.allocated_resources.shared.ports or ()
        ]
        assert sorted(set(owned)) == sorted(owned)

    loop.looks.append(look)
    for step in steps:
        driver.take(step)
    driver.rest()
    assert any(each.allocated_resources and each.allocated_resources.shared.ports for each in loop.of())


@given(STEPS, st.data())
@settings(max_examples=25, deadline=None)
def test_counts_are_reached_or_explained(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE)
    for step in steps:
        driver.take(step)
    driver.register()
    driver.rest()
    loop = driver.loop

    live, explained = loop.live(), [each for each in loop.open_evaluations() if each.failed_tg_allocs]
    deployment = loop.deployment() if driver.count else None
    tried = deployment is not None and deployment.is_awaiting_promotion
    waits = [each for each in loop.open_evaluations() if each.wait_until is not None]
    # Failed work of a deployment that was given up stays as it is until somebody says what comes next.
    is_given_up = deployment is not None and deployment.status == "failed"
    assert len(live) == driver.count or explained or tried or waits or is_given_up


@given(STEPS, st.data())
@settings(max_examples=20, deadline=None)
def test_canaries_never_exceed_what_was_asked_for(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE, canary=data.draw(st.sampled_from([0, 1, 2])))
    loop = driver.loop

    def look() -> None:
        job = loop.job()
        canaries = [
            each
            for each in loop.live()
            if each.deployment_status is not None
            and each.deployment_status.canary
            and (each.job_version, each.job_create_index) == (job.version, job.create_index)
        ]
        assert len(canaries) <= driver.canary

    loop.looks.append(look)
    for step in ["register", *steps]:
        driver.take(step)


@given(STEPS, st.data())
@settings(max_examples=20, deadline=None)
def test_at_most_max_parallel_are_down_by_our_own_doing(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.SERVICE)
    loop = driver.loop

    def look() -> None:
        everyone, job = loop.of(), loop.job()
        exchanged = [
            each
            for each in everyone
            if each.desired_description == "alloc is being updated due to job update"
            and not is_followed_by_a_running_one(loop, each)
            and each.job_create_index == job.create_index
            and not any(
                other.name == each.name and other.create_index > each.create_index and other.is_client_terminal
                for other in everyone
            )
        ]
        newest = max((each.modify_index for each in exchanged), default=0)
        together = [each for each in exchanged if each.modify_index == newest]
        assert len(together) <= MAX_PARALLEL

    loop.looks.append(look)
    for step in steps:
        driver.take(step)


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
        driver.take(step)
    driver.take("stop")
    driver.rest()

    assert [each.name for each in driver.loop.of() if each.is_occupying] == []
    assert driver.loop.job().status == "dead"


@given(
    st.lists(st.sampled_from(["fails", "completes", "down", "back", "time", "obey", "migrate"]), max_size=14), st.data()
)
@settings(max_examples=25, deadline=None)
def test_batch_work_that_completed_never_runs_again(steps: list[str], data: st.DataObject) -> None:
    driver = Driver(data, JobType.BATCH)

    def look() -> None:
        again = [each.name for each in driver.loop.live() if each.name + f"/{each.job_version}" in driver.completed]
        assert again == []

    driver.loop.looks.append(look)
    for step in steps:
        driver.take(step)
    driver.rest()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6), st.sampled_from([0, 1, 3]))
@settings(max_examples=20, deadline=None)
def test_a_revert_ends_at_the_stable_version(versions: list[tuple[bool, bool]], canary: int) -> None:
    """Each version is well or sick from its first allocation on, and some are pushed before the last one has ended."""
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
        for each in loop.live():
            if each.client_status is ClientStatus.RUNNING and (
                each.deployment_status is None or each.deployment_status.healthy is None
            ):
                loop.tell(each, ClientStatus.RUNNING, healthy=is_well[value_of(each.job_version)])

    def come_to_rest() -> None:
        for _ in range(60):
            before = loop.of()
            loop.think()
            loop.obey(healthy=None)
            tell_health()
            loop.think()
            if loop.of() == before:
                return
        raise AssertionError("it never comes to rest")

    loop.register(job("0"))
    come_to_rest()
    stable = "0"
    for number, (well, is_hasty) in enumerate(versions, 1):
        value = str(number)
        is_well[value] = well
        loop.register(job(value))
        loop.think()
        if is_hasty and number < len(versions):
            continue  # It never became stable.
        come_to_rest()
        stable = value if well else stable

        assert {stable} == {value_of(each.job_version) for each in loop.live()} == {value_of(loop.job().version)}
        assert len(loop.live()) == 3

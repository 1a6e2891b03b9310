"""What always holds, whatever jobs and nodes do: hypothesis drives a small cluster through evaluate, commit, report."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import SECOND_NS
from tests.scheduling.loop import Loop
from wharf.model.allocation import Allocation, ClientStatus, DesiredTransition
from wharf.model.job import Job, JobType
from wharf.model.network import NetworkResource, Port
from wharf.model.node import NodeStatus
from wharf.model.policies import ReschedulePolicy, UpdatePolicy
from wharf.state.tables import ALLOCATIONS, NODES

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

    def __init__(self, data: st.DataObject, kind: JobType) -> None:
        self.data, self.kind = data, kind
        self.loop = Loop()
        for number in range(4):
            self.loop.with_node(f"n{number}", cpu=1_000)
        self.version, self.count = 0, 1 if kind is JobType.SYSTEM else 3
        self.canary = data.draw(st.sampled_from([0, 0, 1, 2])) if kind is JobType.SERVICE else 0
        self.ports = data.draw(st.booleans())
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
                loop.put_led(ALLOCATIONS.put(replace(picked, desired_transition=DesiredTransition(migrate=True))))
                loop.look_at()
            case "down":
                loop.lose(self.data.draw(st.sampled_from(["n0", "n1"])))
            case "back":
                loop.come_back(self.data.draw(st.sampled_from(["n0", "n1"])))
            case "smaller":
                node = loop.node("n3")
                loop.put(NODES.put(replace(node, node_max_allocs=self.data.draw(st.sampled_from([0, 1])))))
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
            self.loop.put(NODES.put(replace(self.loop.node(f"n{number}"), status=NodeStatus.READY, node_max_allocs=0)))
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


@given(STEPS, st.data())
@settings(max_examples=25, deadline=None)
def test_counts_are_reached_or_explained_and_nothing_is_ever_over_committed(
    steps: list[str], data: st.DataObject
) -> None:
    driver = Driver(data, JobType.SERVICE)
    for step in steps:
        driver.take(step)
    driver.register()
    driver.rest()
    loop = driver.loop

    live, explained = loop.live(), [each for each in loop.open_evaluations() if each.failed_tg_allocs]
    deployment = loop.deployment() if driver.count else None
    tried = deployment is not None and deployment.awaits_promotion
    waits = [each for each in loop.open_evaluations() if each.wait_until is not None]
    # Failed work of a deployment that was given up stays as it is until somebody says what comes next.
    is_given_up = deployment is not None and deployment.status == "failed"
    assert len(live) == driver.count or explained or tried or waits or is_given_up


@given(STEPS, st.data())
@settings(max_examples=20, deadline=None)
def test_no_more_are_down_by_our_doing_than_may_be_and_canaries_never_exceed(
    steps: list[str], data: st.DataObject
) -> None:
    driver = Driver(data, JobType.SERVICE)
    loop = driver.loop

    def look() -> None:
        everyone = loop.of()
        job = loop.job()
        canaries = [
            each
            for each in loop.live()
            if each.deployment_status is not None
            and each.deployment_status.canary
            and (each.job_version, each.job_create_index) == (job.version, job.create_index)
        ]
        assert len(canaries) <= max(1, driver.canary) * bool(driver.canary)
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

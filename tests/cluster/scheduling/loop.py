"""A cluster without servers and nodes: evaluations are processed, nodes do as they are told, deployments are watched.

Every part is the real one but the nodes: those start and stop at once what they are told, unless a test says otherwise.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from tests.kit.state import SECOND_NS, AState
from wharf.cluster.controllers import deployments
from wharf.cluster.controllers.evaluation_broker import due_at_ns
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.operations.evaluations import make_evaluation, reserve_node, unblock_evaluations
from wharf.cluster.operations.nodes import reports
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.scheduling.blocked.reservation_policy import find_node_to_reserve, select_evaluations_to_reserve
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.plan import Plan, check_plan
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.cluster.scheduling.resources.usage import Usage, get_allocation_usage, get_node_capacity
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, EVALUATIONS_BY_STATUS, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation, AllocDeploymentStatus, ClientStatus
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.times import to_datetime

Look = Callable[[], None]
CHANGES_MAX = 40


class Loop(AState):
    """`looks` are called after every commit of a plan."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[Look] = [self.assert_nothing_is_over_committed]

    # -- the leader

    def process(self, evaluation: Evaluation) -> Plan | None:
        """One evaluation to its end; answers the plan as it was first made."""
        ground = SchedulerCache.from_snapshot(self.replica)
        first = plan = plan_evaluation(ground, self.replica, evaluation, self.moment)
        rest: Plan | None = plan
        while rest is not None:
            checked = check_plan(rest, self.replica, max_changes=CHANGES_MAX)
            if checked.write is not None:
                self.commit(add_derived_changes(self.replica, checked.write))
                for look in self.looks:
                    look()
            rest = checked.remaining_plan
        return first

    def due(self) -> list[Evaluation]:
        pending = self.replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING)
        due = [each for each in pending if due_at_ns(each) <= self.now_ns]
        return sorted(due, key=lambda each: (-each.priority, each.create_index))

    def think(self) -> None:
        """Everything that is due, until nothing is."""
        for _ in range(200):
            due = self.due()
            if due:
                self.process(due[0])
            elif not self.watch():
                return
        raise AssertionError("the leader never comes to rest")

    def watch(self) -> bool:
        """One step of the deployments, if one is due."""
        for deployment in self.replica.iter_all(DEPLOYMENTS):
            step = deployments.decide_next_step(self.replica, deployment.id, self.moment, max_changes=CHANGES_MAX)
            if step is not None and step.write is not None:
                self.lead(step)
                return True
        return False

    def look_at(self, job_id: str = "shop", trigger: EvaluationTrigger = EvaluationTrigger.JOB_REGISTER) -> Plan:
        """Have the job evaluated now; answers the plan."""
        evaluation = make_evaluation(self.job(job_id), self.moment, trigger)
        self.put(EVALUATIONS.build_put(evaluation))
        stored = self.replica.get(EVALUATIONS, evaluation.id)
        assert stored is not None
        plan = self.process(stored)
        assert plan is not None
        return plan

    def room_came(self) -> None:
        """What waits for room is tried again."""
        blocked = self.replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
        if blocked:
            self.commit(
                add_derived_changes(self.replica, unblock_evaluations(self.replica, list(blocked), self.moment))
            )

    def waiting(self) -> list[Evaluation]:
        """What waits for room."""
        return list(self.replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED))

    def reserve(self) -> None:
        """Who has waited too long is given a node, as the leader does it."""
        ground = SchedulerCache.from_snapshot(self.replica)
        for evaluation in select_evaluations_to_reserve(
            self.replica, ground, self.waiting(), ground.reservations.values(), self.now_ns
        ):
            node_id = find_node_to_reserve(self.replica, ground, evaluation, ground.reservations.values())
            if node_id:
                self.commit(reserve_node(self.replica, evaluation, node_id))

    def pass_time(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)

    # -- nodes

    def of(self, job_id: str = "shop") -> list[Allocation]:
        mine = [each for each in self.replica.iter_all(ALLOCATIONS) if each.job_id == job_id]
        return sorted(mine, key=lambda each: (each.create_index, each.name))

    def live(self, job_id: str = "shop") -> list[Allocation]:
        return [each for each in self.of(job_id) if not each.is_terminal]

    def tell(
        self,
        allocation: Allocation,
        status: ClientStatus,
        *,
        healthy: bool | None = None,
        successful: bool | None = None,
    ) -> Allocation:
        """A node reports on what it runs."""
        stands = self.allocation(allocation.id)
        given = stands.deployment_status
        if healthy is not None and stands.deployment_id:
            given = replace(
                given or AllocDeploymentStatus(),
                healthy=healthy,
                timestamp=to_datetime(self.now_ns),
                modify_index=WRITE_INDEX,
            )
        states = stands.task_states
        if status in (ClientStatus.COMPLETE, ClientStatus.FAILED):
            is_failed = status is ClientStatus.FAILED if successful is None else not successful
            state = TaskState(state=TaskStatus.DEAD, failed=is_failed, finished_at=to_datetime(self.now_ns))
            states = {"server": state}
        told = replace(
            stands, client_status=status, deployment_status=given, task_states=states, modify_time=self.now_ns
        )
        self.put_led(ALLOCATIONS.build_put(told))
        return self.allocation(allocation.id)

    def obey(self, *, healthy: bool | None = True) -> None:
        """Every node in contact starts what it is to start, and stops what it is to stop."""
        for allocation in list(self.replica.iter_all(ALLOCATIONS)):
            node = self.replica.get(NODES, allocation.node_id)
            if node is None or node.status is not NodeStatus.READY or allocation.is_client_terminal:
                continue
            if allocation.is_server_terminal:
                ended = [AllocationReport(id=allocation.id, client_status=ClientStatus.COMPLETE)]
                report = reports.apply_reports(
                    self.replica, node.id, ended, self.moment, is_complete=False, max_evaluations=CHANGES_MAX
                )
                self.lead(report)
            elif allocation.client_status is ClientStatus.PENDING or (
                healthy is not None and _is_health_asked_anew(allocation)
            ):
                self.tell(allocation, ClientStatus.RUNNING, healthy=healthy)

    def settle(self, *, healthy: bool | None = True) -> None:
        """Think and obey until nothing moves."""
        for _ in range(60):
            before = list(self.replica.iter_all(ALLOCATIONS))
            self.think()
            self.obey(healthy=healthy)
            self.think()
            self.room_came()
            self.think()
            if list(self.replica.iter_all(ALLOCATIONS)) == before:
                return
        raise AssertionError("the cluster never comes to rest")

    def lose(self, node_id: str, status: NodeStatus = NodeStatus.DOWN) -> None:
        """The node is silent, and its jobs are looked at."""
        self.put(NODES.build_put(replace(self.node(node_id), status=status)))
        for job in self._jobs_on(node_id):
            self.put(EVALUATIONS.build_put(make_evaluation(job, self.moment, EvaluationTrigger.NODE_UPDATE)))

    def come_back(self, node_id: str) -> None:
        self.lose(node_id, NodeStatus.READY)

    def _jobs_on(self, node_id: str) -> Iterator[Job]:
        seen: dict[tuple[str, str], None] = {}
        for allocation in self.replica.iter_all(ALLOCATIONS):
            if allocation.node_id == node_id and not allocation.is_client_terminal:
                seen[allocation.namespace, allocation.job_id] = None
        return (job for key in seen if (job := self.replica.get(JOBS, *key)) is not None)

    # -- what must hold

    def deployment(self, job_id: str = "shop") -> Deployment:
        mine = [each for each in self.replica.iter_all(DEPLOYMENTS) if each.job_id == job_id]
        return max(mine, key=lambda each: each.create_index)

    def assert_nothing_is_over_committed(self) -> None:
        by_node: dict[str, list[Allocation]] = {}
        for allocation in self.replica.iter_all(ALLOCATIONS):
            if allocation.is_occupying:
                by_node.setdefault(allocation.node_id, []).append(allocation)
        for node_id, those in by_node.items():
            node = self.replica.get(NODES, node_id)
            if node is not None:
                assert Usage.sum_usages(map(get_allocation_usage, those)).fits_in(get_node_capacity(node)), (
                    f"{node_id} is over-committed"
                )
                assert_one_owner_each(those)


def _is_health_asked_anew(allocation: Allocation) -> bool:
    """What was updated where it is has its health decided again."""
    status = allocation.deployment_status
    is_open = status is not None and status.healthy is None
    return bool(allocation.deployment_id) and is_open and allocation.client_status is ClientStatus.RUNNING


def assert_one_owner_each(allocations: Iterable[Allocation]) -> None:
    held = ExclusiveResources()
    for allocation in allocations:
        if allocation.allocated_resources is not None:
            held.add_resources(allocation.allocated_resources)
    counted = [*held.ports.values(), *held.cores.values(), *held.devices.values()]
    assert max(counted, default=1) == 1, "something has two owners"

"""A simulated cluster without servers and agents: it processes evaluations, runs nodes and advances deployments.

Everything except the nodes is production code. Nodes start and stop allocations at once unless a test says otherwise.
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
from wharf.cluster.scheduling.blocked.reservation_policy import choose_reservations
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, EVALUATIONS_BY_STATUS, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation, AllocDeploymentStatus, ClientStatus
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.resource_usage import Usage, get_allocation_usage, get_node_capacity
from wharf.contract.model.times import to_datetime

Check = Callable[[], None]
MAX_CHANGES = 40
MAX_VERSIONS = 3


class SimulatedCluster(AState):
    """A state with a leader and nodes. `checks` are called after every commit of a plan."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: list[Check] = [self.assert_nothing_is_over_committed]
        self.max_versions = MAX_VERSIONS

    # -- leader

    def process(self, evaluation: Evaluation) -> Plan | None:
        """Process one evaluation to its end and return the plan as it was first made."""
        cache = SchedulerCache.from_snapshot(self.replica)
        first = plan = plan_evaluation(cache, self.replica, evaluation, self.moment)
        remaining: Plan | None = plan
        while remaining is not None:
            checked = check_plan(remaining, self.replica, max_changes=MAX_CHANGES)
            if checked.write is not None:
                self.commit(add_derived_changes(self.replica, checked.write))
                for check in self.checks:
                    check()
            remaining = checked.remaining_plan
        return first

    def list_due(self) -> list[Evaluation]:
        """Return the pending evaluations that are due, in the order of processing."""
        pending = self.replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING)
        due = [evaluation for evaluation in pending if due_at_ns(evaluation) <= self.now_ns]
        return sorted(due, key=lambda evaluation: (-evaluation.priority, evaluation.create_index))

    def process_pending(self) -> None:
        """Process all due evaluations and deployment steps until none is left."""
        for _ in range(200):
            due = self.list_due()
            if due:
                self.process(due[0])
            elif not self.advance_deployments():
                return
        raise AssertionError("the leader does not finish")

    def advance_deployments(self) -> bool:
        """Make one deployment step. Return whether one was due."""
        for deployment in self.replica.iter_all(DEPLOYMENTS):
            step = deployments.decide_next_step(
                self.replica, deployment.id, self.moment, max_changes=MAX_CHANGES, max_versions=self.max_versions
            )
            if step is not None and step.write is not None:
                self.lead(step)
                return True
        return False

    def evaluate_job(self, job_id: str = "shop", trigger: EvaluationTrigger = EvaluationTrigger.JOB_REGISTER) -> Plan:
        """Evaluate the job now and return the plan."""
        evaluation = make_evaluation(self.job(job_id), self.moment, trigger)
        self.put(EVALUATIONS.build_put(evaluation))
        stored = self.replica.get(EVALUATIONS, evaluation.id)
        assert stored is not None
        plan = self.process(stored)
        assert plan is not None
        return plan

    def retry_blocked(self) -> None:
        """Unblock all blocked evaluations."""
        blocked = self.replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
        if blocked:
            self.commit(
                add_derived_changes(self.replica, unblock_evaluations(self.replica, list(blocked), self.moment))
            )

    def list_blocked(self) -> list[Evaluation]:
        """Return the blocked evaluations."""
        return list(self.replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED))

    def reserve_nodes(self) -> None:
        """Reserve nodes for evaluations that have waited too long, as the leader does."""
        cache = SchedulerCache.from_snapshot(self.replica)
        blocked, reserved = self.list_blocked(), cache.reservations.values()
        for evaluation, node_id in choose_reservations(self.replica, cache, blocked, reserved, self.now_ns, set()):
            if node_id:
                self.commit(reserve_node(self.replica, evaluation, node_id))

    def pass_time(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)

    # -- nodes

    def list_allocations(self, job_id: str = "shop") -> list[Allocation]:
        """Return all allocations of the job, oldest first."""
        job_allocations = [
            allocation for allocation in self.replica.iter_all(ALLOCATIONS) if allocation.job_id == job_id
        ]
        return sorted(job_allocations, key=lambda allocation: (allocation.create_index, allocation.name))

    def list_active(self, job_id: str = "shop") -> list[Allocation]:
        """Return the active allocations of the job."""
        return [allocation for allocation in self.list_allocations(job_id) if not allocation.is_terminal]

    def report(
        self,
        allocation: Allocation,
        status: ClientStatus,
        *,
        healthy: bool | None = None,
        successful: bool | None = None,
    ) -> Allocation:
        """Store what a node reports about the allocation, and return the stored record."""
        current = self.allocation(allocation.id)
        deployment_status = current.deployment_status
        if healthy is not None and current.deployment_id:
            deployment_status = replace(
                deployment_status or AllocDeploymentStatus(),
                healthy=healthy,
                timestamp=to_datetime(self.now_ns),
                modify_index=WRITE_INDEX,
            )
        states = current.task_states
        if status in (ClientStatus.COMPLETE, ClientStatus.FAILED):
            is_failed = status is ClientStatus.FAILED if successful is None else not successful
            now = to_datetime(self.now_ns)
            state = TaskState(state=TaskStatus.DEAD, failed=is_failed, started_at=now, finished_at=now)
            states = {"server": state}
        reported = replace(
            current,
            client_status=status,
            deployment_status=deployment_status,
            task_states=states,
            modify_time=self.now_ns,
        )
        self.put_led(ALLOCATIONS.build_put(reported))
        return self.allocation(allocation.id)

    def run_nodes(self, *, healthy: bool | None = True) -> None:
        """Let every connected node start pending allocations and end stopping ones."""
        for allocation in list(self.replica.iter_all(ALLOCATIONS)):
            node = self.replica.get(NODES, allocation.node_id)
            if node is None or node.status is not NodeStatus.READY or allocation.is_client_terminal:
                continue
            if allocation.is_server_terminal:
                ended = [AllocationReport(id=allocation.id, client_status=ClientStatus.COMPLETE)]
                report = reports.apply_reports(
                    self.replica, node.id, ended, self.moment, is_complete=False, max_evaluations=MAX_CHANGES
                )
                self.lead(report)
            elif allocation.client_status is ClientStatus.PENDING or (
                healthy is not None and _needs_health_report(allocation)
            ):
                self.report(allocation, ClientStatus.RUNNING, healthy=healthy)

    def settle(self, *, healthy: bool | None = True) -> None:
        """Process evaluations and run nodes until nothing changes."""
        for _ in range(60):
            before = list(self.replica.iter_all(ALLOCATIONS))
            self.process_pending()
            self.run_nodes(healthy=healthy)
            self.process_pending()
            self.retry_blocked()
            self.process_pending()
            if list(self.replica.iter_all(ALLOCATIONS)) == before:
                return
        raise AssertionError("the cluster does not settle")

    def lose_node(self, node_id: str, status: NodeStatus = NodeStatus.DOWN) -> None:
        """Set the node's status and create evaluations for its jobs."""
        self.put(NODES.build_put(replace(self.node(node_id), status=status)))
        for job in self._jobs_on(node_id):
            self.put(EVALUATIONS.build_put(make_evaluation(job, self.moment, EvaluationTrigger.NODE_UPDATE)))

    def reconnect_node(self, node_id: str) -> None:
        self.lose_node(node_id, NodeStatus.READY)

    def _jobs_on(self, node_id: str) -> Iterator[Job]:
        seen: dict[tuple[str, str], None] = {}
        for allocation in self.replica.iter_all(ALLOCATIONS):
            if allocation.node_id == node_id and not allocation.is_client_terminal:
                seen[allocation.namespace, allocation.job_id] = None
        return (job for key in seen if (job := self.replica.get(JOBS, *key)) is not None)

    # -- invariants

    def deployment(self, job_id: str = "shop") -> Deployment:
        """Return the newest deployment of the job."""
        job_deployments = [
            deployment for deployment in self.replica.iter_all(DEPLOYMENTS) if deployment.job_id == job_id
        ]
        return max(job_deployments, key=lambda deployment: deployment.create_index)

    def assert_nothing_is_over_committed(self) -> None:
        """Assert that the allocations of each node fit on it and share no port, core or device."""
        by_node: dict[str, list[Allocation]] = {}
        for allocation in self.replica.iter_all(ALLOCATIONS):
            if allocation.is_occupying:
                by_node.setdefault(allocation.node_id, []).append(allocation)
        for node_id, allocations in by_node.items():
            node = self.replica.get(NODES, node_id)
            if node is not None:
                assert Usage.sum_usages(map(get_allocation_usage, allocations)).fits_in(get_node_capacity(node)), (
                    f"{node_id} is over-committed"
                )
                assert_one_owner_each(allocations)


def _needs_health_report(allocation: Allocation) -> bool:
    """Return whether the allocation was updated in place and its health must be reported again."""
    status = allocation.deployment_status
    is_open = status is not None and status.healthy is None
    return bool(allocation.deployment_id) and is_open and allocation.client_status is ClientStatus.RUNNING


def assert_one_owner_each(allocations: Iterable[Allocation]) -> None:
    """Assert that no port, core or device is in use twice."""
    in_use = ExclusiveResources()
    for allocation in allocations:
        if allocation.allocated_resources is not None:
            in_use.add_resources(allocation.allocated_resources)
    counted = [*in_use.ports.values(), *in_use.cores.values(), *in_use.devices.values()]
    assert max(counted, default=1) == 1, "a port, core or device is in use twice"

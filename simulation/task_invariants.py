"""Invariants of running tasks: nodes run the tasks that servers assigned, and no others. Checked during a run and at its end."""

from typing import Final

from simulation.cluster import Cluster, NodeHost
from simulation.core_node import CoreNode
from simulation.record_history import RecordHistory
from simulation.task_runs import TaskRun, get_hook, is_sidecar
from simulation.timeline import InvariantViolation
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.groups import LifecycleHook, Task

MAX_STOP_S: Final = 60.0
"""How long a stopping task may run: its kill timeout, a first kill that fails, and a second one."""


class TaskInvariants:
    """Compares the tasks of simulated machines with the state of the servers."""

    def __init__(self, cluster: Cluster, history: RecordHistory) -> None:
        self._cluster = cluster
        self._history = history
        self._stopping_since_s: dict[str, float] = {}
        """Since when a run continues although its node stops it or does not know it."""

    def check_stopping_tasks(self) -> None:
        """Raise `InvariantViolation` if a task runs too long after it should have stopped."""
        now_s = self._cluster.loop.time()
        stopping: dict[str, float] = {}
        for host in self._cluster.nodes:
            if host.machine is None or not host.is_alive or host.process is None or host.process.is_paused:
                continue
            for run in host.machine.list_alive_runs():
                if not self._should_stop(host, run):
                    continue
                since_s = max(self._stopping_since_s.get(run.run, now_s), host.machine.steady_since_s)
                stopping[run.run] = since_s
                if now_s - since_s > MAX_STOP_S and not host.machine.disk.is_full:
                    raise InvariantViolation(
                        f"{run.run} of {run.task} should have ended {now_s - since_s:.0f} s ago and still runs on {host.name}",
                        run.allocation_id, host.name,
                    )  # fmt: skip
        self._stopping_since_s = stopping

    @staticmethod
    def _should_stop(host: NodeHost, run: TaskRun) -> bool:
        """Return whether the node stops the run, or does not know its allocation."""
        assert isinstance(host.node, CoreNode), "only core nodes run tasks"
        managed = host.node.allocations.find(run.allocation_id)
        if managed is None:
            return True
        return managed.record.is_to_stop and get_hook(_task(run)) != LifecycleHook.POSTSTOP

    def check_running_tasks(self) -> None:
        """Compare running tasks with the state of the servers, in a steady cluster."""
        replica = self._history.replica
        for host in self._cluster.nodes:
            if host.machine is None or host.node is None:
                continue
            alive = host.machine.list_alive_runs()
            for run in alive:
                allocation = replica.get(ALLOCATIONS, run.allocation_id)
                if allocation is None or allocation.node_id != host.node.id or not _should_run(allocation):
                    raise InvariantViolation(
                        f"{run.run} of {run.task} runs on {host.name}, and no allocation requires it", run.allocation_id
                    )
            for allocation in replica.list_by_index(ALLOCATIONS_ON_NODE, host.node.id):
                if _should_run(allocation):
                    _require_tasks(allocation, [run for run in alive if run.allocation_id == allocation.id])


def _require_tasks(allocation: Allocation, alive: list[TaskRun]) -> None:
    """Require that each long-running task of the allocation runs exactly once."""
    if not alive:
        raise InvariantViolation(
            f"{allocation.id} is reported as running on {allocation.node_name}, and none of its tasks runs",
            allocation.id,
        )
    for task in alive[0].group.tasks or ():
        count = sum(run.task == task.name for run in alive)
        lasts = not get_hook(task) or is_sidecar(task)
        if count > 1 or (lasts and count == 0):
            raise InvariantViolation(
                f"task {task.name} of {allocation.id} runs {count} times on {allocation.node_name}", allocation.id
            )


def _should_run(allocation: Allocation) -> bool:
    return allocation.desired_status is DesiredStatus.RUN and allocation.client_status is ClientStatus.RUNNING


def _task(run: TaskRun) -> Task:
    return next(task for task in run.group.tasks or () if task.name == run.task)

"""What must hold between the machines of a cluster and what its nodes were told: looked at now and then, and at rest."""

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
"""What was told to stop: its kill timeout, a kill that it clings against, and the next one."""


class TaskInvariants:
    def __init__(self, cluster: Cluster, history: RecordHistory) -> None:
        self._cluster = cluster
        self._witness = history
        self._doomed_since_s: dict[str, float] = {}
        """Runs that go on although their node knows that they are to end, or knows nothing of them."""

    def check_stopping_tasks(self) -> None:
        now_s = self._cluster.loop.time()
        doomed: dict[str, float] = {}
        for host in self._cluster.nodes:
            if host.machine is None or not host.is_alive or host.process is None or host.process.is_paused:
                continue
            for play in host.machine.list_alive_runs():
                if not self._is_doomed(host, play):
                    continue
                since_s = max(self._doomed_since_s.get(play.run, now_s), host.machine.steady_since_s)
                doomed[play.run] = since_s
                if now_s - since_s > MAX_STOP_S and not host.machine.disk.is_full:
                    raise InvariantViolation(
                        f"{play.run} of {play.task} was to end {now_s - since_s:.0f} s ago and runs on {host.name}",
                        play.allocation_id, host.name,
                    )  # fmt: skip
        self._doomed_since_s = doomed

    @staticmethod
    def _is_doomed(host: NodeHost, play: TaskRun) -> bool:
        assert isinstance(host.node, CoreNode), "only those have a ground"
        work = host.node.allocation_manager.find(play.allocation_id)
        if work is None:
            return True
        return work.record.is_to_stop and get_hook(_task(play)) != LifecycleHook.POSTSTOP

    def check_running_tasks(self) -> None:
        """When all has come to rest."""
        replica = self._witness.replica
        for host in self._cluster.nodes:
            if host.machine is None or host.node is None:
                continue
            alive = host.machine.list_alive_runs()
            for play in alive:
                known = replica.get(ALLOCATIONS, play.allocation_id)
                if known is None or known.node_id != host.node.id or not _is_to_run(known):
                    raise InvariantViolation(
                        f"{play.run} of {play.task} runs on {host.name}; nobody wants it", play.allocation_id
                    )
            for allocation in replica.list_by_index(ALLOCATIONS_ON_NODE, host.node.id):
                if _is_to_run(allocation):
                    _require_tasks(allocation, [each for each in alive if each.allocation_id == allocation.id])


def _require_tasks(allocation: Allocation, alive: list[TaskRun]) -> None:
    """Each of its lasting tasks runs, once."""
    if not alive:
        raise InvariantViolation(
            f"{allocation.id} is told as running on {allocation.node_name}, and nothing of it runs", allocation.id
        )
    for task in alive[0].group.tasks or ():
        count = sum(play.task == task.name for play in alive)
        lasts = not get_hook(task) or is_sidecar(task)
        if count > 1 or (lasts and count == 0):
            raise InvariantViolation(
                f"task {task.name} of {allocation.id} runs {count} times on {allocation.node_name}", allocation.id
            )


def _is_to_run(allocation: Allocation) -> bool:
    return allocation.desired_status is DesiredStatus.RUN and allocation.client_status is ClientStatus.RUNNING


def _task(play: TaskRun) -> Task:
    return next(task for task in play.group.tasks or () if task.name == play.task)

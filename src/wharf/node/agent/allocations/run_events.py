"""Applies what drivers report about runs to the allocations: the `Watcher` of all drivers of the node."""

from collections.abc import Callable

from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.core import events
from wharf.node.core.outcome import Outcome


class RunEvents:
    """Receives the drivers' reports about runs, and applies each as an event to the allocation of the run.

    A run is one start of a task.
    """

    def __init__(self, manager: AllocationManager, on_unknown_end: Callable[[str], None]) -> None:
        """`on_unknown_end` is called with the name of an ended run that no task waits for."""
        self._manager = manager
        self._table = manager.table
        self._on_unknown_end = on_unknown_end

    def on_begun(self, run: str) -> None:
        """Apply the driver's report that a run has started; ignored if the run's allocation is unknown."""
        if (found := self._table.find_run(run)) is not None:
            allocation, task, number = found
            self._manager.handle_event(allocation.record.id, events.TaskStarted(task, number))

    def on_refused(self, run: str, reason: str) -> None:
        """Apply the driver's report that it could not start a run, and have the driver delete the run.

        Ignored if the run's allocation is unknown.
        """
        if (found := self._table.find_run(run)) is not None:
            allocation, task, number = found
            self._manager.tasks.find_driver(allocation, task).forget(run)
            self._manager.handle_event(allocation.record.id, events.TaskStartFailed(task, number, reason))

    def on_said(self, run: str, message: str) -> None:
        """Add a driver's message about a run to the history of its task."""
        if (found := self._table.find_run(run)) is not None:
            allocation, task, _ = found
            event = events.TaskEventOccurred(task, TaskEventType.DRIVER, details={"driver_message": message})
            self._manager.handle_event(allocation.record.id, event)

    def on_ended(self, run: str, outcome: Outcome) -> None:
        """Apply the outcome of an ended run; once it is on the disk, have the driver delete the run.

        A run that no task waits for is passed to `on_unknown_end` instead.
        """
        if not self.is_current_run(run):
            self._on_unknown_end(run)
        elif (found := self._table.find_run(run)) is not None:
            allocation, task, number = found
            driver = self._manager.tasks.find_driver(allocation, task)
            self._manager.handle_event(allocation.record.id, events.TaskEnded(task, number, outcome))
            self.run_when_stored(lambda: driver.forget(run))

    def is_current_run(self, run: str) -> bool:
        """Return whether this is the latest run of its task and its end was not reported yet."""
        return self._table.is_current_run(run)

    def run_when_stored(self, action: Callable[[], None]) -> None:
        """Call `action`, such as the cleanup of a run, once all journal entries until now are on the disk."""
        self._manager.tasks.run_when_stored(action)

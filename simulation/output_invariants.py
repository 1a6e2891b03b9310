"""Invariants of text outputs: what a program wrote is stored with the result, never changes, and reaches the steps after it."""

from collections.abc import Mapping

from simulation.array_invariants import parse_element
from simulation.record_history import ObservedBatch, RecordHistory
from simulation.step_texts import declares_texts, find_texts, write_texts
from simulation.task_runs import TaskRun, TaskRunLog
from simulation.timeline import InvariantViolation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, STEP_OUTPUTS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import ElementOutputs, StepOutputs

StepTexts = Mapping[str, Mapping[str, str]]
"""Texts by the names of step and text."""


class OutputInvariants:
    """The checks of text outputs. The counts show that the checks had something to do."""

    def __init__(self, history: RecordHistory, task_runs: TaskRunLog) -> None:
        self._history = history
        self._task_runs = task_runs
        self._due_texts: dict[str, StepTexts] = {}
        """The stored texts of the steps that an allocation needs, as they were when it was placed."""
        self.stored_count = self.received_count = 0
        history.batch_checks += [self.check_stored, self.check_success, self.record_placed]
        task_runs.start_checks.append(self.check_received)

    def check_stored(self, observed: ObservedBatch) -> None:
        """Require that stored texts never change, and that new ones are those that an allocation of the batch wrote."""
        ended = [each.new for each in observed.changes if each.table == ALLOCATIONS.name and each.new is not None]
        for changed in observed.changes:
            stored: StepOutputs | None = changed.new
            if changed.table != STEP_OUTPUTS.name or stored is None:
                continue
            former = changed.old.elements if changed.old is not None else ()
            if stored.elements[: len(former)] != former:
                raise InvariantViolation(
                    f"the texts of step {stored.group} of {stored.job_id} changed at {observed.batch.index}: {former}, "
                    f"then {stored.elements}",
                    stored.job_id,
                )
            for element in stored.elements[len(former) :]:
                self.stored_count += 1
                if not any(_wrote(allocation, stored, element) for allocation in ended):
                    raise InvariantViolation(
                        f"step {stored.group} of {stored.job_id} has the texts {element} at {observed.batch.index}, and no "
                        "allocation that ends then wrote them",
                        stored.job_id,
                    )

    def check_success(self, observed: ObservedBatch) -> None:
        """Require that the texts of a program that ran are stored when its allocation has ended with success."""
        replica = self._history.replica
        for changed in observed.changes:
            allocation: Allocation | None = changed.new
            if changed.table != ALLOCATIONS.name or allocation is None or allocation.array_result != "succeeded":
                continue
            was_known = changed.old is not None and changed.old.array_result == allocation.array_result
            job, group = _find_group(replica, allocation)
            if was_known or job is None or not declares_texts(group) or not self._has_run(allocation.id):
                continue
            stored = replica.get(
                STEP_OUTPUTS, allocation.namespace, allocation.job_id, allocation.array_attempt, allocation.task_group
            )
            index = parse_element(allocation)
            if not any(each.index == index for each in (stored.elements if stored is not None else ())):
                raise InvariantViolation(
                    f"{allocation.name} succeeded at {observed.batch.index}, and its texts are not stored",
                    allocation.job_id, allocation.id,
                )  # fmt: skip

    def _has_run(self, allocation_id: str) -> bool:
        return bool(self._task_runs.list_task_runs(allocation_id, "task"))

    def record_placed(self, observed: ObservedBatch) -> None:
        """Record the texts that the program of a placed allocation must receive."""
        replica = self._history.replica
        for changed in observed.changes:
            placed: Allocation | None = changed.new
            if changed.table != ALLOCATIONS.name or changed.old is not None or placed is None:
                continue
            job, group = _find_group(replica, placed)
            if job is not None and group is not None and group.depends and placed.array_attempt:
                self._due_texts[placed.id] = _collect_texts(replica, job, group, parse_element(placed))

    def check_received(self, started: TaskRun, _runs: Mapping[str, Mapping[str, list[TaskRun]]]) -> None:
        """Require that a program receives the stored texts of the steps that its step needs."""
        due = self._due_texts.get(started.allocation_id, {})
        if self._history.replica.get(ALLOCATIONS, started.allocation_id) is None:
            return  # A restore undid it.
        for step, texts in due.items():
            received = started.step_texts.get(step, {})
            self.received_count += 1
            if received != texts:
                raise InvariantViolation(
                    f"{started.run} of {started.allocation_id} receives {dict(received)} from step {step}; stored are {dict(texts)}",
                    started.allocation_id,
                )


def _wrote(allocation: Allocation, stored: StepOutputs, element: ElementOutputs) -> bool:
    """Return whether an allocation has ended and its program wrote these texts."""
    return (
        (allocation.namespace, allocation.job_id, allocation.task_group, allocation.array_attempt)
        == (stored.namespace, stored.job_id, stored.group, stored.attempt)
        and allocation.client_status in (ClientStatus.COMPLETE, ClientStatus.FAILED)
        and parse_element(allocation) == element.index
        and element.texts == write_texts(allocation.id)
    )


def _find_group(replica: Replica, allocation: Allocation) -> tuple[Job | None, TaskGroup | None]:
    """Return the job and the group of an allocation; `None` if another job has its ID now."""
    job = replica.get(JOBS, allocation.namespace, allocation.job_id)
    if job is None or job.create_index != allocation.job_create_index:
        return None, None
    return job, job.find_group(allocation.task_group)


def _collect_texts(replica: Replica, job: Job, group: TaskGroup, index: int) -> dict[str, dict[str, str]]:
    """Return the stored texts of the steps that a step names in its needs. A text that was not written is empty."""
    found: dict[str, dict[str, str]] = {}
    for need in group.depends or ():
        needed = job.find_group(need.on)
        if needed is None or not declares_texts(needed) or needed.outputs is None:
            continue
        is_single = needed.array is None or needed.array.element_count == 1
        if is_single or need.each:
            texts = find_texts(replica, job, need.on, 0 if is_single else index)
            found[need.on] = dict.fromkeys(needed.outputs.text or (), "") | dict(texts)
    return found

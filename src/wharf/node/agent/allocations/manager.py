"""Drives the core for every allocation of the node: hands it what happens, writes down what came of it, and has the
drivers do what it says. It decides nothing.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from msgspec.structs import replace

from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.logs import pack_log_tails
from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.wire.nodes import messages
from wharf.node.agent.allocations.allocation import TaskHooks
from wharf.node.agent.allocations.journal import (
    DeletedAllocation,
    NodeJournal,
    RestoredAllocation,
    SettledAllocation,
    StoredAssignment,
    StoredProgress,
)
from wharf.node.agent.fingerprint.host_ports import find_taken_port, is_requested_port
from wharf.node.core import events as on
from wharf.node.core.allocation import (
    Transition,
    apply_event,
    find_next_deadline_s,
    list_interrupted_actions,
    receive_allocation,
    reset_after_boot,
)
from wharf.node.core.allocation_spec import AllocationSpec, build_allocation_spec
from wharf.node.core.clock import ClockReading, find_earliest
from wharf.node.core.garbage_collection import (
    CollectionLimits,
    DiskUsage,
    EndedAllocation,
    choose_allocations_to_remove,
)
from wharf.node.core.outcome import Outcome
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep
from wharf.node.drivers.port import CannotStart, Driver, TaskOrder, View
from wharf.node.files import ReadOnlyFolder
from wharf.node.files.streams import read_log_tail
from wharf.node.migration.download import MigrationDownloader
from wharf.node.migration.predecessors import PredecessorTracker, find_ephemeral_disk
from wharf.node.tasks.context import TaskSetupError, map_task_folders
from wharf.node.tasks.environment import TaskHost, build_environment
from wharf.node.tasks.folders import AllocationFolders, TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues, resolve_document
from wharf.node.tasks.resources import build_granted_resources, build_labels
from wharf.world import World

log = logging.getLogger(__name__)

LOG_STREAMS: Final = ("stdout", "stderr")
EMPTY_SPEC: Final = AllocationSpec(tasks=())
FORGET_TIMEOUT_S: Final = 5.0
"""For so long it is waited for a disk that cannot keep the ends of tasks, when the agent ends with all of them."""


class ManagedAllocation:
    """One allocation."""

    def __init__(self, kept: StoredAssignment, plan: AllocationSpec, record: AllocationRecord) -> None:
        self.stored_assignment = kept
        self.spec = plan
        self.record = record
        self.log_tails: bytes | None = None
        """When it is over: the ends of its tasks' logs, packed. None: not read yet, or told."""

    @property
    def assignment(self) -> messages.Assignment:
        return self.stored_assignment.order

    @property
    def job(self) -> Job:
        assert self.assignment.job is not None
        return self.assignment.job

    def task(self, name: str) -> Task:
        group = self.job.find_group(self.assignment.allocation.task_group)
        assert group is not None
        return next(task for task in group.tasks or () if task.name == name)

    def make_run_name(self, task: str, run: int) -> str:
        """The name of one start: it is never used again."""
        number = [each.name for each in self.spec.tasks].index(task)
        return f"{self.record.id}.{number}.{run}"


class AllocationManager:
    def __init__(
        self,
        world: World,
        journal: NodeJournal,
        folders: AllocationFolders,
        drivers: Mapping[str, Driver],
        *,
        host: TaskHost,
        reference_values: ReferenceValues,
        task_hooks: TaskHooks,
        on_change: Callable[[str], None],
        on_port_taken: Callable[[int], None] = lambda _port: None,
        max_kill_timeout_s: float,
        log_tail_bytes: int = 0,
        downloader: MigrationDownloader | None = None,
    ) -> None:
        self._world = world
        self._journal = journal
        self._folders = folders
        self._drivers = drivers
        self._place = host
        self.reference_values = reference_values
        """Of the node, for what is started from now on."""
        self._upkeep = task_hooks
        self._preparing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._on_change = on_change
        self._on_taken_port = on_port_taken
        self._max_kill_timeout_s = max_kill_timeout_s
        self._log_tail_bytes = log_tail_bytes
        self._of_agent = dict(os.environ)  # Each look at the real one decodes all of it.
        self._works: dict[str, ManagedAllocation] = {}
        self._live: dict[str, ManagedAllocation] = {}
        """Those that are not over."""
        self._settled: dict[str, int] = {}
        """Those that are over, as servers know: the index of their orders. They are many; the journal has the rest."""
        self._formers = PredecessorTracker(world, self, downloader)
        self._doing: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._is_ending = False
        self._left_out: dict[str, int] = {}
        """What came when nothing was to begin any more: the index of its orders."""
        self._silent_since_s: float | None = None

    # -- what servers say (the port `Work` of `servers`)

    def find_assignment_index(self, allocation_id: str) -> int | None:
        if (index := self._settled.get(allocation_id)) is not None:
            return index
        work = self._works.get(allocation_id)
        return work.assignment.allocation.alloc_modify_index if work is not None else self._left_out.get(allocation_id)

    def list_allocations(self) -> list[str]:
        return [*self._settled, *(id for id, work in self._works.items() if not work.stored_assignment.is_gone)]

    def has_allocation(self, allocation_id: str) -> bool:
        work = self._works.get(allocation_id)
        return allocation_id in self._settled or (work is not None and not work.stored_assignment.is_gone)

    def apply_assignment(self, order: messages.Assignment) -> None:
        wanted = order.allocation
        if wanted.id in self._settled:
            self._take_settled(wanted)
            return
        known = self._works.get(wanted.id)
        if known is None and self._is_ending:
            self._left_out[wanted.id] = wanted.alloc_modify_index  # Servers tell of it again when the node is back.
            return
        plan = self._plan_of(order)
        if known is not None and [task.name for task in known.spec.tasks] != [task.name for task in plan.tasks]:
            # Its job was purged, or is another one by now: what runs is not what is wanted, and ends as its own job says.
            order, plan = replace(order, job=known.assignment.job), known.spec
        kept = StoredAssignment(wanted.id, order)
        if known is None:
            self._journal.append_entry(kept)
            if wanted.desired_status is not DesiredStatus.RUN or wanted.client_status.is_terminal:
                # It came to an end before this node heard of it, or in a life of the node that is forgotten.
                turned = apply_event(AllocationRecord(wanted.id), EMPTY_SPEC, on.StopRequested(), self._now())
                self._put(ManagedAllocation(kept, EMPTY_SPEC, turned.record), turned)
            else:
                waits = self._formers.should_wait(order)
                turned = receive_allocation(wanted.id, plan, self._now(), is_waiting_for_predecessor=waits)
                self._put(ManagedAllocation(kept, plan, turned.record), turned)
            return
        is_judged_anew = known.assignment.allocation.deployment_id != wanted.deployment_id
        known.stored_assignment, known.spec = kept, plan
        if wanted.desired_status is not DesiredStatus.RUN:
            marks = wanted.desired_transition
            self.handle_event(
                wanted.id, on.StopRequested(skips_delays=marks is not None and bool(marks.no_shutdown_delay))
            )
        elif is_judged_anew:
            self.handle_event(wanted.id, on.HealthWatchStarted())
        # After what follows from it: an order that is remembered is not given again.
        self._journal.append_entry(kept)

    def _take_settled(self, wanted: messages.AssignedAllocation) -> None:
        settled = self._journal.read_settled(wanted.id)
        self._keep_settled(
            replace(settled, index=wanted.alloc_modify_index, client_status=wanted.client_status), wanted.id
        )
        if not wanted.client_status.is_terminal:  # A log that was restored does not know of its end any more.
            self._on_change(wanted.id)

    def _keep_settled(self, settled: SettledAllocation, id: str) -> None:
        """`id`: the same object for all who know the allocation, where it may be: there are many."""
        self._journal.append_entry(settled)
        self._settled[id] = settled.index

    def _note_life(self, work: ManagedAllocation) -> None:
        id = work.record.id
        if work.record.is_over:
            self._live.pop(id, None)
        else:
            self._live[id] = work

    def drop_allocation(self, allocation_id: str) -> None:
        if self._settled.pop(allocation_id, None) is not None:
            self._forget_files(allocation_id)
            return
        work = self._works[allocation_id]
        work.stored_assignment = StoredAssignment(allocation_id, work.assignment, is_gone=True)
        self.handle_event(allocation_id, on.StopRequested())
        if allocation_id in self._works:
            self._journal.append_entry(work.stored_assignment)
        self._forget_if_over(work)

    def build_update(self, allocation_id: str) -> messages.AllocationUpdate:
        work = self.find(allocation_id)
        assert work is not None, "only of what is known somebody asks"
        record = work.record
        if not record.tasks and work.assignment.allocation.client_status.is_terminal:
            status = work.assignment.allocation.client_status
            status = status if status is not ClientStatus.LOST else ClientStatus.COMPLETE
        else:
            status = record.status
        return messages.AllocationUpdate(
            id=allocation_id,
            client_status=status,
            client_description=record.description if record.tasks else "",
            task_states={task.name: task.to_task_state() for task in record.tasks} if record.tasks else None,
            deployment_status=(
                AllocDeploymentStatus(healthy=record.is_healthy) if record.is_healthy is not None else None
            ),
            log_tails=self._log_tails(work),
            services=self._upkeep.list_services(work),
            network_status=self._upkeep.find_network_status(allocation_id),
        )

    async def wait_until_stored(self) -> None:
        await self._journal.wait_until_synced()

    def on_end_acknowledged(self, allocation_id: str) -> None:
        work = self._works.get(allocation_id)
        if work is not None and work.record.is_over:
            del self._works[allocation_id]
            wanted = work.assignment.allocation
            settled = SettledAllocation(work.record, wanted.alloc_modify_index, wanted.client_status)
            self._keep_settled(settled, work.record.id)
            self._upkeep.release(work.record.id, tuple(task.name for task in work.record.tasks))

    def _log_tails(self, work: ManagedAllocation) -> bytes:
        """Read before the files are gone. Once they are told nothing is said without files: servers keep what they have."""
        if not work.record.is_over or not work.record.tasks:
            work.log_tails = None
            return b""
        if work.log_tails is None and not self._folders.get_allocation_folder(work.record.id).is_dir():
            return b""
        if work.log_tails is None:
            folder = ReadOnlyFolder(self._folders.get_allocation_folder(work.record.id))
            length = self._log_tail_bytes
            work.log_tails = pack_log_tails(
                {
                    task.name: {stream: read_log_tail(folder, task.name, stream, length) for stream in LOG_STREAMS}
                    for task in work.record.tasks
                    if length
                }
            )
        return work.log_tails

    def on_server_contact(self) -> None:
        if self._silent_since_s is not None:
            self._silent_since_s = None
            self._happen_to_all(on.ServerContactRestored())

    def on_server_silence(self, since_s: float) -> None:
        if self._silent_since_s is None:
            self._silent_since_s = since_s
            self._happen_to_all(on.ServerContactLost(since_s))

    def _happen_to_all(self, event: on.AllocationEvent) -> None:
        for id, work in list(self._works.items()):
            if not work.record.is_over and work.spec.stop_after_contact_lost_s is not None:
                self.handle_event(id, event)

    # -- what drivers say (the port `Watcher`)

    def on_begun(self, run: str) -> None:
        if (found := self._find(run)) is not None:
            work, task, number = found
            self.handle_event(work.record.id, on.TaskStarted(task, number))

    def on_refused(self, run: str, why: str) -> None:
        if (found := self._find(run)) is not None:
            work, task, number = found
            self.find_driver(work, task).forget(run)
            self.handle_event(work.record.id, on.TaskStartFailed(task, number, why))

    def on_said(self, run: str, message: str) -> None:
        if (found := self._find(run)) is not None:
            work, task, _ = found
            said = on.TaskEventOccurred(task, TaskEventType.DRIVER, details={"driver_message": message})
            self.handle_event(work.record.id, said)

    def on_ended(self, run: str, outcome: Outcome) -> None:
        if (found := self._find(run)) is not None:
            work, task, number = found
            driver = self.find_driver(work, task)
            self.handle_event(work.record.id, on.TaskEnded(task, number, outcome))
            self.run_when_stored(lambda: driver.forget(run))

    # -- what people ask

    def find(self, allocation_id: str) -> ManagedAllocation | None:
        """Of what is settled: what is remembered of it, without its job."""
        if allocation_id not in self._settled:
            return self._works.get(allocation_id)
        settled = self._journal.read_settled(allocation_id)
        wanted = messages.AssignedAllocation(
            id=allocation_id, alloc_modify_index=settled.index, client_status=settled.client_status
        )
        return ManagedAllocation(
            StoredAssignment(allocation_id, messages.Assignment(allocation=wanted)), EMPTY_SPEC, settled.record
        )

    def list_live(self) -> list[ManagedAllocation]:
        return list(self._live.values())

    def list_ended(self) -> list[str]:
        """Allocations of which nothing runs any more."""
        return [*self._settled, *(id for id, work in self._works.items() if work.record.is_over)]

    def get_environment_and_folders(self, work: ManagedAllocation, name: str) -> tuple[dict[str, str], TaskFolders]:
        """The variables and the folders of a task."""
        id = work.record.id
        folders = self._folders.get_task_folders(id, name)
        wanted = work.assignment.allocation
        task, view = work.task(name), self.find_driver(work, name).view
        environment = build_environment(
            wanted,
            work.job,
            task,
            map_task_folders(folders, view),
            self._place,
            self.reference_values,
            agent_environment=self._of_agent if view is not View.OWN else {},
            network=self._upkeep.find_network_status(id),
        )
        return environment | self._upkeep.build_environment(id, name), folders

    def find_driver(self, work: ManagedAllocation, name: str) -> Driver:
        driver = work.task(name).driver
        return self._drivers.get(driver) or self._drivers[""]

    def _find(self, run: str) -> tuple[ManagedAllocation, str, int] | None:
        allocation_id, number, count = run.rsplit(".", 2)
        work = self._works.get(allocation_id)
        if work is None or int(number) >= len(work.spec.tasks):
            return None
        return work, work.spec.tasks[int(number)].name, int(count)

    # -- the core

    def handle_event(self, allocation_id: str, event: on.AllocationEvent) -> None:
        if allocation_id in self._settled:
            return  # Nothing happens to it any more.
        work = self._works[allocation_id]
        self._put(work, apply_event(work.record, work.spec, event, self._now()))

    def _put(self, work: ManagedAllocation, turned: Transition) -> None:
        is_new = turned.record.id not in self._works
        changed = turned.record != work.record or is_new
        self._works[turned.record.id] = work
        work.record = turned.record
        self._note_life(work)
        if changed:
            self._journal.append_entry(StoredProgress(turned.record))
            self._on_change(turned.record.id)
            self._wake.set()
        self._end_preparing(work)
        for action in turned.actions:
            self._do(work, action)
        if changed:
            self._upkeep.on_record_changed(work)
            self._formers.on_record_changed(work)
            self._forget_if_over(work)
            if turned.record.is_over:
                self._formers.release_waiting()

    def _end_preparing(self, work: ManagedAllocation) -> None:
        """What is to end needs nothing any more."""
        for task in work.record.tasks:
            if task.step is not TaskStep.PREPARING:
                doing = self._preparing.pop((work.record.id, task.name), None)
                if doing is not None:
                    doing.cancel()

    def _forget_if_over(self, work: ManagedAllocation) -> None:
        id = work.record.id
        if work.stored_assignment.is_gone and work.record.is_over and id in self._works:
            del self._works[id]
            self._upkeep.release(id, tuple(task.name for task in work.record.tasks))
            self._forget_files(id)

    def _forget_files(self, id: str) -> None:
        self._folders.remove_folder(id)
        self._journal.append_entry(DeletedAllocation(id))

    def _now(self) -> ClockReading:
        return ClockReading(self._world.now_ns(), self._world.monotonic_s(), self._world.random.random())

    def _plan_of(self, order: messages.Assignment) -> AllocationSpec:
        if order.job is None:
            return EMPTY_SPEC
        wanted = order.allocation
        plan = build_allocation_spec(
            order.job,
            wanted.task_group,
            is_deployed=bool(wanted.deployment_id),
            max_kill_timeout_s=self._max_kill_timeout_s,
        )
        return plan or EMPTY_SPEC

    async def run_deadlines(self) -> None:
        """Until cancelled: hand every allocation its time when something of it is due."""
        self._formers.release_waiting()
        while True:
            self._wake.clear()
            due_s = find_earliest([find_next_deadline_s(work.record, work.spec) for work in self._live.values()])
            wait_s = None if due_s is None else max(0.0, due_s - self._world.monotonic_s())
            try:
                await asyncio.wait_for(self._wake.wait(), wait_s)
                await asyncio.sleep(0)
            except TimeoutError:
                now_s = self._world.monotonic_s()
                for id, work in list(self._live.items()):
                    due_s = find_next_deadline_s(work.record, work.spec)
                    if due_s is not None and due_s <= now_s:
                        self.handle_event(id, on.DeadlineReached())

    # -- what is to be done

    def _do(self, work: ManagedAllocation, action: on.TaskAction) -> None:
        match action:
            case on.PrepareTask(task):
                doing = self._preparing.get((work.record.id, task))
                if doing is None or doing.done():  # Else it was said again by who does not know that it goes on.
                    self._preparing[work.record.id, task] = self._begin(self._prepare(work, task))
            case on.StartTask(task, run):
                self._begin(self._start(work, task, run))
            case on.CancelStart(task, run):
                self.find_driver(work, task).give_up(work.make_run_name(task, run))
            case on.SignalTask(task, run, name):
                self.find_driver(work, task).signal(work.make_run_name(task, run), name)
            case on.KillTask(task, run):
                self.find_driver(work, task).kill(work.make_run_name(task, run))
            case _:
                raise AssertionError(f"nobody knows how to {action}")

    def _begin(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._world.start_task(doing, name="a task's step")
        self._doing.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._doing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a step of a task failed by a fault of ours", exc_info=error)

    async def _prepare(self, work: ManagedAllocation, name: str) -> None:
        id = work.record.id
        try:
            self._folders.create_task_folders(id, name)
            self._inherit(work, name)
        except OSError as error:
            why = f"its folders cannot be made: {error.strerror}"
            self._prepared(id, name, on.TaskPreparationFailed(name, why))
            return
        if (taken := self._taken_port(work)) is not None:
            why = f"port {taken.value} ({taken.label}) is held by something else on this node"
            self._on_taken_port(taken.value)
            # One that was asked for by its number may become free; else another node, or another number, is better.
            is_final = not is_requested_port(work.job, work.assignment.allocation.task_group, taken)
            self._prepared(id, name, on.TaskPreparationFailed(name, why, is_final=is_final))
            return
        try:
            await self._upkeep.prepare_task(work, name)
        except TaskSetupError as error:
            not_prepared = on.TaskPreparationFailed(
                name, str(error), error.event_type, error.detail_name, is_final=error.is_final
            )
            self._prepared(id, name, not_prepared)
            return
        self._prepared(id, name, on.TaskPrepared(name))

    def _inherit(self, work: ManagedAllocation, name: str) -> None:
        """What a sticky group keeps. Raises OSError."""
        disk, former = find_ephemeral_disk(work.assignment), work.assignment.allocation.previous_allocation
        if disk is not None and (disk.sticky or disk.migrate) and former:
            self._folders.move_predecessor_data(former, work.record.id, name)

    def _taken_port(self, work: ManagedAllocation) -> AllocatedPort | None:
        """Looked at while nothing of the allocation runs: afterwards they are held by itself."""
        if any(task.has_process or task.step is TaskStep.STARTING for task in work.record.tasks):
            return None
        allocated = work.assignment.allocation.allocated_resources
        ports = (allocated.shared.ports or ()) if allocated is not None else ()
        return find_taken_port(ports, self._place.address)

    def _prepared(self, id: str, name: str, event: on.AllocationEvent) -> None:
        self._preparing.pop((id, name), None)
        if id in self._works:
            self.handle_event(id, event)

    async def _start(self, work: ManagedAllocation, name: str, run: int) -> None:
        id = work.record.id
        # After a crash of the machine nobody may think that this was never begun.
        await self._journal.wait_until_synced()
        if not self._is_starting(work, name, run):
            return
        try:
            await self._upkeep.ensure_prepared(work, name)
        except TaskSetupError as error:
            self.handle_event(
                id, on.TaskStartFailed(name, run, str(error), error.is_final, error.event_type, error.detail_name)
            )
            return
        if not self._is_starting(work, name, run):
            return
        task = work.task(name)
        environment, _ = self.get_environment_and_folders(work, name)
        missing: list[str] = []
        config = resolve_document(task.config or {}, self.reference_values.with_variables(environment), missing)
        if missing:
            why = f"nothing is known by the name of {', '.join(missing)}"
            kind = TaskEventType.FAILED_VALIDATION
            self.handle_event(
                id, on.TaskStartFailed(name, run, why, is_final=True, event_type=kind, detail_name="validation_error")
            )
            return
        assert isinstance(config, dict)
        try:
            order = self._order(work, name, run, config, environment)
            await self.find_driver(work, name).start(order)
        except CannotStart as error:
            self.handle_event(id, on.TaskStartFailed(name, run, str(error), is_final=error.is_final))

    def _order(
        self, work: ManagedAllocation, name: str, run: int, config: dict[str, object], environment: dict[str, str]
    ) -> TaskOrder:
        """Raises CannotStart."""
        task, wanted, place = work.task(name), work.assignment.allocation, self._place
        folders = self._folders.get_task_folders(wanted.id, name)
        return TaskOrder(
            run=work.make_run_name(name, run),
            task=name,
            config=config,
            environment=environment,
            task_folder=folders.task,
            log_folder=folders.logs,
            log=task.log_config,
            user=task.user,
            allocation_id=wanted.id,
            shared_folder=folders.shared,
            network=self._upkeep.find_network(wanted.id),
            given=build_granted_resources(
                wanted,
                work.job,
                task,
                place.volumes,
                total_mhz=place.total_mhz,
                reserved=self._upkeep.find_device_reservation(wanted.id, name),
            ),
            labels=build_labels(wanted, work.job, name, node_id=place.node_id, node_name=place.node_name),
        )

    def run_when_stored(self, forget: Callable[[], None]) -> None:
        """Drivers and supervisor may forget a run when all that happened before is surely written down: on a disk that is
        full the outcome that they keep is the only one."""
        self._begin(self._when_kept(forget))

    async def _when_kept(self, forget: Callable[[], None]) -> None:
        await self._journal.wait_until_synced()
        forget()

    @staticmethod
    def _is_starting(work: ManagedAllocation, name: str, run: int) -> bool:
        record = work.record.task(name)
        return record.step is TaskStep.STARTING and record.run == run

    # -- after the agent was away

    def restore(self, remembered: Mapping[str, RestoredAllocation | SettledAllocation], *, has_rebooted: bool) -> None:
        for id, each in remembered.items():
            if isinstance(each, SettledAllocation):
                self._settled[id] = each.index
                if has_rebooted:
                    self._keep_settled(replace(each, record=reset_after_boot(each.record)), id)
                continue
            if each.record is None:  # Its orders had come, and nothing was done about them yet.
                self._journal.append_entry(DeletedAllocation(id))
                continue
            record = reset_after_boot(each.record) if has_rebooted else each.record
            plan = self._plan_of(each.assignment.order) if record.tasks and not record.is_over else EMPTY_SPEC
            if not record.is_over and [task.name for task in record.tasks] != [task.name for task in plan.tasks]:
                log.error("the journal's orders for %s do not fit what it has begun", id)
                continue
            if (
                has_rebooted
            ):  # Else an agent that ends before anything changes would leave the former clock's times behind.
                self._journal.append_entry(StoredProgress(record))
            self._works[id] = ManagedAllocation(each.assignment, plan, record)
            self._note_life(self._works[id])
            self._upkeep.on_record_changed(self._works[id])
            self._on_change(id)
        for work in list(self._works.values()):
            self._formers.on_record_changed(work)
            self._forget_if_over(work)

    async def recover_driver(self, driver: Driver) -> None:
        """Have the driver tell what became of its runs, and say again what may not have been heard."""
        runs = [
            work.make_run_name(task.name, task.run)
            for work in self._works.values()
            for task in work.record.tasks
            if task.should_recover and self.find_driver(work, task.name) is driver
        ]
        await driver.recover(runs)
        for work in list(self._works.values()):
            for action in list_interrupted_actions(work.record, work.spec):
                if self.find_driver(work, action.task) is driver:
                    self._do(work, action)
        self._wake.set()

    def is_current_run(self, run: str) -> bool:
        """Whether a task is at this run, so that its end must be heard."""
        found = self._find(run)
        if found is None:
            return False
        work, name, number = found
        task = work.record.task(name)
        return task.run == number and (task.has_process or task.step is TaskStep.STARTING)

    # -- room

    def collect_garbage(self, disk_usage: DiskUsage, limits: CollectionLimits) -> list[str]:
        """Remove folders of what has ended, as far as there must be room. Which."""
        found = [work for id in self._folders.list_allocations() if (work := self.find(id)) is not None]
        ended = [EndedAllocation(w.record.id, w.record.finished_s) for w in found if w.record.finished_s is not None]
        chosen = choose_allocations_to_remove(ended, len(self._live), disk_usage, limits)
        for id in chosen:
            log.info("the folder of an ended allocation is removed to have room", extra={"allocation": id})
            self.remove_files(id)
        return chosen

    def remove_files(self, allocation_id: str) -> None:
        if (work := self._works.get(allocation_id)) is not None:
            self._log_tails(work)  # Servers have not been told yet.
        self._folders.remove_folder(allocation_id)

    # -- the end of the agent

    async def stop_all(self) -> None:
        """Have every task end, and wait for it. Nothing begins any more: servers replace what has ended, on this node too,
        while other tasks still take their time."""
        self._is_ending = True
        for id, work in list(self._works.items()):
            if not work.record.is_over:
                self.handle_event(id, on.StopRequested(skips_delays=True))
        await self.wait_until(lambda: not self._live)
        # Drivers forget runs once their end is kept: until then something of each is left on the machine.
        if self._doing:
            await asyncio.wait(self._doing, timeout=FORGET_TIMEOUT_S)

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Looked at whenever something happens to an allocation."""
        while not is_so():
            self._wake.clear()
            await self._wake.wait()

    def list_live_tasks(self) -> list[TaskRecord]:
        return [task for work in self._live.values() for task in work.record.tasks if task.has_process]

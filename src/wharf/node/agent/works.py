"""Drives the core for every allocation of the node: hands it what happens, writes down what came of it, and has the
drivers do what it says. It decides nothing.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from msgspec.structs import replace

from wharf.model.allocated_resources import AllocatedPort
from wharf.model.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.model.job import Job
from wharf.model.log_tails import pack
from wharf.model.task import Task
from wharf.model.task_state import TaskEventType
from wharf.node.agent.around import AroundTasks
from wharf.node.agent.arrivals import Arrivals
from wharf.node.agent.environment import Place, environment_of
from wharf.node.agent.folders import AllocationFolders, TaskFolders
from wharf.node.agent.formers import Formers, disk_of
from wharf.node.agent.interpolation import Facts, resolve
from wharf.node.agent.journal import Came, Forgotten, Journal, Kept, Remembered, Settled
from wharf.node.agent.ports import first_taken, is_asked_for
from wharf.node.agent.task_order import given_to, labels_of
from wharf.node.core import happenings as on
from wharf.node.core.allocation import Turned, after_boot, receive, resume, step
from wharf.node.core.collection import Bounds, Ended, Room, choose
from wharf.node.core.dues import next_due_s
from wharf.node.core.moment import Now, earliest
from wharf.node.core.outcome import Outcome
from wharf.node.core.plan import Plan, plan_of
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep
from wharf.node.drivers.port import CannotStart, Driver, TaskOrder, View
from wharf.node.files import Folder
from wharf.node.files.tails import tail_of
from wharf.node.preparing.work import NotReady, seen_folders
from wharf.wire import shapes
from wharf.world import World

log = logging.getLogger(__name__)

STREAMS: Final = ("stdout", "stderr")
NO_PLAN: Final = Plan(tasks=())
FORGET_S: Final = 5.0
"""For so long it is waited for a disk that cannot keep the ends of tasks, when the agent ends with all of them."""


class Work:
    """One allocation."""

    def __init__(self, kept: Kept, plan: Plan, record: AllocationRecord) -> None:
        self.kept = kept
        self.plan = plan
        self.record = record
        self.log_tails: bytes | None = None
        """When it is over: the ends of its tasks' logs, packed. None: not read yet, or told."""

    @property
    def order(self) -> shapes.DesiredAllocation:
        return self.kept.order

    @property
    def job(self) -> Job:
        assert self.order.job is not None
        return self.order.job

    def task(self, name: str) -> Task:
        group = self.job.group(self.order.allocation.task_group)
        assert group is not None
        return next(task for task in group.tasks or () if task.name == name)

    def run_of(self, task: str, run: int) -> str:
        """The name of one start: it is never used again."""
        number = [each.name for each in self.plan.tasks].index(task)
        return f"{self.record.id}.{number}.{run}"


class Works:
    def __init__(
        self,
        world: World,
        journal: Journal,
        folders: AllocationFolders,
        drivers: Mapping[str, Driver],
        *,
        place: Place,
        facts: Facts,
        upkeep: AroundTasks,
        on_change: Callable[[str], None],
        on_taken_port: Callable[[int], None] = lambda _port: None,
        max_kill_timeout_s: float,
        log_tail_bytes: int = 0,
        arrivals: Arrivals | None = None,
    ) -> None:
        self._world = world
        self._journal = journal
        self._folders = folders
        self._drivers = drivers
        self._place = place
        self.facts = facts
        """Of the node, for what is started from now on."""
        self._upkeep = upkeep
        self._preparing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._on_change = on_change
        self._on_taken_port = on_taken_port
        self._max_kill_timeout_s = max_kill_timeout_s
        self._log_tail_bytes = log_tail_bytes
        self._of_agent = dict(os.environ)  # Each look at the real one decodes all of it.
        self._works: dict[str, Work] = {}
        self._live: dict[str, Work] = {}
        """Those that are not over."""
        self._settled: dict[str, int] = {}
        """Those that are over, as servers know: the index of their orders. They are many; the journal has the rest."""
        self._formers = Formers(world, self, arrivals)
        self._doing: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._is_ending = False
        self._left_out: dict[str, int] = {}
        """What came when nothing was to begin any more: the index of its orders."""
        self._silent_since_s: float | None = None

    # -- what servers say (the port `Work` of `servers`)

    def seen_index(self, allocation_id: str) -> int | None:
        if (index := self._settled.get(allocation_id)) is not None:
            return index
        work = self._works.get(allocation_id)
        return work.order.allocation.alloc_modify_index if work is not None else self._left_out.get(allocation_id)

    def known(self) -> list[str]:
        return [*self._settled, *(id for id, work in self._works.items() if not work.kept.is_gone)]

    def knows(self, allocation_id: str) -> bool:
        work = self._works.get(allocation_id)
        return allocation_id in self._settled or (work is not None and not work.kept.is_gone)

    def take(self, order: shapes.DesiredAllocation) -> None:
        wanted = order.allocation
        if wanted.id in self._settled:
            self._take_settled(wanted)
            return
        known = self._works.get(wanted.id)
        if known is None and self._is_ending:
            self._left_out[wanted.id] = wanted.alloc_modify_index  # Servers tell of it again when the node is back.
            return
        plan = self._plan_of(order)
        if known is not None and [task.name for task in known.plan.tasks] != [task.name for task in plan.tasks]:
            # Its job was purged, or is another one by now: what runs is not what is wanted, and ends as its own job says.
            order, plan = replace(order, job=known.order.job), known.plan
        kept = Kept(wanted.id, order)
        if known is None:
            self._journal.put(kept)
            if wanted.desired_status is not DesiredStatus.RUN or wanted.client_status.is_terminal:
                # It came to an end before this node heard of it, or in a life of the node that is forgotten.
                turned = step(AllocationRecord(wanted.id), NO_PLAN, on.StopWanted(), self._now())
                self._put(Work(kept, NO_PLAN, turned.record), turned)
            else:
                waits = self._formers.must_wait(order)
                turned = receive(wanted.id, plan, self._now(), waits_for_former=waits)
                self._put(Work(kept, plan, turned.record), turned)
            return
        is_judged_anew = known.order.allocation.deployment_id != wanted.deployment_id
        known.kept, known.plan = kept, plan
        if wanted.desired_status is not DesiredStatus.RUN:
            marks = wanted.desired_transition
            self.happen(wanted.id, on.StopWanted(skips_delays=marks is not None and bool(marks.no_shutdown_delay)))
        elif is_judged_anew:
            self.happen(wanted.id, on.Judged())
        # After what follows from it: an order that is remembered is not given again.
        self._journal.put(kept)

    def _take_settled(self, wanted: shapes.DesiredWork) -> None:
        settled = self._journal.recall(wanted.id)
        self._keep_settled(
            replace(settled, index=wanted.alloc_modify_index, client_status=wanted.client_status), wanted.id
        )
        if not wanted.client_status.is_terminal:  # A log that was restored does not know of its end any more.
            self._on_change(wanted.id)

    def _keep_settled(self, settled: Settled, id: str) -> None:
        """`id`: the same object for all who know the allocation, where it may be: there are many."""
        self._journal.put(settled)
        self._settled[id] = settled.index

    def _note_life(self, work: Work) -> None:
        id = work.record.id
        if work.record.is_over:
            self._live.pop(id, None)
        else:
            self._live[id] = work

    def drop(self, allocation_id: str) -> None:
        if self._settled.pop(allocation_id, None) is not None:
            self._forget_files(allocation_id)
            return
        work = self._works[allocation_id]
        work.kept = Kept(allocation_id, work.order, is_gone=True)
        self.happen(allocation_id, on.StopWanted())
        if allocation_id in self._works:
            self._journal.put(work.kept)
        self._forget_if_over(work)

    def update_of(self, allocation_id: str) -> shapes.AllocationUpdate:
        work = self.find(allocation_id)
        assert work is not None, "only of what is known somebody asks"
        record = work.record
        if not record.tasks and work.order.allocation.client_status.is_terminal:
            status = work.order.allocation.client_status
            status = status if status is not ClientStatus.LOST else ClientStatus.COMPLETE
        else:
            status = record.status
        return shapes.AllocationUpdate(
            id=allocation_id,
            client_status=status,
            client_description=record.description if record.tasks else "",
            task_states={task.name: task.told() for task in record.tasks} if record.tasks else None,
            deployment_status=(
                AllocDeploymentStatus(healthy=record.is_healthy) if record.is_healthy is not None else None
            ),
            log_tails=self._log_tails(work),
            services=self._upkeep.services(work),
            network_status=self._upkeep.network_status(allocation_id),
        )

    async def until_kept(self) -> None:
        await self._journal.synced()

    def on_end_told(self, allocation_id: str) -> None:
        work = self._works.get(allocation_id)
        if work is not None and work.record.is_over:
            del self._works[allocation_id]
            wanted = work.order.allocation
            settled = Settled(work.record, wanted.alloc_modify_index, wanted.client_status)
            self._keep_settled(settled, work.record.id)
            self._upkeep.end(work.record.id, tuple(task.name for task in work.record.tasks))

    def _log_tails(self, work: Work) -> bytes:
        """Read before the files are gone. Once they are told nothing is said without files: servers keep what they have."""
        if not work.record.is_over or not work.record.tasks:
            work.log_tails = None
            return b""
        if work.log_tails is None and not self._folders.of(work.record.id).is_dir():
            return b""
        if work.log_tails is None:
            folder = Folder(self._folders.of(work.record.id))
            length = self._log_tail_bytes
            work.log_tails = pack(
                {
                    task.name: {stream: tail_of(folder, task.name, stream, length) for stream in STREAMS}
                    for task in work.record.tasks
                    if length
                }
            )
        return work.log_tails

    def on_contact(self) -> None:
        if self._silent_since_s is not None:
            self._silent_since_s = None
            self._happen_to_all(on.ContactMade())

    def on_silence(self, since_s: float) -> None:
        if self._silent_since_s is None:
            self._silent_since_s = since_s
            self._happen_to_all(on.ContactLost(since_s))

    def _happen_to_all(self, event: on.Event) -> None:
        for id, work in list(self._works.items()):
            if not work.record.is_over and work.plan.stop_after_lost_s is not None:
                self.happen(id, event)

    # -- what drivers say (the port `Watcher`)

    def on_begun(self, run: str) -> None:
        if (found := self._find(run)) is not None:
            work, task, number = found
            self.happen(work.record.id, on.Started(task, number))

    def on_refused(self, run: str, why: str) -> None:
        if (found := self._find(run)) is not None:
            work, task, number = found
            self.driver_of(work, task).forget(run)
            self.happen(work.record.id, on.NotStarted(task, number, why))

    def on_said(self, run: str, message: str) -> None:
        if (found := self._find(run)) is not None:
            work, task, _ = found
            said = on.Said(task, TaskEventType.DRIVER, details={"driver_message": message})
            self.happen(work.record.id, said)

    def on_ended(self, run: str, outcome: Outcome) -> None:
        if (found := self._find(run)) is not None:
            work, task, number = found
            driver = self.driver_of(work, task)
            self.happen(work.record.id, on.Ended(task, number, outcome))
            self.when_kept(lambda: driver.forget(run))

    # -- what people ask

    def find(self, allocation_id: str) -> Work | None:
        """Of what is settled: what is remembered of it, without its job."""
        if allocation_id not in self._settled:
            return self._works.get(allocation_id)
        settled = self._journal.recall(allocation_id)
        wanted = shapes.DesiredWork(
            id=allocation_id, alloc_modify_index=settled.index, client_status=settled.client_status
        )
        return Work(Kept(allocation_id, shapes.DesiredAllocation(allocation=wanted)), NO_PLAN, settled.record)

    def live(self) -> list[Work]:
        return list(self._live.values())

    def ended(self) -> list[str]:
        """Allocations of which nothing runs any more."""
        return [*self._settled, *(id for id, work in self._works.items() if work.record.is_over)]

    def surroundings(self, work: Work, name: str) -> tuple[dict[str, str], TaskFolders]:
        """The variables and the folders of a task."""
        id = work.record.id
        folders = self._folders.of_task(id, name)
        wanted = work.order.allocation
        task, view = work.task(name), self.driver_of(work, name).view
        environment = environment_of(
            wanted,
            work.job,
            task,
            seen_folders(folders, view),
            self._place,
            self.facts,
            of_agent=self._of_agent if view is not View.OWN else {},
            network=self._upkeep.network_status(id),
        )
        return environment | self._upkeep.environment(id, name), folders

    def driver_of(self, work: Work, name: str) -> Driver:
        driver = work.task(name).driver
        return self._drivers.get(driver) or self._drivers[""]

    def _find(self, run: str) -> tuple[Work, str, int] | None:
        allocation_id, number, count = run.rsplit(".", 2)
        work = self._works.get(allocation_id)
        if work is None or int(number) >= len(work.plan.tasks):
            return None
        return work, work.plan.tasks[int(number)].name, int(count)

    # -- the core

    def happen(self, allocation_id: str, event: on.Event) -> None:
        if allocation_id in self._settled:
            return  # Nothing happens to it any more.
        work = self._works[allocation_id]
        self._put(work, step(work.record, work.plan, event, self._now()))

    def _put(self, work: Work, turned: Turned) -> None:
        is_new = turned.record.id not in self._works
        changed = turned.record != work.record or is_new
        self._works[turned.record.id] = work
        work.record = turned.record
        self._note_life(work)
        if changed:
            self._journal.put(Came(turned.record))
            self._on_change(turned.record.id)
            self._wake.set()
        self._end_preparing(work)
        for action in turned.actions:
            self._do(work, action)
        if changed:
            self._upkeep.look(work)
            self._formers.look(work)
            self._forget_if_over(work)
            if turned.record.is_over:
                self._formers.end_waiting()

    def _end_preparing(self, work: Work) -> None:
        """What is to end needs nothing any more."""
        for task in work.record.tasks:
            if task.step is not TaskStep.PREPARING:
                doing = self._preparing.pop((work.record.id, task.name), None)
                if doing is not None:
                    doing.cancel()

    def _forget_if_over(self, work: Work) -> None:
        id = work.record.id
        if work.kept.is_gone and work.record.is_over and id in self._works:
            del self._works[id]
            self._upkeep.end(id, tuple(task.name for task in work.record.tasks))
            self._forget_files(id)

    def _forget_files(self, id: str) -> None:
        self._folders.remove(id)
        self._journal.put(Forgotten(id))

    def _now(self) -> Now:
        return Now(self._world.now_ns(), self._world.monotonic_s(), self._world.random.random())

    def _plan_of(self, order: shapes.DesiredAllocation) -> Plan:
        if order.job is None:
            return NO_PLAN
        wanted = order.allocation
        plan = plan_of(
            order.job,
            wanted.task_group,
            is_deployed=bool(wanted.deployment_id),
            max_kill_timeout_s=self._max_kill_timeout_s,
        )
        return plan or NO_PLAN

    async def keep_time(self) -> None:
        """Until cancelled: hand every allocation its time when something of it is due."""
        self._formers.end_waiting()
        while True:
            self._wake.clear()
            due_s = earliest([next_due_s(work.record, work.plan) for work in self._live.values()])
            wait_s = None if due_s is None else max(0.0, due_s - self._world.monotonic_s())
            try:
                await asyncio.wait_for(self._wake.wait(), wait_s)
                await asyncio.sleep(0)
            except TimeoutError:
                now_s = self._world.monotonic_s()
                for id, work in list(self._live.items()):
                    due_s = next_due_s(work.record, work.plan)
                    if due_s is not None and due_s <= now_s:
                        self.happen(id, on.TimePassed())

    # -- what is to be done

    def _do(self, work: Work, action: on.Action) -> None:
        match action:
            case on.Prepare(task):
                doing = self._preparing.get((work.record.id, task))
                if doing is None or doing.done():  # Else it was said again by who does not know that it goes on.
                    self._preparing[work.record.id, task] = self._begin(self._prepare(work, task))
            case on.Start(task, run):
                self._begin(self._start(work, task, run))
            case on.GiveUp(task, run):
                self.driver_of(work, task).give_up(work.run_of(task, run))
            case on.Signal(task, run, name):
                self.driver_of(work, task).signal(work.run_of(task, run), name)
            case on.Kill(task, run):
                self.driver_of(work, task).kill(work.run_of(task, run))
            case _:
                raise AssertionError(f"nobody knows how to {action}")

    def _begin(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._world.start(doing, name="a task's step")
        self._doing.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._doing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a step of a task failed by a fault of ours", exc_info=error)

    async def _prepare(self, work: Work, name: str) -> None:
        id = work.record.id
        try:
            self._folders.make(id, name)
            self._inherit(work, name)
        except OSError as error:
            why = f"its folders cannot be made: {error.strerror}"
            self._prepared(id, name, on.NotPrepared(name, why))
            return
        if (taken := self._taken_port(work)) is not None:
            why = f"port {taken.value} ({taken.label}) is held by something else on this node"
            self._on_taken_port(taken.value)
            # One that was asked for by its number may become free; else another node, or another number, is better.
            is_final = not is_asked_for(work.job, work.order.allocation.task_group, taken)
            self._prepared(id, name, on.NotPrepared(name, why, is_final=is_final))
            return
        try:
            await self._upkeep.prepare(work, name)
        except NotReady as error:
            not_prepared = on.NotPrepared(name, str(error), error.kind, error.detail, is_final=error.is_final)
            self._prepared(id, name, not_prepared)
            return
        self._prepared(id, name, on.Prepared(name))

    def _inherit(self, work: Work, name: str) -> None:
        """What a sticky group keeps. Raises OSError."""
        disk, former = disk_of(work.order), work.order.allocation.previous_allocation
        if disk is not None and (disk.sticky or disk.migrate) and former:
            self._folders.inherit(former, work.record.id, name)

    def _taken_port(self, work: Work) -> AllocatedPort | None:
        """Looked at while nothing of the allocation runs: afterwards they are held by itself."""
        if any(task.has_process or task.step is TaskStep.STARTING for task in work.record.tasks):
            return None
        allocated = work.order.allocation.allocated_resources
        ports = (allocated.shared.ports or ()) if allocated is not None else ()
        return first_taken(ports, self._place.address)

    def _prepared(self, id: str, name: str, event: on.Event) -> None:
        self._preparing.pop((id, name), None)
        if id in self._works:
            self.happen(id, event)

    async def _start(self, work: Work, name: str, run: int) -> None:
        id = work.record.id
        # After a crash of the machine nobody may think that this was never begun.
        await self._journal.synced()
        if not self._is_starting(work, name, run):
            return
        try:
            await self._upkeep.ensure(work, name)
        except NotReady as error:
            self.happen(id, on.NotStarted(name, run, str(error), error.is_final, error.kind, error.detail))
            return
        if not self._is_starting(work, name, run):
            return
        task = work.task(name)
        environment, _ = self.surroundings(work, name)
        missing: list[str] = []
        config = resolve(task.config or {}, self.facts.with_variables(environment), missing)
        if missing:
            why = f"nothing is known by the name of {', '.join(missing)}"
            kind = TaskEventType.FAILED_VALIDATION
            self.happen(id, on.NotStarted(name, run, why, is_final=True, kind=kind, detail="validation_error"))
            return
        assert isinstance(config, dict)
        try:
            order = self._order(work, name, run, config, environment)
            await self.driver_of(work, name).start(order)
        except CannotStart as error:
            self.happen(id, on.NotStarted(name, run, str(error), is_final=error.is_final))

    def _order(
        self, work: Work, name: str, run: int, config: dict[str, object], environment: dict[str, str]
    ) -> TaskOrder:
        """Raises CannotStart."""
        task, wanted, place = work.task(name), work.order.allocation, self._place
        folders = self._folders.of_task(wanted.id, name)
        return TaskOrder(
            run=work.run_of(name, run),
            task=name,
            config=config,
            environment=environment,
            task_folder=folders.task,
            log_folder=folders.logs,
            log=task.log_config,
            user=task.user,
            allocation_id=wanted.id,
            shared_folder=folders.shared,
            network=self._upkeep.network_of(wanted.id),
            given=given_to(
                wanted,
                work.job,
                task,
                place.volumes,
                total_mhz=place.total_mhz,
                reserved=self._upkeep.reserved(wanted.id, name),
            ),
            labels=labels_of(wanted, work.job, name, node_id=place.node_id, node_name=place.node_name),
        )

    def when_kept(self, forget: Callable[[], None]) -> None:
        """Drivers and supervisor may forget a run when all that happened before is surely written down: on a disk that is
        full the outcome that they keep is the only one."""
        self._begin(self._when_kept(forget))

    async def _when_kept(self, forget: Callable[[], None]) -> None:
        await self._journal.synced()
        forget()

    @staticmethod
    def _is_starting(work: Work, name: str, run: int) -> bool:
        record = work.record.task(name)
        return record.step is TaskStep.STARTING and record.run == run

    # -- after the agent was away

    def load(self, remembered: Mapping[str, Remembered | Settled], *, is_other_boot: bool) -> None:
        for id, each in remembered.items():
            if isinstance(each, Settled):
                self._settled[id] = each.index
                if is_other_boot:
                    self._keep_settled(replace(each, record=after_boot(each.record)), id)
                continue
            if each.record is None:  # Its orders had come, and nothing was done about them yet.
                self._journal.put(Forgotten(id))
                continue
            record = after_boot(each.record) if is_other_boot else each.record
            plan = self._plan_of(each.order.order) if record.tasks and not record.is_over else NO_PLAN
            if not record.is_over and [task.name for task in record.tasks] != [task.name for task in plan.tasks]:
                log.error("the journal's orders for %s do not fit what it has begun", id)
                continue
            if (
                is_other_boot
            ):  # Else an agent that ends before anything changes would leave the former clock's times behind.
                self._journal.put(Came(record))
            self._works[id] = Work(each.order, plan, record)
            self._note_life(self._works[id])
            self._upkeep.look(self._works[id])
            self._on_change(id)
        for work in list(self._works.values()):
            self._formers.look(work)
            self._forget_if_over(work)

    async def recover(self, driver: Driver) -> None:
        """Have the driver tell what became of its runs, and say again what may not have been heard."""
        runs = [
            work.run_of(task.name, task.run)
            for work in self._works.values()
            for task in work.record.tasks
            if task.must_be_asked_for and self.driver_of(work, task.name) is driver
        ]
        await driver.recover(runs)
        for work in list(self._works.values()):
            for action in resume(work.record, work.plan):
                if self.driver_of(work, action.task) is driver:
                    self._do(work, action)
        self._wake.set()

    def is_wanted(self, run: str) -> bool:
        """Whether a task is at this run, so that its end must be heard."""
        found = self._find(run)
        if found is None:
            return False
        work, name, number = found
        task = work.record.task(name)
        return task.run == number and (task.has_process or task.step is TaskStep.STARTING)

    # -- room

    def collect(self, room: Room, bounds: Bounds) -> list[str]:
        """Remove folders of what has ended, as far as there must be room. Which."""
        found = [work for id in self._folders.known() if (work := self.find(id)) is not None]
        ended = [Ended(w.record.id, w.record.finished_s) for w in found if w.record.finished_s is not None]
        chosen = choose(ended, len(self._live), room, bounds)
        for id in chosen:
            log.info("the folder of an ended allocation is removed to have room", extra={"allocation": id})
            self.remove_files(id)
        return chosen

    def remove_files(self, allocation_id: str) -> None:
        if (work := self._works.get(allocation_id)) is not None:
            self._log_tails(work)  # Servers have not been told yet.
        self._folders.remove(allocation_id)

    # -- the end of the agent

    async def stop_all(self) -> None:
        """Have every task end, and wait for it. Nothing begins any more: servers replace what has ended, on this node too,
        while other tasks still take their time."""
        self._is_ending = True
        for id, work in list(self._works.items()):
            if not work.record.is_over:
                self.happen(id, on.StopWanted(skips_delays=True))
        await self.until(lambda: not self._live)
        # Drivers forget runs once their end is kept: until then something of each is left on the machine.
        if self._doing:
            await asyncio.wait(self._doing, timeout=FORGET_S)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Looked at whenever something happens to an allocation."""
        while not is_so():
            self._wake.clear()
            await self._wake.wait()

    def live_tasks(self) -> list[TaskRecord]:
        return [task for work in self._live.values() for task in work.record.tasks if task.has_process]

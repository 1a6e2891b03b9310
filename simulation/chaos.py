"""What befalls the cluster while it works: processes die and are held, lines are cut, clocks step, logs are compacted.

Everything is drawn from the seed, counted by name, and mended again within a bounded time; `calm` mends it all.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random
from typing import Final

from simulation.cluster import Cluster, NodeHost, ServerProcess
from simulation.fault_source import HIGH_FAULT_RATE, NETWORK_FAULTS, NO_FAULTS, NORMAL_FAULT_RATE
from simulation.machine import TASK_FAULTS, SimulatedMachine
from simulation.process import Process, current_process
from simulation.timeline import Timeline
from wharf.cluster.engines.memory.faults import (
    CancelWatchFault,
    DelayFault,
    EngineOperation,
    Fault,
    LoseReplyFault,
    LoseRequestFault,
    RefuseFault,
)

LOG_SLOW: Final = "log answers late"
LOG_REQUEST_LOST: Final = "log never hears a request"
LOG_REPLY_LOST: Final = "log's reply lost"
LOG_REFUSES: Final = "log refuses"
FEED_DELAYED: Final = "feed late"
FEED_CANCELLED: Final = "feed cancelled"
DIED_BEFORE_COMMIT: Final = "server process died just before a commit"
DIED_AFTER_COMMIT: Final = "server process died just after a commit"
PAUSED_AT_COMMIT: Final = "server process held while it commits"
SERVER_KILLED: Final = "server process killed"
SERVER_RESTARTED: Final = "server process restarted"
SERVER_PAUSED: Final = "server process held"
CUT_FROM_LOG: Final = "server cut from the log"
SERVERS_PARTITIONED: Final = "servers parted"
NODE_KILLED: Final = "node killed"
POWER_LOST: Final = "node's machine lost its power"
SUPERVISOR_KILLED: Final = "supervisor killed"
SHIM_KILLED: Final = "shim killed"
DISK_FULL: Final = "node's disk full"
NODE_RETURNED: Final = "node returned"
NODE_PAUSED: Final = "node held"
NODE_CUT_OFF: Final = "node cut off"
CLOCK_STEPPED: Final = "clock stepped"
COMPACTED: Final = "log compacted"
FOREIGN_KEYS_WRITTEN: Final = "other people's keys written"
LEASE_EXPIRED: Final = "lease ran out"
LOG_RESTORED: Final = "log restored from an older copy"
FAULT_RATE_RAISED: Final = "storm"

ALL_FAULTS: Final = (
    *NETWORK_FAULTS, *TASK_FAULTS, LOG_SLOW, LOG_REQUEST_LOST, LOG_REPLY_LOST, LOG_REFUSES, FEED_DELAYED, FEED_CANCELLED,
    DIED_BEFORE_COMMIT, DIED_AFTER_COMMIT, PAUSED_AT_COMMIT, SERVER_KILLED, SERVER_RESTARTED, SERVER_PAUSED, CUT_FROM_LOG,
    SERVERS_PARTITIONED, NODE_KILLED, POWER_LOST, SUPERVISOR_KILLED, SHIM_KILLED, DISK_FULL, NODE_RETURNED, NODE_PAUSED, NODE_CUT_OFF, CLOCK_STEPPED, COMPACTED, FOREIGN_KEYS_WRITTEN,
    LEASE_EXPIRED, LOG_RESTORED, FAULT_RATE_RAISED,
)  # fmt: skip

REQUEST_OPERATIONS: Final = frozenset(
    {
        EngineOperation.COMMIT,
        EngineOperation.BARRIER,
        EngineOperation.FIND,
        EngineOperation.LOAD,
        EngineOperation.KEEPALIVE,
    }
)
MEAN_PAUSE_S: Final = 1.6


class Chaos:
    def __init__(self, cluster: Cluster, timeline: Timeline) -> None:
        self._cluster = cluster
        self._story = timeline
        self._random = Random(f"{cluster.seed}/chaos")
        self._is_calm = True
        self._outside = Context()
        self._mending: dict[asyncio.Task[None], None] = {}
        self._returning: dict[str, None] = {}
        self._dies_after: dict[Process, None] = {}
        self._deeds: Sequence[tuple[int, Callable[[], None]]] = (
            (4, self._kill_server), (4, self._hold_server), (4, self._cut_from_log), (3, self._part_servers),
            (4, self._kill_node), (3, self._hold_node), (3, self._cut_off_node), (2, self._step_clock),
            (2, self._compact), (2, self._write_other_keys), (2, self._change_weather), (1, self._restore_log),
            (2, self._cut_power), (2, self._kill_supervisor), (1, self._kill_shim), (1, self._fill_disk),
        )  # fmt: skip
        cluster.choose_faults_for = self._decide_for
        cluster.log.after_commit = self._after_commit

    def _tell(self, fault: str, *about: str) -> None:
        self._cluster.fault_source.count_fault(fault)
        self._story.add_event(f"fault: {fault}: {' '.join(about)}", *about)

    # -- the course of it ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        self._is_calm = False
        self._cluster.fault_source.fault_rate = NORMAL_FAULT_RATE
        # Every seed has a taste of its own: what mostly happens together differs, and some things do not happen at all.
        weights = [weight * self._random.choice([0, 1, 1, 2, 4]) for weight, _ in self._deeds]
        weights[self._random.randrange(len(weights))] += 3
        while True:
            await asyncio.sleep(self._random.expovariate(1 / MEAN_PAUSE_S))
            _, deed = self._random.choices(self._deeds, weights)[0]
            deed()

    async def repair_all(self) -> None:
        """Mend everything, and wait until everybody is back."""
        self._is_calm = True
        self._cluster.fault_source.fault_rate = NO_FAULTS
        self._dies_after.clear()
        for mending in list(self._mending):
            mending.cancel()
        await asyncio.gather(*self._mending, return_exceptions=True)
        cluster = self._cluster
        cluster.network.heal_all()
        for server in cluster.server_processes:
            self._release(server)
            if server.engine is not None and server.is_alive:
                server.engine.faults.reconnect()
                cluster.log.wake_waiters()
            if not server.is_alive:
                self._restart(server)
        for node in cluster.nodes:
            self._release(node)
            if node.machine is not None:
                node.machine.fill_disk(is_full=False)
            if not node.is_alive:
                self._return(node)
        self._story.add_event("calm: everything is mended")

    def _later(self, within_s: tuple[float, float], mend: Callable[[], None]) -> None:
        """Mend it after a while, or at once when the calm comes."""

        async def wait() -> None:
            await asyncio.sleep(self._random.uniform(*within_s))
            mend()

        # Who asks may be the very process that dies now; what is started here must not die with it.
        task = self._outside.run(self._cluster.log_world.start_task, wait(), name="mending")
        self._mending[task] = None
        task.add_done_callback(lambda done: self._mending.pop(done, None))

    # -- at the door to the log ------------------------------------------------------------------------------------

    def _decide_for(self, server: ServerProcess) -> Callable[[EngineOperation], Fault | None]:
        draw = Random(f"{self._cluster.seed}/door/{server.name}#{server.start_count}")
        weather = self._cluster.fault_source

        def decide(operation: EngineOperation) -> Fault | None:
            if operation is EngineOperation.FEED:
                if weather.draw_fault(FEED_CANCELLED, once_in=700):
                    return CancelWatchFault()
                if weather.draw_fault(FEED_DELAYED, once_in=120):
                    return DelayFault(request_s=draw.uniform(0.05, 3.0))
                return DelayFault(request_s=draw.uniform(0.0, 0.002))
            if operation is EngineOperation.COMMIT and not self._is_calm and self._strikes_committer(server):
                return DelayFault(request_s=0.01)
            if operation in REQUEST_OPERATIONS:
                if weather.draw_fault(LOG_REQUEST_LOST, once_in=400):
                    return LoseRequestFault()
                if weather.draw_fault(LOG_REPLY_LOST, once_in=150):
                    return LoseReplyFault()
                if operation is EngineOperation.COMMIT and weather.draw_fault(LOG_REFUSES, once_in=400):
                    return RefuseFault()
                if weather.draw_fault(LOG_SLOW, once_in=150):
                    return DelayFault(request_s=draw.uniform(0.01, 1.5), reply_s=draw.uniform(0.01, 1.5))
            return DelayFault(request_s=draw.uniform(0.000_2, 0.003), reply_s=draw.uniform(0.000_2, 0.003))

        return decide

    def _strikes_committer(self, server: ServerProcess) -> bool:
        """It commits now; its request is still on the way when this strikes."""
        process = server.process
        if process is None or current_process() is not process or process.is_dead or process.is_paused:
            return False
        weather = self._cluster.fault_source
        if weather.draw_fault(DIED_BEFORE_COMMIT, once_in=500):
            self._kill(server)
            return True
        if weather.draw_fault(DIED_AFTER_COMMIT, once_in=400):
            self._dies_after[process] = None
            return True
        if weather.draw_fault(PAUSED_AT_COMMIT, once_in=200):
            self._story.add_event(f"fault: {PAUSED_AT_COMMIT}: {server.name}", server.name)
            self._hold(server, (3.0, 25.0))
            return True
        return False

    def _after_commit(self, process: Process) -> None:
        if process in self._dies_after:
            del self._dies_after[process]
            server = next(each for each in self._cluster.server_processes if each.process is process)
            self._story.add_event(f"fault: {DIED_AFTER_COMMIT}: {server.name}", server.name)
            self._kill(server)

    # -- deeds -----------------------------------------------------------------------------------------------------

    def _some_server(self) -> ServerProcess | None:
        """One that lives and runs. A majority of servers is always left with both."""
        able = [
            server
            for server in self._cluster.server_processes
            if server.is_alive and server.process is not None and not server.process.is_paused
        ]
        return self._random.choice(able) if able else None

    def _some_node(self) -> NodeHost | None:
        able = [n for n in self._cluster.nodes if n.is_alive and n.process is not None and not n.process.is_paused]
        return self._random.choice(able) if len(able) > len(self._cluster.nodes) // 2 else None

    def _kill(self, server: ServerProcess) -> None:
        self._cluster.kill(server)
        self._later((0.2, 12.0), lambda: self._restart(server))

    def _restart(self, server: ServerProcess) -> None:
        self._tell(SERVER_RESTARTED, server.name)
        server.start()

    def _hold(self, one: ServerProcess | NodeHost, within_s: tuple[float, float]) -> None:
        process = one.process
        assert process is not None, "only what runs is held"
        self._cluster.loop.pause(process)
        self._later(within_s, lambda: self._release(one))

    def _release(self, one: ServerProcess | NodeHost) -> None:
        if one.process is not None and one.process.is_paused and not one.process.is_dead:
            self._cluster.loop.resume(one.process)
            if isinstance(one, NodeHost) and one.machine is not None:
                one.machine.record_disturbance()
            if isinstance(one, ServerProcess):
                one.paused_until_s = self._cluster.loop.time()
            self._story.add_event(f"{one.name} goes on", one.name)

    def _kill_server(self) -> None:
        if (server := self._some_server()) is not None:
            self._tell(SERVER_KILLED, server.name)
            self._kill(server)

    def _hold_server(self) -> None:
        if (server := self._some_server()) is not None:
            self._tell(SERVER_PAUSED, server.name)
            self._hold(server, (0.5, 20.0))

    def _cut_from_log(self) -> None:
        server = self._some_server()
        if server is None or server.engine is None:
            return
        self._tell(CUT_FROM_LOG, server.name)
        engine = server.engine
        engine.faults.disconnect()
        self._cluster.log.wake_waiters()

        def mend() -> None:
            engine.faults.reconnect()
            self._cluster.log.wake_waiters()

        self._later((0.5, 15.0), mend)

    def _part_servers(self) -> None:
        one, other = self._random.sample(self._cluster.members, 2)
        self._tell(SERVERS_PARTITIONED, one.name, other.name)
        self._cluster.network.partition(one.name, other.name)
        self._later((1.0, 15.0), lambda: self._cluster.network.heal(one.name, other.name))

    def _kill_node(self) -> None:
        if (node := self._some_node()) is not None:
            self._tell(NODE_KILLED, node.name)
            self._cluster.kill(node)
            self._later((1.0, 60.0), lambda: self._return(node))

    def _return(self, node: NodeHost) -> None:
        self._tell(NODE_RETURNED, node.name)
        node.start()

    def _cut_power(self) -> None:
        node = self._some_node()
        if node is not None and node.machine is not None:
            self._tell(POWER_LOST, node.name)
            self._cluster.kill(node)
            node.machine.lose_power()
            self._later((1.0, 60.0), lambda: self._return(node))

    def _some_machine(self) -> SimulatedMachine | None:
        able = [node.machine for node in self._cluster.nodes if node.machine is not None]
        return self._random.choice(able) if able else None

    def _kill_supervisor(self) -> None:
        if (machine := self._some_machine()) is not None:
            self._tell(SUPERVISOR_KILLED, machine.name)
            machine.kill_supervisor()

    def _kill_shim(self) -> None:
        machine = self._some_machine()
        if machine is not None and machine.kill_shim():
            self._tell(SHIM_KILLED, machine.name)

    def _fill_disk(self) -> None:
        if (machine := self._some_machine()) is not None:
            self._tell(DISK_FULL, machine.name)
            machine.fill_disk(is_full=True)
            self._later((1.0, 30.0), lambda: machine.fill_disk(is_full=False))

    def _hold_node(self) -> None:
        if (node := self._some_node()) is not None:
            self._tell(NODE_PAUSED, node.name)
            self._hold(node, (1.0, 60.0))

    def _cut_off_node(self) -> None:
        node = self._some_node()
        if node is None:
            return
        self._tell(NODE_CUT_OFF, node.name)
        for member in self._cluster.members:
            self._cluster.network.partition(node.name, member.name)

        def mend() -> None:
            for member in self._cluster.members:
                self._cluster.network.heal(node.name, member.name)

        self._later((1.0, 60.0), mend)

    def _step_clock(self) -> None:
        machine = self._random.choice([m.name for m in self._cluster.members] + [n.name for n in self._cluster.nodes])
        offset_s = self._random.choice([-3600.0, -30.0, -0.5, 0.0, 0.5, 30.0, 3600.0, 86_400.0 * 40])
        self._tell(CLOCK_STEPPED, machine)
        self._cluster.step_clock(machine, round(offset_s * 1_000_000_000))

    def _compact(self) -> None:
        log = self._cluster.log
        before = log.index + 1 - self._random.choice([0, 0, 5, 50])
        self._tell(COMPACTED, str(before))
        log.compact(max(1, before))

    def _write_other_keys(self) -> None:
        self._tell(FOREIGN_KEYS_WRITTEN)
        self._cluster.log.advance_index(self._random.randint(1, 40))

    def _restore_log(self) -> None:
        """Somebody keeps a copy of the log and puts it back a while later: what was written in between never was."""
        log = self._cluster.log
        copy = log.make_copy()

        def put_back() -> None:
            self._tell(LOG_RESTORED)
            log.restore_copy(copy)

        self._later((0.5, 20.0), put_back)

    def _change_weather(self) -> None:
        self._tell(FAULT_RATE_RAISED)
        self._cluster.fault_source.fault_rate = HIGH_FAULT_RATE

        def fair() -> None:
            self._cluster.fault_source.fault_rate = NORMAL_FAULT_RATE

        self._later((2.0, 10.0), fair)

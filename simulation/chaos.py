"""Injects faults into a running cluster: killed and paused processes, cut connections, stepped clocks, restored logs.

Each fault is drawn from the seed, counted by name, and repaired after a limited time. `repair_all` repairs all of them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random
from typing import Final

from simulation.cluster import Cluster, NodeHost, ServerProcess, SimulatedServer
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

LOG_SLOW: Final = "log slow"
LOG_REQUEST_LOST: Final = "request to the log lost"
LOG_REPLY_LOST: Final = "reply of the log lost"
LOG_REFUSES: Final = "log refused a write"
FEED_DELAYED: Final = "feed delayed"
FEED_CANCELLED: Final = "feed cancelled"
DIED_BEFORE_COMMIT: Final = "server process died just before a commit"
DIED_AFTER_COMMIT: Final = "server process died just after a commit"
PAUSED_AT_COMMIT: Final = "server process paused at a commit"
SERVER_KILLED: Final = "server process killed"
SERVER_RESTARTED: Final = "server process restarted"
SERVER_PAUSED: Final = "server process paused"
SERVER_FROZEN: Final = "server frozen"
API_KILLED: Final = "api process killed"
API_STALLED: Final = "api process stalled"
CUT_FROM_LOG: Final = "server disconnected from the log"
SERVERS_PARTITIONED: Final = "servers partitioned"
NODE_KILLED: Final = "node killed"
POWER_LOST: Final = "node lost power"
SUPERVISOR_KILLED: Final = "supervisor killed"
SHIM_KILLED: Final = "shim killed"
DISK_FULL: Final = "disk of a node full"
LOG_DISK_FULL: Final = "disk of the log full"
NODE_RETURNED: Final = "node returned"
NODE_PAUSED: Final = "node paused"
NODE_CUT_OFF: Final = "node disconnected from all servers"
CLOCK_STEPPED: Final = "clock stepped"
COMPACTED: Final = "log compacted"
FOREIGN_KEYS_WRITTEN: Final = "foreign keys written"
LEASE_EXPIRED: Final = "lease expired"
LOG_RESTORED: Final = "log restored from an older copy"
FAULT_RATE_RAISED: Final = "fault rate raised"

ALL_FAULTS: Final = (
    *NETWORK_FAULTS, *TASK_FAULTS, LOG_SLOW, LOG_REQUEST_LOST, LOG_REPLY_LOST, LOG_REFUSES, FEED_DELAYED, FEED_CANCELLED,
    DIED_BEFORE_COMMIT, DIED_AFTER_COMMIT, PAUSED_AT_COMMIT, SERVER_KILLED, SERVER_RESTARTED, SERVER_PAUSED, SERVER_FROZEN, API_KILLED, API_STALLED, CUT_FROM_LOG,
    SERVERS_PARTITIONED, NODE_KILLED, POWER_LOST, SUPERVISOR_KILLED, SHIM_KILLED, DISK_FULL, LOG_DISK_FULL, NODE_RETURNED, NODE_PAUSED, NODE_CUT_OFF, CLOCK_STEPPED, COMPACTED, FOREIGN_KEYS_WRITTEN,
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
COSTLESS_FAULT_S: Final = (2.0, 60.0)
"""How long a fault of a server lasts that must cost no node. The longest is longer than the TTL and the grace of a heartbeat,
and than the lease of a leader."""
COSTLESS_PAUSE_S: Final = (5.0, 40.0)
"""How long no server is faulty between two such faults. After a pause that is shorter than the TTL, a node may lose its second server
too."""


class Chaos:
    """Injects random faults until it is cancelled."""

    def __init__(self, cluster: Cluster, timeline: Timeline) -> None:
        self._cluster = cluster
        self._timeline = timeline
        self._random = Random(f"{cluster.seed}/chaos")
        self._is_calm = True
        self._repair_context = Context()
        self._repairs: dict[asyncio.Task[None], None] = {}
        self._killed_after_commit: dict[Process, None] = {}
        self._faults: Sequence[tuple[int, Callable[[], None]]] = (
            (4, self._kill_server), (4, self._pause_server), (4, self._disconnect_from_log), (3, self._partition_servers),
            (4, self._kill_node), (3, self._pause_node), (3, self._disconnect_node), (2, self._step_clock),
            (2, self._compact), (2, self._write_foreign_keys), (2, self._raise_fault_rate), (1, self._restore_log),
            (2, self._cut_power), (2, self._kill_supervisor), (1, self._kill_shim), (1, self._fill_disk), (1, self._fill_log_disk),
            (3, self._freeze_server),
        )  # fmt: skip
        cluster.choose_faults_for = self._make_fault_chooser
        cluster.log.after_commit = self._after_commit

    def _record_fault(self, fault: str, *subjects: str) -> None:
        """Count a fault, and add it to the timeline."""
        self._cluster.fault_source.count_fault(fault)
        self._timeline.add_event(f"fault: {fault}: {' '.join(subjects)}", *subjects)

    # -- start and end ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Inject faults until cancelled."""
        self._is_calm = False
        self._cluster.fault_source.fault_rate = NORMAL_FAULT_RATE
        # Each seed has its own weights, so different faults coincide. A weight of 0 excludes a fault.
        weights = [weight * self._random.choice([0, 1, 1, 2, 4]) for weight, _ in self._faults]
        weights[self._random.randrange(len(weights))] += 3
        while True:
            await asyncio.sleep(self._random.expovariate(1 / MEAN_PAUSE_S))
            _, inject_fault = self._random.choices(self._faults, weights)[0]
            inject_fault()

    async def run_costless_faults(self, duration_s: float) -> None:
        """Inject faults that must cost no node and no allocation: one faulty server at a time, and full disks.

        The other servers have no fault meanwhile, and the network loses and delays no message.
        """
        deadline_s = self._cluster.loop.time() + duration_s
        self._is_calm = False
        while self._cluster.loop.time() < deadline_s:
            is_whole_server = self._random.choice((True, False, True))
            fault_s = self._random.uniform(*COSTLESS_FAULT_S)
            member = self._random.choice(self._cluster.members)
            if is_whole_server:
                self._record_fault(SERVER_FROZEN, member.name)
                self.freeze(member, (fault_s, fault_s))
            else:
                self._record_fault(API_STALLED, member.api.name)
                self._pause(member.api, (fault_s, fault_s))
            if self._random.random() < 0.5:
                self._random.choice((self._fill_disk, self._fill_log_disk))()
            await asyncio.sleep(fault_s + self._random.uniform(*COSTLESS_PAUSE_S))
        self._is_calm = True

    async def repair_all(self) -> None:
        """Repair all faults, and start all processes that are down."""
        self._is_calm = True
        self._cluster.fault_source.fault_rate = NO_FAULTS
        self._killed_after_commit.clear()
        for repair in list(self._repairs):
            repair.cancel()
        await asyncio.gather(*self._repairs, return_exceptions=True)
        cluster = self._cluster
        cluster.network.heal_all()
        cluster.log.full_reason = ""
        for server in cluster.server_processes:
            self._resume(server)
            if server.engine is not None and server.is_alive:
                server.engine.faults.reconnect()
                cluster.log.wake_waiters()
            if not server.is_alive:
                self._restart_server(server)
        for node in cluster.nodes:
            self._resume(node)
            if node.machine is not None:
                node.machine.fill_disk(is_full=False)
            if not node.is_alive:
                self._restart_node(node)
        self._timeline.add_event("calm: all faults are repaired")

    def _repair_later(self, delay_range_s: tuple[float, float], repair: Callable[[], None]) -> None:
        """Repair a fault after a random delay. `repair_all` cancels the delay."""

        async def wait() -> None:
            await asyncio.sleep(self._random.uniform(*delay_range_s))
            repair()

        # The current process may be the one that is killed. The repair must not be killed with it.
        task = self._repair_context.run(self._cluster.log_world.start_task, wait(), name="repair")
        self._repairs[task] = None
        task.add_done_callback(lambda done: self._repairs.pop(done, None))

    # -- requests to the log ------------------------------------------------------------------------------------

    def _make_fault_chooser(self, server: ServerProcess) -> Callable[[EngineOperation], Fault | None]:
        """Return a function that chooses the fault of each request of this server to the log."""
        draw = Random(f"{self._cluster.seed}/door/{server.name}#{server.start_count}")
        fault_source = self._cluster.fault_source

        def choose_fault(operation: EngineOperation) -> Fault | None:
            if operation is EngineOperation.FEED:
                if fault_source.draw_fault(FEED_CANCELLED, once_in=700):
                    return CancelWatchFault()
                if fault_source.draw_fault(FEED_DELAYED, once_in=120):
                    return DelayFault(request_s=draw.uniform(0.05, 3.0))
                return DelayFault(request_s=draw.uniform(0.0, 0.002))
            if operation is EngineOperation.COMMIT and not self._is_calm and self._disturb_commit(server):
                return DelayFault(request_s=0.01)
            if operation in REQUEST_OPERATIONS:
                if fault_source.draw_fault(LOG_REQUEST_LOST, once_in=400):
                    return LoseRequestFault()
                if fault_source.draw_fault(LOG_REPLY_LOST, once_in=150):
                    return LoseReplyFault()
                if operation is EngineOperation.COMMIT and fault_source.draw_fault(LOG_REFUSES, once_in=400):
                    return RefuseFault()
                if fault_source.draw_fault(LOG_SLOW, once_in=150):
                    return DelayFault(request_s=draw.uniform(0.01, 1.5), reply_s=draw.uniform(0.01, 1.5))
            return DelayFault(request_s=draw.uniform(0.000_2, 0.003), reply_s=draw.uniform(0.000_2, 0.003))

        return choose_fault

    def _disturb_commit(self, server: ServerProcess) -> bool:
        """Perhaps kill or pause a server while its commit is in flight. Return whether a fault was injected."""
        process = server.process
        if process is None or current_process() is not process or process.is_dead or process.is_paused:
            return False
        fault_source = self._cluster.fault_source
        if fault_source.draw_fault(DIED_BEFORE_COMMIT, once_in=500):
            self._kill(server)
            return True
        if fault_source.draw_fault(DIED_AFTER_COMMIT, once_in=400):
            self._killed_after_commit[process] = None
            return True
        if fault_source.draw_fault(PAUSED_AT_COMMIT, once_in=200):
            self._timeline.add_event(f"fault: {PAUSED_AT_COMMIT}: {server.name}", server.name)
            self._pause(server, (3.0, 25.0))
            return True
        return False

    def _after_commit(self, process: Process) -> None:
        if process in self._killed_after_commit:
            del self._killed_after_commit[process]
            server = next(server for server in self._cluster.server_processes if server.process is process)
            self._timeline.add_event(f"fault: {DIED_AFTER_COMMIT}: {server.name}", server.name)
            self._kill(server)

    # -- faults ---------------------------------------------------------------------------------------------------

    def _choose_server(self) -> ServerProcess | None:
        """Return a random server process that runs and is not paused, or `None`."""
        candidates = [
            server
            for server in self._cluster.server_processes
            if server.is_alive and server.process is not None and not server.process.is_paused
        ]
        return self._random.choice(candidates) if candidates else None

    def _choose_node(self) -> NodeHost | None:
        candidates = [
            n for n in self._cluster.nodes if n.is_alive and n.process is not None and not n.process.is_paused
        ]
        return self._random.choice(candidates) if len(candidates) > len(self._cluster.nodes) // 2 else None

    def _kill(self, server: ServerProcess) -> None:
        self._cluster.kill(server)
        self._repair_later((0.2, 12.0), lambda: self._restart_server(server))

    def _restart_server(self, server: ServerProcess) -> None:
        self._record_fault(SERVER_RESTARTED, server.name)
        server.start()

    def _pause(self, host: ServerProcess | NodeHost, delay_range_s: tuple[float, float]) -> None:
        process = host.process
        assert process is not None, "only a running process is paused"
        self._cluster.loop.pause(process)
        self._repair_later(delay_range_s, lambda: self._resume(host))

    def _resume(self, host: ServerProcess | NodeHost) -> None:
        """Resume a paused process, and record the end of its pause."""
        if host.process is not None and host.process.is_paused and not host.process.is_dead:
            self._cluster.loop.resume(host.process)
            if isinstance(host, NodeHost) and host.machine is not None:
                host.machine.record_disturbance()
            if isinstance(host, ServerProcess):
                host.paused_until_s = self._cluster.loop.time()
            self._timeline.add_event(f"{host.name} resumed", host.name)

    def _kill_server(self) -> None:
        if (server := self._choose_server()) is not None:
            self._record_fault(API_KILLED if server.role == "api" else SERVER_KILLED, server.name)
            self._kill(server)

    def _pause_server(self) -> None:
        if (server := self._choose_server()) is not None:
            self._record_fault(API_STALLED if server.role == "api" else SERVER_PAUSED, server.name)
            self._pause(server, (0.5, 20.0))

    def _freeze_server(self) -> None:
        """Freeze all processes of a server for a while, as a hanging machine does: its connections stay open."""
        candidates = [
            member
            for member in self._cluster.members
            if all(
                each.is_alive and each.process is not None and not each.process.is_paused for each in member.processes
            )
        ]
        if candidates:
            member = self._random.choice(candidates)
            self._record_fault(SERVER_FROZEN, member.name)
            self.freeze(member, (1.0, 30.0))

    def freeze(self, member: SimulatedServer, delay_range_s: tuple[float, float]) -> None:
        """Pause all processes of a server, and resume them together after a random delay."""
        for server in member.processes:
            assert server.process is not None, "only a running server freezes"
            self._cluster.loop.pause(server.process)

        def thaw() -> None:
            for server in member.processes:
                self._resume(server)

        self._repair_later(delay_range_s, thaw)

    def _disconnect_from_log(self) -> None:
        """Disconnect a server process from the log for a while."""
        server = self._choose_server()
        if server is None or server.engine is None:
            return
        self._record_fault(CUT_FROM_LOG, server.name)
        engine = server.engine
        engine.faults.disconnect()
        self._cluster.log.wake_waiters()

        def reconnect() -> None:
            engine.faults.reconnect()
            self._cluster.log.wake_waiters()

        self._repair_later((0.5, 15.0), reconnect)

    def _partition_servers(self) -> None:
        first, second = self._random.sample(self._cluster.members, 2)
        self._record_fault(SERVERS_PARTITIONED, first.name, second.name)
        self._cluster.network.partition(first.name, second.name)
        self._repair_later((1.0, 15.0), lambda: self._cluster.network.heal(first.name, second.name))

    def _kill_node(self) -> None:
        if (node := self._choose_node()) is not None:
            self._record_fault(NODE_KILLED, node.name)
            self._cluster.kill(node)
            self._repair_later((1.0, 60.0), lambda: self._restart_node(node))

    def _restart_node(self, node: NodeHost) -> None:
        self._record_fault(NODE_RETURNED, node.name)
        node.start()

    def _cut_power(self) -> None:
        """End all processes and programs of a node, and lose its unsynced data."""
        node = self._choose_node()
        if node is not None and node.machine is not None:
            self._record_fault(POWER_LOST, node.name)
            self._cluster.kill(node)
            node.machine.lose_power()
            self._repair_later((1.0, 60.0), lambda: self._restart_node(node))

    def _choose_machine(self) -> SimulatedMachine | None:
        candidates = [node.machine for node in self._cluster.nodes if node.machine is not None]
        return self._random.choice(candidates) if candidates else None

    def _kill_supervisor(self) -> None:
        if (machine := self._choose_machine()) is not None:
            self._record_fault(SUPERVISOR_KILLED, machine.name)
            machine.kill_supervisor()

    def _kill_shim(self) -> None:
        machine = self._choose_machine()
        if machine is not None and machine.kill_shim():
            self._record_fault(SHIM_KILLED, machine.name)

    def _fill_disk(self) -> None:
        if (machine := self._choose_machine()) is not None:
            self._record_fault(DISK_FULL, machine.name)
            machine.fill_disk(is_full=True)
            self._repair_later((1.0, 30.0), lambda: machine.fill_disk(is_full=False))

    def _fill_log_disk(self) -> None:
        """Have the log refuse all writes for a while; reads are answered."""
        self._record_fault(LOG_DISK_FULL)
        log = self._cluster.log
        log.full_reason = "the disk of the log is full"

        def free() -> None:
            log.full_reason = ""

        self._repair_later((1.0, 30.0), free)

    def _pause_node(self) -> None:
        if (node := self._choose_node()) is not None:
            self._record_fault(NODE_PAUSED, node.name)
            self._pause(node, (1.0, 60.0))

    def _disconnect_node(self) -> None:
        """Disconnect a node from all servers for a while."""
        node = self._choose_node()
        if node is None:
            return
        self._record_fault(NODE_CUT_OFF, node.name)
        for member in self._cluster.members:
            self._cluster.network.partition(node.name, member.name)

        def reconnect() -> None:
            for member in self._cluster.members:
                self._cluster.network.heal(node.name, member.name)

        self._repair_later((1.0, 60.0), reconnect)

    def _step_clock(self) -> None:
        machine = self._random.choice([m.name for m in self._cluster.members] + [n.name for n in self._cluster.nodes])
        offset_s = self._random.choice([-3600.0, -30.0, -0.5, 0.0, 0.5, 30.0, 3600.0, 86_400.0 * 40])
        self._record_fault(CLOCK_STEPPED, machine)
        self._cluster.step_clock(machine, round(offset_s * 1_000_000_000))

    def _compact(self) -> None:
        log = self._cluster.log
        before = log.index + 1 - self._random.choice([0, 0, 5, 50])
        self._record_fault(COMPACTED, str(before))
        log.compact(max(1, before))

    def _write_foreign_keys(self) -> None:
        self._record_fault(FOREIGN_KEYS_WRITTEN)
        self._cluster.log.advance_index(self._random.randint(1, 40))

    def _restore_log(self) -> None:
        """Copy the log, and restore the copy later: the writes in between are lost."""
        log = self._cluster.log
        copy = log.make_copy()

        def restore() -> None:
            self._record_fault(LOG_RESTORED)
            log.restore_copy(copy)

        self._repair_later((0.5, 20.0), restore)

    def _raise_fault_rate(self) -> None:
        """Raise the rate of message faults for a while."""
        self._record_fault(FAULT_RATE_RAISED)
        self._cluster.fault_source.fault_rate = HIGH_FAULT_RATE

        def lower_fault_rate() -> None:
            self._cluster.fault_source.fault_rate = NORMAL_FAULT_RATE

        self._repair_later((2.0, 10.0), lower_fault_rate)

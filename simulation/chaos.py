"""What befalls the cluster while it works: processes die and are held, lines are cut, clocks step, logs are compacted.

Everything is drawn from the seed, counted by name, and mended again within a bounded time; `calm` mends it all.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random
from typing import Final

from simulation.cluster import Cluster, NodeHost, ServerProcess
from simulation.machine import TASK_FAULTS, PlayedMachine
from simulation.process import Process, current_process
from simulation.story import Story
from simulation.weather import CALM, NETWORK_FAULTS, STORM, USUAL
from wharf.engines.faults import CancelWatch, Delay, Fault, LoseReply, LoseRequest, Operation, Refuse

LOG_SLOW: Final = "log answers late"
LOG_REQUEST_LOST: Final = "log never hears a request"
LOG_REPLY_LOST: Final = "log's reply lost"
LOG_REFUSES: Final = "log refuses"
FEED_LATE: Final = "feed late"
FEED_CANCELLED: Final = "feed cancelled"
DIED_BEFORE_COMMIT: Final = "server process died just before a commit"
DIED_AFTER_COMMIT: Final = "server process died just after a commit"
HELD_AT_COMMIT: Final = "server process held while it commits"
SERVER_KILLED: Final = "server process killed"
SERVER_RESTARTED: Final = "server process restarted"
SERVER_HELD: Final = "server process held"
CUT_FROM_LOG: Final = "server cut from the log"
SERVERS_PARTED: Final = "servers parted"
NODE_KILLED: Final = "node killed"
POWER_LOST: Final = "node's machine lost its power"
SUPERVISOR_KILLED: Final = "supervisor killed"
SHIM_KILLED: Final = "shim killed"
DISK_FULL: Final = "node's disk full"
NODE_RETURNED: Final = "node returned"
NODE_HELD: Final = "node held"
NODE_CUT_OFF: Final = "node cut off"
CLOCK_STEPPED: Final = "clock stepped"
COMPACTED: Final = "log compacted"
KEYS_OF_OTHERS: Final = "other people's keys written"
LEASE_RAN_OUT: Final = "lease ran out"
LOG_RESTORED: Final = "log restored from an older copy"
WEATHER_CHANGED: Final = "storm"

ALL_FAULTS: Final = (
    *NETWORK_FAULTS, *TASK_FAULTS, LOG_SLOW, LOG_REQUEST_LOST, LOG_REPLY_LOST, LOG_REFUSES, FEED_LATE, FEED_CANCELLED,
    DIED_BEFORE_COMMIT, DIED_AFTER_COMMIT, HELD_AT_COMMIT, SERVER_KILLED, SERVER_RESTARTED, SERVER_HELD, CUT_FROM_LOG,
    SERVERS_PARTED, NODE_KILLED, POWER_LOST, SUPERVISOR_KILLED, SHIM_KILLED, DISK_FULL, NODE_RETURNED, NODE_HELD, NODE_CUT_OFF, CLOCK_STEPPED, COMPACTED, KEYS_OF_OTHERS,
    LEASE_RAN_OUT, LOG_RESTORED, WEATHER_CHANGED,
)  # fmt: skip

ASKING: Final = frozenset({Operation.COMMIT, Operation.BARRIER, Operation.FIND, Operation.LOAD, Operation.KEEPALIVE})
PAUSE_S: Final = 1.6


class Chaos:
    def __init__(self, cluster: Cluster, story: Story) -> None:
        self._cluster = cluster
        self._story = story
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
        cluster.decide_for = self._decide_for
        cluster.log.after_commit = self._after_commit

    def _tell(self, fault: str, *about: str) -> None:
        self._cluster.weather.count(fault)
        self._story.event(f"fault: {fault}: {' '.join(about)}", *about)

    # -- the course of it ------------------------------------------------------------------------------------------

    async def rage(self) -> None:
        """Until cancelled."""
        self._is_calm = False
        self._cluster.weather.roughness = USUAL
        # Every seed has a taste of its own: what mostly happens together differs, and some things do not happen at all.
        weights = [weight * self._random.choice([0, 1, 1, 2, 4]) for weight, _ in self._deeds]
        weights[self._random.randrange(len(weights))] += 3
        while True:
            await asyncio.sleep(self._random.expovariate(1 / PAUSE_S))
            _, deed = self._random.choices(self._deeds, weights)[0]
            deed()

    async def calm(self) -> None:
        """Mend everything, and wait until everybody is back."""
        self._is_calm = True
        self._cluster.weather.roughness = CALM
        self._dies_after.clear()
        for mending in list(self._mending):
            mending.cancel()
        await asyncio.gather(*self._mending, return_exceptions=True)
        cluster = self._cluster
        cluster.network.join_all()
        for server in cluster.server_processes:
            self._release(server)
            if server.engine is not None and server.is_alive:
                server.engine.faults.mend()
                cluster.log.wake()
            if not server.is_alive:
                self._restart(server)
        for node in cluster.nodes:
            self._release(node)
            if node.ground is not None:
                node.ground.fill_disk(is_full=False)
            if not node.is_alive:
                self._return(node)
        self._story.event("calm: everything is mended")

    def _later(self, within_s: tuple[float, float], mend: Callable[[], None]) -> None:
        """Mend it after a while, or at once when the calm comes."""

        async def wait() -> None:
            await asyncio.sleep(self._random.uniform(*within_s))
            mend()

        # Who asks may be the very process that dies now; what is started here must not die with it.
        task = self._outside.run(self._cluster.log_world.start, wait(), name="mending")
        self._mending[task] = None
        task.add_done_callback(lambda done: self._mending.pop(done, None))

    # -- at the door to the log ------------------------------------------------------------------------------------

    def _decide_for(self, server: ServerProcess) -> Callable[[Operation], Fault | None]:
        draw = Random(f"{self._cluster.seed}/door/{server.name}#{server.lives}")
        weather = self._cluster.weather

        def decide(operation: Operation) -> Fault | None:
            if operation is Operation.FEED:
                if weather.strikes(FEED_CANCELLED, once_in=700):
                    return CancelWatch()
                if weather.strikes(FEED_LATE, once_in=120):
                    return Delay(request_s=draw.uniform(0.05, 3.0))
                return Delay(request_s=draw.uniform(0.0, 0.002))
            if operation is Operation.COMMIT and not self._is_calm and self._strikes_committer(server):
                return Delay(request_s=0.01)
            if operation in ASKING:
                if weather.strikes(LOG_REQUEST_LOST, once_in=400):
                    return LoseRequest()
                if weather.strikes(LOG_REPLY_LOST, once_in=150):
                    return LoseReply()
                if operation is Operation.COMMIT and weather.strikes(LOG_REFUSES, once_in=400):
                    return Refuse()
                if weather.strikes(LOG_SLOW, once_in=150):
                    return Delay(request_s=draw.uniform(0.01, 1.5), reply_s=draw.uniform(0.01, 1.5))
            return Delay(request_s=draw.uniform(0.000_2, 0.003), reply_s=draw.uniform(0.000_2, 0.003))

        return decide

    def _strikes_committer(self, server: ServerProcess) -> bool:
        """It commits now; its request is still on the way when this strikes."""
        process = server.process
        if process is None or current_process() is not process or process.is_dead or process.is_held:
            return False
        weather = self._cluster.weather
        if weather.strikes(DIED_BEFORE_COMMIT, once_in=500):
            self._kill(server)
            return True
        if weather.strikes(DIED_AFTER_COMMIT, once_in=400):
            self._dies_after[process] = None
            return True
        if weather.strikes(HELD_AT_COMMIT, once_in=200):
            self._story.event(f"fault: {HELD_AT_COMMIT}: {server.name}", server.name)
            self._hold(server, (3.0, 25.0))
            return True
        return False

    def _after_commit(self, process: Process) -> None:
        if process in self._dies_after:
            del self._dies_after[process]
            server = next(each for each in self._cluster.server_processes if each.process is process)
            self._story.event(f"fault: {DIED_AFTER_COMMIT}: {server.name}", server.name)
            self._kill(server)

    # -- deeds -----------------------------------------------------------------------------------------------------

    def _some_server(self) -> ServerProcess | None:
        """One that lives and runs. A majority of servers is always left with both."""
        able = [
            server
            for server in self._cluster.server_processes
            if server.is_alive and server.process is not None and not server.process.is_held
        ]
        return self._random.choice(able) if able else None

    def _some_node(self) -> NodeHost | None:
        able = [n for n in self._cluster.nodes if n.is_alive and n.process is not None and not n.process.is_held]
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
        self._cluster.loop.hold(process)
        self._later(within_s, lambda: self._release(one))

    def _release(self, one: ServerProcess | NodeHost) -> None:
        if one.process is not None and one.process.is_held and not one.process.is_dead:
            self._cluster.loop.release(one.process)
            if isinstance(one, NodeHost) and one.ground is not None:
                one.ground.note_trouble()
            if isinstance(one, ServerProcess):
                one.halted_until_s = self._cluster.loop.time()
            self._story.event(f"{one.name} goes on", one.name)

    def _kill_server(self) -> None:
        if (server := self._some_server()) is not None:
            self._tell(SERVER_KILLED, server.name)
            self._kill(server)

    def _hold_server(self) -> None:
        if (server := self._some_server()) is not None:
            self._tell(SERVER_HELD, server.name)
            self._hold(server, (0.5, 20.0))

    def _cut_from_log(self) -> None:
        server = self._some_server()
        if server is None or server.engine is None:
            return
        self._tell(CUT_FROM_LOG, server.name)
        engine = server.engine
        engine.faults.cut()
        self._cluster.log.wake()

        def mend() -> None:
            engine.faults.mend()
            self._cluster.log.wake()

        self._later((0.5, 15.0), mend)

    def _part_servers(self) -> None:
        one, other = self._random.sample(self._cluster.members, 2)
        self._tell(SERVERS_PARTED, one.name, other.name)
        self._cluster.network.part(one.name, other.name)
        self._later((1.0, 15.0), lambda: self._cluster.network.join(one.name, other.name))

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
        if node is not None and node.ground is not None:
            self._tell(POWER_LOST, node.name)
            self._cluster.kill(node)
            node.ground.lose_power()
            self._later((1.0, 60.0), lambda: self._return(node))

    def _some_machine(self) -> PlayedMachine | None:
        able = [node.ground for node in self._cluster.nodes if node.ground is not None]
        return self._random.choice(able) if able else None

    def _kill_supervisor(self) -> None:
        if (machine := self._some_machine()) is not None:
            self._tell(SUPERVISOR_KILLED, machine.name)
            machine.lose_supervisor()

    def _kill_shim(self) -> None:
        machine = self._some_machine()
        if machine is not None and machine.lose_shim():
            self._tell(SHIM_KILLED, machine.name)

    def _fill_disk(self) -> None:
        if (machine := self._some_machine()) is not None:
            self._tell(DISK_FULL, machine.name)
            machine.fill_disk(is_full=True)
            self._later((1.0, 30.0), lambda: machine.fill_disk(is_full=False))

    def _hold_node(self) -> None:
        if (node := self._some_node()) is not None:
            self._tell(NODE_HELD, node.name)
            self._hold(node, (1.0, 60.0))

    def _cut_off_node(self) -> None:
        node = self._some_node()
        if node is None:
            return
        self._tell(NODE_CUT_OFF, node.name)
        for member in self._cluster.members:
            self._cluster.network.part(node.name, member.name)

        def mend() -> None:
            for member in self._cluster.members:
                self._cluster.network.join(node.name, member.name)

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
        self._tell(KEYS_OF_OTHERS)
        self._cluster.log.write_elsewhere(self._random.randint(1, 40))

    def _restore_log(self) -> None:
        """Somebody keeps a copy of the log and puts it back a while later: what was written in between never was."""
        log = self._cluster.log
        copy = log.copy()

        def put_back() -> None:
            self._tell(LOG_RESTORED)
            log.put_back(copy)

        self._later((0.5, 20.0), put_back)

    def _change_weather(self) -> None:
        self._tell(WEATHER_CHANGED)
        self._cluster.weather.roughness = STORM

        def fair() -> None:
            self._cluster.weather.roughness = USUAL

        self._later((2.0, 10.0), fair)

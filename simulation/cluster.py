"""A whole cluster: three servers of two processes each, their doors to one log, and twenty nodes.

It builds, kills, holds and restarts; what happens when is decided by the chaos and the workload. The processes run the
product's own parts, put together as the agent does it.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from simulation.core_node import CoreNode
from simulation.exchange import SimulatedExchange
from simulation.ledger import Ledger
from simulation.links import SimulatedLink, brain_address, brain_app
from simulation.loop import SimulatedLoop
from simulation.machine import PlayedMachine
from simulation.network import AsgiApp, Network
from simulation.observed_log import ObservedLog
from simulation.process import Process
from simulation.weather import Weather
from wharf.agent.roles.candidacy import election_of
from wharf.api.app import Api
from wharf.client import ONCE, AsyncClient
from wharf.controllers.heartbeats import HeartbeatSettings
from wharf.engines.election import Election
from wharf.engines.faults import Fault, Faults, Operation
from wharf.engines.memory import MemoryEngine
from wharf.engines.memory_log import ETCD_BOUNDS
from wharf.engines.port import Unavailable
from wharf.model.refusal import Refusal
from wharf.node.agent.servers import NodeIdentity
from wharf.node.fake import FakeMachine, FakeNode
from wharf.server.asking import Answers, Leader
from wharf.server.brain import Brain
from wharf.server.collecting import Collecting
from wharf.server.drain_watch import DrainWatch
from wharf.server.launcher import Launcher
from wharf.server.peers import HttpPeers
from wharf.server.quota_watch import QuotaWatch
from wharf.server.rollout_watch import RolloutWatch
from wharf.server.server import Identity, Server
from wharf.state.codec import Decoder
from wharf.world import SimulatedWorld

SERVERS: Final = 3
NODES: Final = 20
FAKE_EVERY: Final = 4
"""Every so many of them is a fake one."""
# A leader that is new waits this long for nodes to find it; the product's five minutes would make every run an hour.
HEARTBEATS: Final = HeartbeatSettings(min_ttl_s=10.0, grace_s=5.0, failover_ttl_s=40.0)
DATACENTERS: Final = ("dc1", "dc2")


class ServerProcess:
    """One of a server's two processes, through all its lives."""

    def __init__(self, cluster: "Cluster", member: "Member", role: str) -> None:
        self.cluster = cluster
        self.member = member
        self.role = role
        self.lives = 0
        self.process: Process | None = None
        self.engine: MemoryEngine | None = None
        self.server: Server | None = None
        self.applied: list[tuple[int, float]] = []
        """When its replica had come how far: (index, moment), in order."""
        self.halted_until_s = 0.0  # The last moment at which it was held.

    @property
    def name(self) -> str:
        return f"{self.member.name}/{self.role}"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and not self.process.is_dead

    def start(self) -> None:
        assert not self.is_alive, f"{self.name} runs already"
        cluster = self.cluster
        self.lives += 1
        world = cluster.world(f"{self.name}#{self.lives}", clock_of=self.member.name)
        process = Process(f"{self.name}#{self.lives}", self.member.name, world)
        self.process = process
        self.applied = []
        faults = Faults(cluster.decide_for(self))
        self.engine = MemoryEngine(world, cluster.log, faults=faults, single_server=False)
        self.server = Server(world, self.engine, self.member.identity)
        process.start(self._run(process, self.engine, self.server), name=self.name)

    async def _run(self, process: Process, engine: MemoryEngine, server: Server) -> None:
        # As the agent does it, before anything is loaded: what a brain is made of listens to that too.
        brain = self._make_brain(server) if self.role == "brain" else None
        server.follower.listeners.append(lambda batch: self._note(batch.index))
        server.follower.on_load.append(lambda: self._note(server.replica.index))
        self.cluster.on_started(self, server)
        while True:
            try:
                await engine.open()
                break
            except Unavailable:
                await asyncio.sleep(1.0)
        process.start(server.follower.run(), name="follower")
        await server.follower.loaded.wait()
        await (self._be_brain(process, server, *brain) if brain is not None else self._be_api(process, server))

    def _note(self, index: int) -> None:
        self.applied.append((index, self.cluster.loop.time()))

    def _make_brain(self, server: Server) -> tuple[Brain, Election]:
        election = election_of(server, folder=self.member.name)
        brain = Brain(
            server.world, server.engine, server.follower, server.writer, election, heartbeats=self.cluster.heartbeats
        )
        RolloutWatch(server.world, brain)
        DrainWatch(server.world, brain)
        Launcher(server.world, brain, server.job_settings)
        Collecting(server.world, brain)
        QuotaWatch(brain)
        return brain, election

    async def _be_brain(self, process: Process, server: Server, brain: Brain, election: Election) -> None:
        await self._found(server)
        self.cluster.network.listen(brain_address(self.member.address), process, brain_app(Answers(brain)))
        process.start(election.stay_a_member(), name="membership")
        await brain.run()

    async def _found(self, server: Server) -> None:
        while True:
            try:
                return await server.found()
            except (Refusal, Unavailable):
                await asyncio.sleep(1.0)

    async def _be_api(self, process: Process, server: Server) -> None:
        network = self.cluster.network
        own = SimulatedLink(network, process, brain_address(self.member.address))
        peers = HttpPeers(lambda address: SimulatedExchange(network, process, lambda: address, may_repeat=False))
        server.brain = own
        server.leader = Leader(server.replica, self.member.identity.member_id, own, peers)
        network.listen(self.member.address, process, self.cluster.serving(self, Api(server)))


class Member:
    """A server: a machine with an api and a brain."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.name = f"server-{number}"
        self.address = f"{self.name}:4646"
        self.identity = Identity(
            member_id=self.name, name=self.name, address=self.address, door_secret=f"secret of {self.name}"
        )
        self.api = ServerProcess(cluster, self, "api")
        self.brain = ServerProcess(cluster, self, "brain")

    @property
    def processes(self) -> tuple[ServerProcess, ServerProcess]:
        return self.api, self.brain


class NodeHost:
    """A machine with a node on it, through all the lives of its agent. The node's id and secret stay the same.

    Most run the product's own core; some are fake nodes, as `wharf dev` has them, and have no `ground`.
    """

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.cluster = cluster
        self.name = f"node-{number}"
        self.lives = 0
        self.process: Process | None = None
        self.node: FakeNode | CoreNode | None = None
        self.looks = FakeMachine(
            name=self.name,
            datacenter=DATACENTERS[number % len(DATACENTERS)],
            cpu_mhz=(2_000, 4_000)[number % 2],
            memory_mb=(2_048, 4_096)[number % 2],
        )
        self.ground: PlayedMachine | None = None
        if number % FAKE_EVERY:
            self.ground = PlayedMachine(self.name, cluster.seed, cluster.loop, cluster.weather, cluster.ledger)

    @property
    def is_alive(self) -> bool:
        return self.process is not None and not self.process.is_dead

    def start(self) -> None:
        assert not self.is_alive, f"{self.name} runs already"
        cluster = self.cluster
        self.lives += 1
        # The first two ids that a node draws are its own and its secret: the same world gives the same again.
        world = cluster.world(self.name, clock_of=self.name)
        identity = NodeIdentity(world.new_id(), world.new_secret())
        world.random = Random(f"{cluster.seed}/{self.name}#{self.lives}")
        process = Process(f"{self.name}#{self.lives}", self.name, world)
        self.process = process
        exchange = SimulatedExchange(cluster.network, process, cluster.server_chooser(self.name))
        client = AsyncClient(world, [exchange], retries=ONCE)
        if self.ground is None:
            node: FakeNode | CoreNode = FakeNode(world, client, self.looks, identity=identity)
        else:
            world.booted_s = self.ground.booted_s
            self.ground.note_trouble()
            draw = Random(f"{cluster.seed}/{self.name}#{self.lives}/driver")
            node = CoreNode(world, client, self.looks, identity, self.ground, process, draw)
        self.node = node
        process.start(node.run(), name=self.name)


class Cluster:
    """`hooks` are where the chaos and the invariants take part."""

    def __init__(self, seed: int, loop: SimulatedLoop, log: ObservedLog, weather: Weather, ledger: Ledger) -> None:
        Decoder.proves_adopted = True  # What a writer takes in without decoding it is compared with what others decode.
        self.seed = seed
        self.loop = loop
        self.log = log
        self.weather = weather
        self.log_world = SimulatedWorld(seed, loop.time, member="outside")
        """Of no machine: what the chaos and the workload start belongs here."""
        self.ledger = ledger
        self.network = Network(loop, weather)
        self.heartbeats = HEARTBEATS
        self.clock_offsets_ns: dict[str, int] = {}
        self._worlds: list[tuple[str, SimulatedWorld]] = []
        self.members = [Member(self, number + 1) for number in range(SERVERS)]
        self.nodes = [NodeHost(self, number + 1) for number in range(NODES)]
        self.decide_for: Callable[[ServerProcess], Callable[[Operation], Fault | None]] = lambda _: (
            lambda _operation: None
        )
        self.on_started: Callable[[ServerProcess, Server], None] = lambda _process, _server: None
        self.serving: Callable[[ServerProcess, AsgiApp], AsgiApp] = lambda _process, app: app

    @property
    def server_processes(self) -> list[ServerProcess]:
        return [process for member in self.members for process in member.processes]

    def world(self, name: str, *, clock_of: str) -> SimulatedWorld:
        world = SimulatedWorld(self.seed, self.loop.time, member=name)
        world.clock_offset_ns = self.clock_offsets_ns.get(clock_of, 0)
        self._worlds.append((clock_of, world))
        return world

    def step_clock(self, machine: str, offset_ns: int) -> None:
        """The machine's wall clock jumps; its monotonic clock does not."""
        self.clock_offsets_ns[machine] = offset_ns
        for clock_of, world in self._worlds:
            if clock_of == machine:
                world.clock_offset_ns = offset_ns

    def server_chooser(self, name: str) -> Callable[[], str]:
        """Mostly the same server, now and then another."""
        random = Random(f"{self.seed}/chooser/{name}")
        current = random.choice(self.members)

        def choose() -> str:
            nonlocal current
            if random.random() < 0.1:
                current = random.choice(self.members)
            return current.address

        return choose

    def start(self) -> None:
        for process in self.server_processes:
            process.start()
        for node in self.nodes:
            node.start()

    def kill(self, one: ServerProcess | NodeHost) -> None:
        process = one.process
        assert process is not None, f"{one.name} never ran"
        assert not process.is_dead, f"{one.name} is dead already"
        if isinstance(one, ServerProcess) and one.engine is not None:
            one.engine.crash()
        self.loop.kill(process)
        self.network.on_death(process)


def new_log(loop: SimulatedLoop, seed: int) -> ObservedLog:
    """A log that plays etcd, with etcd's bounds."""
    return ObservedLog(SimulatedWorld(seed, loop.time, member="log"), ETCD_BOUNDS)

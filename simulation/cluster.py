"""A whole cluster: three servers with two processes each, their connections to one log, and twenty nodes.

The cluster starts and kills processes; `chaos` and `workload` decide when. The processes run the product's own parts,
connected as the agent connects them.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from simulation.core_node import CoreNode
from simulation.fault_source import FaultSource
from simulation.http_transport import SimulatedTransport
from simulation.loop import SimulatedLoop
from simulation.machine import SimulatedMachine
from simulation.network import AsgiApp, Network
from simulation.observed_log import ObservedLog
from simulation.process import Process
from simulation.rpc_transport import SimulatedRpcTransport, make_brain_address, make_brain_app
from simulation.task_runs import TaskRunLog
from wharf.agent.roles.brain import build_collection_settings
from wharf.agent.roles.election import build_election
from wharf.agent.roles.server import build_job_settings, build_search_limits
from wharf.cluster.api.app import Api
from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.engines.election import Election
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.faults import EngineOperation, Fault, FaultInjector
from wharf.cluster.engines.memory.log import ETCD_WRITE_LIMITS
from wharf.cluster.engines.port import LogUnavailable
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.duties.collection import CollectionDuty, VolumeDuty
from wharf.cluster.server.duties.deployments import DeploymentDuty
from wharf.cluster.server.duties.drains import DrainDuty
from wharf.cluster.server.duties.isolation import IsolationDuty
from wharf.cluster.server.duties.job_needs import JobNeedDuty
from wharf.cluster.server.duties.periodic import PeriodicLaunchDuty
from wharf.cluster.server.duties.quotas import QuotaDuty
from wharf.cluster.server.duties.run_queue import RunQueueDuty
from wharf.cluster.server.duties.runs import RunDuty
from wharf.cluster.server.duties.step_locks import StepLockDuty
from wharf.cluster.server.rpc.dispatcher import RpcDispatcher
from wharf.cluster.server.rpc.http import HttpPeerTransports
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.rpc.pulse import PulseSender
from wharf.cluster.server.server import Server, ServerIdentity
from wharf.cluster.state.codec import RecordDecoder
from wharf.config.settings import AgentSettings
from wharf.contract.client import NO_RETRIES, AsyncClient
from wharf.contract.model.refusal import Refusal
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode
from wharf.world import SimulatedWorld

SERVER_COUNT: Final = 3
NODE_COUNT: Final = 20
NODES_PER_FAKE_NODE: Final = 4
"""One node of this number is a fake node."""
# A new leader waits 40 s for the nodes to reach it. The five minutes of the product would make each run too long.
HEARTBEAT_SETTINGS: Final = HeartbeatSettings(min_ttl_s=10.0, grace_s=5.0, failover_ttl_s=40.0, max_per_second=50.0)
IMPATIENT_HEARTBEAT_SETTINGS: Final = HeartbeatSettings(
    min_ttl_s=2.0, grace_s=1.0, failover_ttl_s=4.0, max_per_second=50.0
)
"""The settings of odd seeds. Deadlines pass although servers have faults all the time, so that many nodes are lost."""
JOB_SETTINGS: Final = build_job_settings(AgentSettings())
COLLECTION_SETTINGS: Final = build_collection_settings(AgentSettings())
SEARCH_LIMITS: Final = build_search_limits(AgentSettings())
DATACENTERS: Final = ("dc1", "dc2")


class ServerProcess:
    """The api or the brain process of a server, across its restarts."""

    def __init__(self, cluster: "Cluster", member: "SimulatedServer", role: str) -> None:
        self.cluster = cluster
        self.member = member
        self.role = role
        self.start_count = 0
        self.process: Process | None = None
        self.engine: MemoryEngine | None = None
        self.server: Server | None = None
        self.applied_indexes: list[tuple[int, float]] = []
        """When the replica had applied which index, as (index, time in seconds), in order."""
        self.paused_until_s = 0.0  # The end of its last pause.

    @property
    def name(self) -> str:
        return f"{self.member.name}/{self.role}"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and not self.process.is_dead

    def start(self) -> None:
        assert not self.is_alive, f"{self.name} is running already"
        cluster = self.cluster
        self.start_count += 1
        world = cluster.make_world(f"{self.name}#{self.start_count}", machine=self.member.name)
        process = Process(f"{self.name}#{self.start_count}", self.member.name, world)
        self.process = process
        self.applied_indexes = []
        faults = FaultInjector(cluster.choose_faults_for(self))
        self.engine = MemoryEngine(world, cluster.log, faults=faults, is_single_server=False)
        self.server = Server(
            world, self.engine, self.member.identity, job_settings=JOB_SETTINGS, search_limits=SEARCH_LIMITS
        )
        process.start(self._run(process, self.engine, self.server), name=self.name)

    async def _run(self, process: Process, engine: MemoryEngine, server: Server) -> None:
        """Connect to the log, load the replica, and run the api or the brain."""
        # The agent also creates the brain before the replica loads, because its parts listen to the load.
        brain = self._make_brain(server) if self.role == "brain" else None
        server.follower.batch_listeners.append(lambda batch: self._record_applied(batch.index))
        server.follower.load_listeners.append(lambda: self._record_applied(server.replica.index))
        self.cluster.on_started(self, server)
        while True:
            try:
                await engine.open()
                break
            except LogUnavailable:
                await asyncio.sleep(1.0)
        process.start(server.follower.run(), name="follower")
        await server.follower.loaded_event.wait()
        await (self._run_brain(process, server, *brain) if brain is not None else self._run_api(process, server))

    def _record_applied(self, index: int) -> None:
        self.applied_indexes.append((index, self.cluster.loop.time()))

    def _make_brain(self, server: Server) -> tuple[Brain, Election]:
        """Create the brain with its duties, as the agent does."""
        election = build_election(server, folder=self.member.name)
        brain = Brain(
            server.world,
            server.engine,
            server.follower,
            server.writer,
            election,
            heartbeats=self.cluster.heartbeat_settings,
            bootstrap=server.bootstrap,
        )
        DeploymentDuty(server.world, brain, server.job_settings)
        DrainDuty(server.world, brain)
        PeriodicLaunchDuty(server.world, brain, server.job_settings)
        RunQueueDuty(brain)
        RunDuty(server.world, brain)
        JobNeedDuty(brain)
        CollectionDuty(server.world, brain, COLLECTION_SETTINGS)
        QuotaDuty(brain)
        StepLockDuty(brain)
        IsolationDuty(brain)
        VolumeDuty(brain)
        return brain, election

    async def _run_brain(self, process: Process, server: Server, brain: Brain, election: Election) -> None:
        """Bootstrap the cluster if necessary, accept calls of other processes, and take part in elections."""
        await self._bootstrap(server)
        self.cluster.network.listen(
            make_brain_address(self.member.address), process, make_brain_app(RpcDispatcher(brain))
        )
        process.start(election.maintain_membership(), name="membership")
        await brain.run()

    async def _bootstrap(self, server: Server) -> None:
        while True:
            try:
                return await server.bootstrap_cluster()
            except (Refusal, LogUnavailable):
                await asyncio.sleep(1.0)

    async def _run_api(self, process: Process, server: Server) -> None:
        """Serve the HTTP API, with connections to the own brain and to other servers."""
        network = self.cluster.network
        own = SimulatedRpcTransport(network, process, make_brain_address(self.member.address))
        peers = HttpPeerTransports(
            process.world, lambda address: SimulatedTransport(network, process, lambda: address, can_repeat=False)
        )
        server.brain_transport = own
        server.leader = LeaderClient(server.replica, self.member.identity.member_id, own, peers)
        pulse_sender = PulseSender(
            process.world,
            "api",
            member_id=self.member.identity.member_id,
            own_brain=own,
            leader=server.leader,
            heartbeats=server.heartbeats,
            probe=_probe_at_once,
        )
        await pulse_sender.announce()
        network.listen(self.member.address, process, self.cluster.wrap_app(self, Api(server)))
        process.start(pulse_sender.run(), name="pulses")


async def _probe_at_once() -> None:
    """Return at once: a simulated api process reads what arrives without a delay."""


class SimulatedServer:
    """A machine with the api and the brain process of one server."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.name = f"server-{number}"
        self.address = f"{self.name}:4646"
        self.identity = ServerIdentity(
            member_id=self.name, name=self.name, address=self.address, door_secret=f"secret of {self.name}"
        )
        self.api = ServerProcess(cluster, self, "api")
        self.brain = ServerProcess(cluster, self, "brain")

    @property
    def processes(self) -> tuple[ServerProcess, ServerProcess]:
        return self.api, self.brain


class NodeHost:
    """A machine with a node, across the restarts of its agent. The id and the secret of the node stay the same.

    Most nodes run the product's own core. Fake nodes, which `wharf dev` also uses, have no `machine`.
    """

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.cluster = cluster
        self.name = f"node-{number}"
        self.knows_all_servers = number % 2 == 0
        self.start_count = 0
        self.process: Process | None = None
        self.node: FakeNode | CoreNode | None = None
        self.node_profile = FakeMachine(
            name=self.name,
            datacenter=DATACENTERS[number % len(DATACENTERS)],
            cpu_mhz=(2_000, 4_000)[number % 2],
            memory_mb=(2_048, 4_096)[number % 2],
        )
        self.machine: SimulatedMachine | None = None
        if number % NODES_PER_FAKE_NODE:
            self.machine = SimulatedMachine(
                self.name, cluster.seed, cluster.loop, cluster.fault_source, cluster.task_runs
            )

    @property
    def is_alive(self) -> bool:
        return self.process is not None and not self.process.is_dead

    def start(self) -> None:
        assert not self.is_alive, f"{self.name} is running already"
        cluster = self.cluster
        self.start_count += 1
        # A new world with the same name draws the same id and secret for the node.
        world = cluster.make_world(self.name, machine=self.name)
        identity = NodeCredentials(world.new_id(), world.new_secret())
        world.random = Random(f"{cluster.seed}/{self.name}#{self.start_count}")
        process = Process(f"{self.name}#{self.start_count}", self.name, world)
        self.process = process
        transports = [
            SimulatedTransport(cluster.network, process, choose_address)
            for choose_address in cluster.make_address_choosers(self)
        ]
        client = AsyncClient(world, transports, retry_policy=NO_RETRIES)
        if self.machine is None:
            node: FakeNode | CoreNode = FakeNode(world, client, self.node_profile, identity=identity)
        else:
            world.boot_time_s = self.machine.booted_s
            self.machine.record_disturbance()
            draw = Random(f"{cluster.seed}/{self.name}#{self.start_count}/driver")
            node = CoreNode(world, client, self.node_profile, identity, self.machine, process, draw)
        self.node = node
        process.start(node.run(), name=self.name)


class Cluster:
    """The servers, nodes, network and log of a run. Chaos and invariants replace its callbacks."""

    def __init__(
        self, seed: int, loop: SimulatedLoop, log: ObservedLog, fault_source: FaultSource, task_runs: TaskRunLog
    ) -> None:
        # A writer adopts its own records without decoding them. Compare them with the decoded ones.
        RecordDecoder.should_verify_adopted = True
        self.seed = seed
        self.loop = loop
        self.log = log
        self.fault_source = fault_source
        self.log_world = SimulatedWorld(seed, loop.time, member="outside")
        """The world of chaos and workload, which belong to no machine."""
        self.task_runs = task_runs
        self.network = Network(loop, fault_source)
        self.heartbeat_settings = IMPATIENT_HEARTBEAT_SETTINGS if seed % 2 else HEARTBEAT_SETTINGS
        self.clock_offsets_ns: dict[str, int] = {}
        self._worlds: list[tuple[str, SimulatedWorld]] = []
        self.members = [SimulatedServer(self, number + 1) for number in range(SERVER_COUNT)]
        self.nodes = [NodeHost(self, number + 1) for number in range(NODE_COUNT)]
        self.choose_faults_for: Callable[[ServerProcess], Callable[[EngineOperation], Fault | None]] = lambda _: (
            lambda _operation: None
        )
        self.on_started: Callable[[ServerProcess, Server], None] = lambda _process, _server: None
        self.wrap_app: Callable[[ServerProcess, AsgiApp], AsgiApp] = lambda _process, app: app

    @property
    def server_processes(self) -> list[ServerProcess]:
        return [process for member in self.members for process in member.processes]

    def make_world(self, name: str, *, machine: str) -> SimulatedWorld:
        """Return a world whose clock has the offset of the machine, also after later steps."""
        world = SimulatedWorld(self.seed, self.loop.time, member=name)
        world.clock_offset_ns = self.clock_offsets_ns.get(machine, 0)
        self._worlds.append((machine, world))
        return world

    def step_clock(self, machine: str, offset_ns: int) -> None:
        """Set the wall clock of a machine to this offset. Its monotonic clock does not change."""
        self.clock_offsets_ns[machine] = offset_ns
        for world_machine, world in self._worlds:
            if world_machine == machine:
                world.clock_offset_ns = offset_ns

    def make_server_chooser(self, name: str) -> Callable[[], str]:
        """Return a function that mostly returns the address of the same server, and changes it in 10 % of the calls."""
        random = Random(f"{self.seed}/chooser/{name}")
        current = random.choice(self.members)

        def choose() -> str:
            nonlocal current
            if random.random() < 0.1:
                current = random.choice(self.members)
            return current.address

        return choose

    def make_address_choosers(self, node: "NodeHost") -> list[Callable[[], str]]:
        """Return a function for each server address that the node is configured with.

        Half of the nodes know all servers and leave one that does not reply. The others know one address, behind which
        the server changes now and then, as behind a load balancer.
        """
        if not node.knows_all_servers:
            return [self.make_server_chooser(node.name)]
        members = list(self.members)
        Random(f"{self.seed}/servers/{node.name}#{node.start_count}").shuffle(members)
        return [partial(getattr, member, "address") for member in members]

    def start(self) -> None:
        for process in self.server_processes:
            process.start()
        for node in self.nodes:
            node.start()

    def kill(self, host: ServerProcess | NodeHost) -> None:
        """Kill the current process of a server or node."""
        process = host.process
        assert process is not None, f"{host.name} was never started"
        assert not process.is_dead, f"{host.name} is dead already"
        if isinstance(host, ServerProcess) and host.engine is not None:
            host.engine.crash()
        self.loop.kill(process)
        self.network.on_process_death(process)


def make_log(loop: SimulatedLoop, seed: int) -> ObservedLog:
    """Return a log in memory with the limits of etcd."""
    return ObservedLog(SimulatedWorld(seed, loop.time, member="log"), ETCD_WRITE_LIMITS)

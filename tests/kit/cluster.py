"""Small words for tests that need a server: real parts only, over a log in memory, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

from tests.kit.election import TakesOver
from tests.kit.exchange import InMemory
from tests.kit.virtual_time import pass_time, until
from wharf.api.app import Api
from wharf.api.gate import Gate
from wharf.client import ONCE, AsyncClient
from wharf.controllers.heartbeats import HeartbeatSettings
from wharf.engines.faults import Faults
from wharf.engines.memory import MemoryEngine
from wharf.engines.memory_log import MemoryLog
from wharf.engines.port import Bounds
from wharf.node.agent.servers import NodeIdentity
from wharf.node.fake import FakeMachine, FakeNode
from wharf.server.access import AccessSettings
from wharf.server.asking import Answers, Leader
from wharf.server.brain import Brain
from wharf.server.collecting import Collecting
from wharf.server.drain_watch import DrainWatch
from wharf.server.keyring import WrappingKey
from wharf.server.launcher import Launcher
from wharf.server.quota_watch import QuotaWatch
from wharf.server.rollout_watch import RolloutWatch
from wharf.server.server import Identity, Server
from wharf.server.tending import Tending
from wharf.state.tables import NODES
from wharf.world import SimulatedWorld

SEED = 7
WRAPPING_SECRET = b"a key that is in no log, of 32 B"


class OneServer:
    """A server with its brain, its API and a client of it."""

    def __init__(
        self, cluster: "ACluster", name: str, *, heartbeats: HeartbeatSettings | None, access: bool = False
    ) -> None:
        self.name = name
        self.world = cluster.world(name)
        self.faults = Faults()
        self.engine = MemoryEngine(self.world, cluster.log, faults=self.faults, single_server=False)
        self.server = Server(self.world, self.engine, Identity(name, name, address=f"{name}:4646"))
        self.server.feed_events()
        self.replica = self.server.replica
        self.election = TakesOver(self.server)
        self.brain = Brain(
            self.world,
            self.engine,
            self.server.follower,
            self.server.writer,
            self.election,
            heartbeats=heartbeats,
        )
        self.answers = Answers(self.brain)
        self.server.leader = Leader(self.replica, name, self.answers, cluster)
        self.server.access.keyring.use(WrappingKey(WRAPPING_SECRET))
        self.server.access.take(AccessSettings(enabled=access))
        self.tending = Tending(self.brain, self.server.access.keyring)
        RolloutWatch(self.world, self.brain)
        DrainWatch(self.world, self.brain)
        Launcher(self.world, self.brain, self.server.job_settings)
        Collecting(self.world, self.brain)
        QuotaWatch(self.brain)
        gate = Gate(self.world, enabled=access, verifier=self.server.access.identities)
        self.api = Api(self.server, gate=gate)
        self.exchange = InMemory(self.api)
        self.client = AsyncClient(self.world, [self.exchange], retries=ONCE)
        self._cluster = cluster

    async def follow(self) -> None:
        """Open the door and keep the replica at the head of the log."""
        await self.engine.open()
        self._cluster.start(self.server.follower.run(), name=f"{self.name} follows")
        await self.server.follower.loaded.wait()

    async def lead(self) -> None:
        """Start the brain, and wait until it leads."""
        self._cluster.start(self.brain.run(), name=f"{self.name} leads")
        await until(lambda: self.brain.is_leading, what=f"{self.name} leads")


class ACluster:
    """`async with ACluster() as cluster`: whatever was started in it has ended at its end."""

    def __init__(self, *, bounds: Bounds | None = None, seed: int = SEED) -> None:
        self._seed = seed
        self.log = MemoryLog(self.world("log"), bounds=bounds)
        self.servers: dict[str, OneServer] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._may_fail: list[str] = []

    def world(self, member: str) -> SimulatedWorld:
        return SimulatedWorld(self._seed, asyncio.get_running_loop().time, member=member)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        return task

    def expect_failure(self, task_name: str) -> None:
        """The task of this name ends with an error, as it should."""
        self._may_fail.append(task_name)

    async def __aenter__(self) -> "ACluster":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await pass_time(0.001)  # What was cancelled takes its last step.
        for one in self.servers.values():
            await one.server.reader.finish()
            await one.engine.close()
        failed = [
            end
            for task, end in zip(self._tasks, ended, strict=True)
            if isinstance(end, Exception) and task.get_name() not in self._may_fail
        ]
        if failed and error is None:
            raise failed[0]

    async def a_server(
        self,
        name: str = "m1",
        *,
        leads: bool = True,
        heartbeats: HeartbeatSettings | None = None,
        access: bool = False,
    ) -> OneServer:
        """A server that follows the log; founded, and leading if it is the first to be told so. `access`: with access
        control on."""
        one = self.servers[name] = OneServer(self, name, heartbeats=heartbeats, access=access)
        await one.follow()
        await one.server.found()
        if leads:
            await one.lead()
        return one

    def a_fake_node(self, server: OneServer, name: str = "node-1", **machine: Any) -> "ANode":
        return ANode(self, server, FakeMachine(name=name, **machine))

    async def ready_nodes(self, server: OneServer, count: int, **machine: Any) -> list["ANode"]:
        """So many fake nodes, ready for work."""
        nodes = [self.a_fake_node(server, f"node-{number}", **machine) for number in range(1, count + 1)]
        for node in nodes:
            await node.is_ready()
        return nodes

    # -- ways to other members' brains (`server.asking.Peers`)

    def link(self, member: Any) -> Answers:
        return self.servers[member.id].answers


class ANode:
    """A fake node that runs, on an exchange of its own."""

    def __init__(self, cluster: ACluster, server: OneServer, machine: FakeMachine) -> None:
        self.exchange = InMemory(server.api)
        world = cluster.world(machine.name)
        identity = NodeIdentity(world.new_id(), world.new_secret())
        self.id, self.secret_id = identity.id, identity.secret_id
        self.node = FakeNode(world, AsyncClient(world, [self.exchange], retries=ONCE), machine, identity=identity)
        self._server = server
        self._task = cluster.start(self.node.run(), name=machine.name)

    async def is_ready(self) -> None:
        await self.has_status("ready")

    async def has_status(self, status: str, *, within_s: float = 60.0) -> None:

        def look() -> bool:
            node = self._server.replica.get(NODES, self.id)
            return node is not None and node.status == status

        await until(look, what=f"node {self.id} is {status}", within_s=within_s)

    async def die(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def return_to(self, cluster: ACluster) -> None:
        """It runs again, and knows what it knew."""
        self._task = cluster.start(self.node.run(), name=f"{self.id} is back")


Story = Callable[[], Awaitable[None]]

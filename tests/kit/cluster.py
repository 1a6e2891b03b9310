"""Servers and fake nodes for tests: real components over a log in memory, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

from tests.kit.election import ControlledElection
from tests.kit.exchange import InMemoryTransport
from tests.kit.settings import USUAL_SEARCH_LIMITS
from tests.kit.virtual_time import pass_time, until
from wharf.cluster.api.access_control import CallerAuthenticator
from wharf.cluster.api.app import Api
from wharf.cluster.controllers.collection import CollectionSettings
from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.memory.faults import FaultInjector
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import WriteLimits
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
from wharf.cluster.server.duties.secrets import SecretsDuty, SecretsSettings
from wharf.cluster.server.duties.step_locks import StepLockDuty
from wharf.cluster.server.rpc.dispatcher import RpcDispatcher
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.cluster.server.security.keyring import WrappingKey
from wharf.cluster.server.server import Server, ServerIdentity
from wharf.cluster.server.worker_process import WorkerProcess
from wharf.cluster.state.tables import NODES
from wharf.contract.client import NO_RETRIES, AsyncClient
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.times import HOUR, MINUTE
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode
from wharf.world import SimulatedWorld

SEED = 7

# Settings that differ from their defaults, so that tests fail if code does not pass a setting on.
JOB_SETTINGS = JobSettings(
    region="global",
    node_pool="default",
    default_priority=45,
    max_priority=90,
    max_count=40_000,
    memory_oversubscription=True,
    max_source_bytes=900_000,
    versions_kept=5,
)
COLLECTION_SETTINGS = CollectionSettings(
    interval_s=240.0,
    evaluation_retention_ns=50 * MINUTE,
    batch_evaluation_retention_ns=20 * HOUR,
    job_retention_ns=3 * HOUR,
    batch_job_retention_ns=100 * HOUR,
    max_batch_results=900,
    deployment_retention_ns=70 * MINUTE,
    node_retention_ns=20 * HOUR,
)
HEARTBEAT_SETTINGS = HeartbeatSettings(min_ttl_s=9.0, grace_s=11.0, failover_ttl_s=280.0, max_per_second=45.0)
SECRETS_SETTINGS = SecretsSettings(
    check_interval_s=250.0,
    max_active_key_age_ns=600 * HOUR,
    unused_key_retention_ns=50 * MINUTE,
    expired_token_retention_ns=70 * MINUTE,
)
WRAPPING_SECRET = b"a key that is in no log, of 32 B"


class OneServer:
    """A server of the cluster, with its brain, its API and a client."""

    def __init__(
        self,
        cluster: "ACluster",
        name: str,
        *,
        heartbeats: HeartbeatSettings = HEARTBEAT_SETTINGS,
        access: bool = False,
        job_settings: JobSettings = JOB_SETTINGS,
        worker: WorkerProcess | None = None,
        collection: CollectionSettings = COLLECTION_SETTINGS,
    ) -> None:
        self.name = name
        self.world = cluster.world(name)
        self.faults = FaultInjector()
        self.engine = MemoryEngine(self.world, cluster.log, faults=self.faults, is_single_server=False)
        self.server = Server(
            self.world,
            self.engine,
            ServerIdentity(name, name, address=f"{name}:4646"),
            job_settings=job_settings,
            search_limits=USUAL_SEARCH_LIMITS,
        )
        self.server.enable_events()
        self.replica = self.server.replica
        self.election = ControlledElection(self.server)
        self.brain = Brain(
            self.world,
            self.engine,
            self.server.follower,
            self.server.writer,
            self.election,
            heartbeats=heartbeats,
            bootstrap=self.server.bootstrap,
        )
        self.rpc_dispatcher = RpcDispatcher(self.brain, worker=worker)
        self.server.leader = LeaderClient(self.replica, name, self.rpc_dispatcher, cluster)
        self.server.access.keyring.set_wrapping_keys(WrappingKey(WRAPPING_SECRET))
        self.server.access.apply_settings(AccessSettings(is_enabled=access))
        self.secrets_duty = SecretsDuty(self.brain, self.server.access.keyring, SECRETS_SETTINGS)
        DeploymentDuty(self.world, self.brain, self.server.job_settings)
        DrainDuty(self.world, self.brain)
        PeriodicLaunchDuty(self.world, self.brain, self.server.job_settings)
        RunQueueDuty(self.brain)
        RunDuty(self.world, self.brain)
        JobNeedDuty(self.brain)
        CollectionDuty(self.world, self.brain, collection)
        QuotaDuty(self.brain)
        StepLockDuty(self.brain)
        IsolationDuty(self.brain)
        VolumeDuty(self.brain)
        self.api = self.build_api()
        self.exchange = InMemoryTransport(self.api)
        self.client = AsyncClient(self.world, [self.exchange], retry_policy=NO_RETRIES)
        self._cluster = cluster

    def build_api(self, **options: Any) -> Api:
        """Return an application of this server with its access control. `options` are those of `Api`."""
        access = self.server.access
        authenticator = CallerAuthenticator(
            self.world, is_enabled=access.settings.is_enabled, verifier=access.identity_signer
        )
        return Api(self.server, authenticator=authenticator, **options)

    async def follow(self) -> None:
        """Open the engine and keep the replica at the head of the log."""
        await self.engine.open()
        self._cluster.start(self.server.follower.run(), name=f"{self.name} follows")
        await self.server.follower.loaded_event.wait()

    async def lead(self) -> None:
        """Start the brain, and wait until it leads."""
        self._cluster.start(self.brain.run(), name=f"{self.name} leads")
        await until(lambda: self.brain.is_leading, what=f"{self.name} leads")


class ACluster:
    """A cluster in memory, used as an async context manager: everything started in it ends with the block."""

    def __init__(self, *, limits: WriteLimits | None = None, seed: int = SEED) -> None:
        self._seed = seed
        self.log = MemoryLog(self.world("log"), limits=limits)
        self.servers: dict[str, OneServer] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._may_fail: list[str] = []

    def world(self, member: str) -> SimulatedWorld:
        return SimulatedWorld(self._seed, asyncio.get_running_loop().time, member=member)

    def advance_clocks(self, seconds: float) -> None:
        """Advance the wall clock of every server. No timer fires: a month costs no more than a second."""
        for member in self.servers.values():
            member.world.clock_offset_ns += round(seconds * 1_000_000_000)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        return task

    def expect_failure(self, task_name: str) -> None:
        """Accept that the task with this name fails."""
        self._may_fail.append(task_name)

    async def __aenter__(self) -> "ACluster":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await pass_time(0.001)  # Let the cancelled tasks take their last step.
        for member in self.servers.values():
            await member.server.reader.wait_closed()
            await member.brain.reader.wait_closed()
            await member.engine.close()
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
        heartbeats: HeartbeatSettings = HEARTBEAT_SETTINGS,
        access: bool = False,
        job_settings: JobSettings = JOB_SETTINGS,
        worker: WorkerProcess | None = None,
        collection: CollectionSettings = COLLECTION_SETTINGS,
    ) -> OneServer:
        """Start a server that follows the log, and bootstrap the cluster. `leads`: wait until it leads. `access`: enable
        access control."""
        member = self.servers[name] = OneServer(
            self,
            name,
            heartbeats=heartbeats,
            access=access,
            job_settings=job_settings,
            worker=worker,
            collection=collection,
        )
        await member.follow()
        await member.server.bootstrap_cluster()
        if leads:
            await member.lead()
        return member

    def a_fake_node(self, server: OneServer, name: str = "node-1", **machine: Any) -> "ANode":
        return ANode(self, server, FakeMachine(name=name, **machine))

    async def ready_nodes(self, server: OneServer, count: int, **machine: Any) -> list["ANode"]:
        """Start this number of fake nodes and wait until they are ready."""
        nodes = [self.a_fake_node(server, f"node-{number}", **machine) for number in range(1, count + 1)]
        for node in nodes:
            await node.wait_ready()
        return nodes

    # -- connections to the brains of other members (`PeerTransports`)

    def transport_to(self, member: Any) -> RpcDispatcher:
        return self.servers[member.id].rpc_dispatcher


class ANode:
    """A running fake node with its own connection to the server."""

    def __init__(self, cluster: ACluster, server: OneServer, machine: FakeMachine) -> None:
        self.exchange = InMemoryTransport(server.api)
        world = cluster.world(machine.name)
        identity = NodeCredentials(world.new_id(), world.new_secret())
        self.id, self.secret_id = identity.id, identity.secret_id
        self.node = FakeNode(
            world, AsyncClient(world, [self.exchange], retry_policy=NO_RETRIES), machine, identity=identity
        )
        self._server = server
        self._task = cluster.start(self.node.run(), name=machine.name)

    async def wait_ready(self) -> None:
        await self.wait_for_status("ready")

    async def wait_for_status(self, status: str, *, within_s: float = 60.0) -> None:

        def has_expected_status() -> bool:
            node = self._server.replica.get(NODES, self.id)
            return node is not None and node.status == status

        await until(has_expected_status, what=f"node {self.id} is {status}", within_s=within_s)

    async def die(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def restart(self, cluster: ACluster) -> None:
        """Start the node again with its earlier state."""
        self._task = cluster.start(self.node.run(), name=f"{self.id} restarted")


Story = Callable[[], Awaitable[None]]

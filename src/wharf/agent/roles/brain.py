"""The way to the authoritative region, as the configuration has it: what the brain copies from there.

The brain process: elects, schedules, watches nodes, and answers what only the leader may decide.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wharf.agent.access_control import build_tending_settings, open_keyring
from wharf.agent.engine import describe_state_location
from wharf.agent.errors import StartupError
from wharf.agent.forked_worker import ForkedWorker, disable_grpc_fork_support
from wharf.agent.identity import compute_folder_id
from wharf.agent.process_context import ProcessContext
from wharf.agent.roles.election import build_election
from wharf.agent.roles.server import build_server, follow_log, get_brain_socket, open_log
from wharf.agent.tls.contexts import build_client_tls_context
from wharf.cluster.controllers.collection import CollectionSettings
from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.engines.election import Election, MemberIdInUse
from wharf.cluster.engines.port import FollowerBehind, LogUnavailable
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.duties.collection import CollectionDuty
from wharf.cluster.server.duties.deployments import DeploymentDuty
from wharf.cluster.server.duties.drains import DrainDuty
from wharf.cluster.server.duties.periodic import PeriodicLaunchDuty
from wharf.cluster.server.duties.quotas import QuotaDuty
from wharf.cluster.server.duties.replication import ReplicationDuty
from wharf.cluster.server.duties.secrets import SecretsDuty
from wharf.cluster.server.log.compaction import LogCompactor
from wharf.cluster.server.rpc.leader import RpcDispatcher
from wharf.cluster.server.rpc.socket import BrainSocketServer
from wharf.cluster.server.server import Server
from wharf.config.settings import AgentSettings
from wharf.contract.model.refusal import Refusal

if TYPE_CHECKING:
    from wharf.contract.client import AsyncClient


def start_replication(life: ProcessContext, server: Server, brain: Brain) -> "AsyncClient | None":
    """None where this region is the authoritative one, or access control is off."""
    settings = life.order.settings
    region = settings.server.authoritative_region
    if not settings.acl.enabled or region in ("", settings.region):
        return None
    # What is slow to load is loaded only where another region is copied.
    from wharf.contract.client import NO_RETRIES, AsyncClient
    from wharf.contract.client.http_transport import HttpTransport

    tls = build_client_tls_context(settings.tls)
    scheme = "https" if tls is not None else "http"
    addresses = [
        address if "://" in address else f"{scheme}://{address}" for address in settings.regions[region].servers
    ]
    token = settings.acl.replication_token.reveal()
    client = AsyncClient(
        life.world, [HttpTransport(each, token=token, tls=tls) for each in addresses], retry_policy=NO_RETRIES
    )
    ReplicationDuty(brain, server.access.keyring, client, region=region)
    return client


RETRY_DELAY_S: Final = 1.0
LEAVE_TIMEOUT_S: Final = 1.0


def build_collection_settings(settings: AgentSettings) -> CollectionSettings:
    server = settings.server
    return CollectionSettings(
        interval_s=server.job_gc_interval.seconds,
        evaluation_retention_ns=server.eval_gc_threshold.ns,
        batch_evaluation_retention_ns=server.batch_eval_gc_threshold.ns,
        job_retention_ns=server.job_gc_threshold.ns,
        deployment_retention_ns=server.deployment_gc_threshold.ns,
        node_retention_ns=server.node_gc_threshold.ns,
    )


async def run(life: ProcessContext) -> None:
    disable_grpc_fork_support()
    server = build_server(life)
    election = build_election(server, folder=compute_folder_id(Path(life.order.data_folder)))
    settings = life.order.settings.server
    brain = Brain(
        life.world,
        server.engine,
        server.follower,
        server.writer,
        election,
        heartbeats=HeartbeatSettings(
            min_ttl_s=settings.min_heartbeat_ttl.seconds,
            grace_s=settings.heartbeat_grace.seconds,
            failover_ttl_s=settings.failover_heartbeat_ttl.seconds,
            max_per_second=settings.max_heartbeats_per_second,
        ),
        bootstrap=server.bootstrap,
    )
    SecretsDuty(brain, server.access.keyring, build_tending_settings(life.order.settings))
    DeploymentDuty(life.world, brain)
    DrainDuty(life.world, brain)
    PeriodicLaunchDuty(life.world, brain, server.job_settings)
    CollectionDuty(life.world, brain, build_collection_settings(life.order.settings))
    QuotaDuty(brain)
    authoritative = start_replication(life, server, brain)
    if not await open_log(life, server.engine):
        return
    door = BrainSocketServer(life.world, get_brain_socket(life), RpcDispatcher(brain, worker=ForkedWorker(life.world)))
    following = life.world.start_task(follow_log(server), name="follower")
    stopping = life.world.start_task(life.stopping.wait(), name="asked to stop")
    working = life.world.start_task(_work(life, server, brain, election, door), name="work")
    staying = life.world.start_task(election.maintain_membership(), name="membership")
    compactor = LogCompactor(life.world, server.engine, server.follower, brain)
    compacting = life.world.start_task(compactor.run(), name="compactor")
    await life.wait_for_first([stopping, following, working, staying, compacting])
    await door.close()
    # Whoever leads next need not wait until our lease runs out.
    with contextlib.suppress(LogUnavailable, TimeoutError):
        async with asyncio.timeout(LEAVE_TIMEOUT_S):
            await election.leave()
    if authoritative is not None:
        await authoritative.close()
    await server.engine.close()


async def _work(
    life: ProcessContext, server: Server, brain: Brain, election: Election, door: BrainSocketServer
) -> None:
    await server.follower.loaded_event.wait()
    open_keyring(life, server)
    await _found(server)
    try:
        await _join(election)
        await door.open()
        life.report_ready(state=describe_state_location(life.order.settings))
        await brain.run()
    except MemberIdInUse as error:
        raise StartupError(str(error)) from error


async def _found(server: Server) -> None:
    while True:
        try:
            await server.bootstrap_cluster()
            return
        except (Refusal, LogUnavailable):
            await asyncio.sleep(RETRY_DELAY_S)


async def _join(election: Election) -> None:
    """Before anybody is told that this server is ready: its id may be another's."""
    while True:
        try:
            await election.join()
            return
        except (LogUnavailable, FollowerBehind):
            await asyncio.sleep(RETRY_DELAY_S)

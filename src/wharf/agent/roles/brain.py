"""The brain process: takes part in elections, schedules, watches nodes, and decides writes while it leads."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wharf.agent.access_control import build_secrets_settings, open_keyring
from wharf.agent.cluster_marker import mark_cluster, refuse_empty_log, refuse_other_cluster
from wharf.agent.engine import describe_state_location
from wharf.agent.errors import StartupError
from wharf.agent.forked_worker import ForkedWorker
from wharf.agent.forks import disable_grpc_fork_support
from wharf.agent.identity import compute_folder_id
from wharf.agent.process_context import ProcessContext
from wharf.agent.roles.election import build_election, build_farewell
from wharf.agent.roles.server import build_server, follow_log, get_brain_socket, open_log, prepare_server
from wharf.agent.tls.contexts import build_client_tls_context, get_server_scheme, reload_client_tls
from wharf.agent.tls.validity import start_certificate_watch
from wharf.cluster.controllers.collection import CollectionSettings
from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.engines.election import Election, MemberIdInUse
from wharf.cluster.engines.port import FollowerBehind, LogUnavailable
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.duties.collection import CollectionDuty, VolumeDuty
from wharf.cluster.server.duties.deployments import DeploymentDuty
from wharf.cluster.server.duties.drains import DrainDuty
from wharf.cluster.server.duties.isolation import IsolationDuty
from wharf.cluster.server.duties.job_needs import JobNeedDuty
from wharf.cluster.server.duties.known_servers import KnownServersDuty
from wharf.cluster.server.duties.periodic import PeriodicLaunchDuty
from wharf.cluster.server.duties.quotas import QuotaDuty
from wharf.cluster.server.duties.replication import ReplicationDuty, build_source_client
from wharf.cluster.server.duties.run_queue import RunQueueDuty
from wharf.cluster.server.duties.runs import RunDuty
from wharf.cluster.server.duties.secrets import SecretsDuty
from wharf.cluster.server.duties.step_locks import StepLockDuty
from wharf.cluster.server.log.compaction import LogCompactor
from wharf.cluster.server.log.store_warnings import StoreWarnings
from wharf.cluster.server.rpc.dispatcher import RpcDispatcher
from wharf.cluster.server.rpc.socket import BrainSocketServer
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import CLUSTER_FORMAT
from wharf.cluster.state.watches import watch_table
from wharf.config.settings import AgentSettings
from wharf.contract.model.refusal import Refusal

if TYPE_CHECKING:
    from wharf.contract.client import AsyncClient


def start_replication(context: ProcessContext, server: Server, brain: Brain) -> "AsyncClient | None":
    """Start to copy access control data from the authoritative region, and return the client for it.

    Return `None` if this region is the authoritative one or access control is off.
    """
    settings = context.order.settings
    region = settings.server.authoritative_region
    if not settings.acl.enabled or region in ("", settings.region):
        return None
    # Loads slowly, and is needed only for replication.
    from wharf.contract.client.http_transport import HttpTransport

    tls = build_client_tls_context(settings.tls)
    context.add_reload_handler(lambda new: reload_client_tls(tls, new.tls))
    scheme = get_server_scheme(settings.tls)
    addresses = [
        address if "://" in address else f"{scheme}://{address}" for address in settings.regions[region].servers
    ]
    token = settings.acl.replication_token.reveal()
    client = build_source_client(
        context.world, [HttpTransport(address, token=token, tls=tls) for address in addresses], region=region
    )
    ReplicationDuty(brain, server.access.keyring, client, region=region)
    return client


RETRY_DELAY_S: Final = 1.0
"""Pause before another attempt to bootstrap the cluster or to join."""
THREAD_SWITCH_INTERVAL_S: Final = 0.001
"""How long the thread that plans evaluations may run Python code while the event loop waits. Protects heartbeats: the default
of 5 ms would delay each read and each reply by up to 5 ms.
"""
LEAVE_TIMEOUT_S: Final = 1.0
"""How long stopping may wait to give up leadership."""


def build_heartbeat_settings(settings: AgentSettings) -> HeartbeatSettings:
    """Return when nodes must send heartbeats."""
    server = settings.server
    return HeartbeatSettings(
        min_ttl_s=server.min_heartbeat_ttl.seconds,
        grace_s=server.heartbeat_grace.seconds,
        failover_ttl_s=server.failover_heartbeat_ttl.seconds,
        max_per_second=server.max_heartbeats_per_second,
    )


def build_collection_settings(settings: AgentSettings) -> CollectionSettings:
    """Return how long ended jobs, evaluations, deployments and nodes are retained."""
    server = settings.server
    return CollectionSettings(
        interval_s=server.job_gc_interval.seconds,
        evaluation_retention_ns=server.eval_gc_threshold.ns,
        batch_evaluation_retention_ns=server.batch_eval_gc_threshold.ns,
        job_retention_ns=server.job_gc_threshold.ns,
        batch_job_retention_ns=server.batch_job_gc_threshold.ns,
        max_batch_results=server.batch_gc_max_results,
        deployment_retention_ns=server.deployment_gc_threshold.ns,
        node_retention_ns=server.node_gc_threshold.ns,
    )


def prepare() -> None:
    """Create what all copies of this process share."""
    prepare_server()


async def run(context: ProcessContext) -> None:
    """Run the brain process until it is asked to stop."""
    disable_grpc_fork_support()
    server = build_server(context)
    election = build_election(server, folder=compute_folder_id(Path(context.order.data_folder)))
    settings = context.order.settings
    brain = Brain(
        context.world,
        server.engine,
        server.follower,
        server.writer,
        election,
        heartbeats=build_heartbeat_settings(settings),
        bootstrap=server.bootstrap,
    )
    SecretsDuty(brain, server.access.keyring, build_secrets_settings(settings))
    DeploymentDuty(context.world, brain, server.job_settings)
    DrainDuty(context.world, brain)
    PeriodicLaunchDuty(context.world, brain, server.job_settings)
    RunQueueDuty(brain)
    RunDuty(context.world, brain)
    JobNeedDuty(brain)
    CollectionDuty(context.world, brain, build_collection_settings(settings))
    QuotaDuty(brain)
    StepLockDuty(brain)
    IsolationDuty(brain)
    VolumeDuty(brain)
    if not server.engine.is_single_server:
        KnownServersDuty(brain)
    replication_client = start_replication(context, server, brain)
    if not await open_log(context, server.engine):
        return
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    worker = ForkedWorker(context.world, state_lock=server.follower.apply_lock)
    socket_server = BrainSocketServer(context.world, get_brain_socket(context), RpcDispatcher(brain, worker=worker))
    follower_task = context.world.start_task(follow_log(server), name="follower")
    stopping = context.world.start_task(context.stopping.wait(), name="stop request")
    brain_task = context.world.start_task(_run_brain(context, server, brain, election, socket_server), name="work")
    marker_task = context.world.start_task(_follow_cluster(context, server), name="cluster marker")
    membership_task = context.world.start_task(election.maintain_membership(), name="membership")
    compactor = LogCompactor(context.world, server.engine, server.follower, brain)
    certificate_task = start_certificate_watch(context)
    store_warnings = StoreWarnings(context.world, server.engine)
    warnings_task = context.world.start_task(store_warnings.run(), name="warnings of the store")
    compactor_task = context.world.start_task(compactor.run(), name="compactor")
    try:
        await context.wait_for_first(
            [
                stopping,
                follower_task,
                brain_task,
                marker_task,
                membership_task,
                compactor_task,
                certificate_task,
                warnings_task,
            ]
        )
    finally:
        await socket_server.close()
    # Give up leadership now, so that the next leader need not wait until the lease expires. A server whose agent was
    # killed has not left: it stays in the list of servers as failed.
    farewell = () if context.is_parent_lost else build_farewell(server)
    with contextlib.suppress(LogUnavailable, TimeoutError):
        async with asyncio.timeout(LEAVE_TIMEOUT_S):
            await election.leave(farewell)
    if replication_client is not None:
        await replication_client.close()
    await server.engine.close()


async def _run_brain(
    context: ProcessContext, server: Server, brain: Brain, election: Election, socket_server: BrainSocketServer
) -> None:
    """Once the replica is loaded: bootstrap, join, report ready, and run the brain.

    If the log accepts no writes, for example on a full disk, the brain is ready before it has joined: reads and the
    node of this agent need no leader.
    """
    await server.follower.loaded_event.wait()
    server.bootstrap.check_permission = lambda: refuse_empty_log(context.order.settings)
    _check_cluster(context, server)
    open_keyring(context, server)
    is_ready = asyncio.Event()

    async def report_ready() -> None:
        """Serve calls and report to the parent that the brain is ready. Repeated calls have no effect."""
        if not is_ready.is_set():
            is_ready.set()
            await socket_server.open()
            context.report_ready(state=describe_state_location(context.order.settings))

    try:
        await _bootstrap(server, report_ready)
        await _join(election, report_ready)
        await report_ready()
        await brain.run()
    except MemberIdInUse as error:
        raise StartupError(str(error)) from error


async def _follow_cluster(context: ProcessContext, server: Server) -> None:
    """Keep the marker in the data folder equal to the cluster in the log, until cancelled.

    A restored snapshot can replace the cluster by another one. Raises `StartupError` if the log is emptied and this server
    may not begin an empty cluster.
    """
    changed = asyncio.Event()
    is_checked = False
    await server.follower.loaded_event.wait()
    subscription = server.replica.watches.subscribe([watch_table(CLUSTER_FORMAT)], changed.set)
    try:
        while True:
            changed.clear()
            subscription.rearm()
            stored = server.replica.get(CLUSTER_FORMAT)
            if stored is None or not is_checked:
                _check_cluster(context, server)
            if stored is not None:
                is_checked = True
                mark_cluster(context.order.settings, stored.cluster_id)
            await changed.wait()
    finally:
        subscription.close()


def _check_cluster(context: ProcessContext, server: Server) -> None:
    """Raise `StartupError` if this server must not run with the cluster that the loaded log has, or begin one."""
    stored = server.replica.get(CLUSTER_FORMAT)
    if stored is None:
        refuse_empty_log(context.order.settings)
    else:
        refuse_other_cluster(context.order.settings, stored.cluster_id)


async def _bootstrap(server: Server, on_refused: Callable[[], Awaitable[None]]) -> None:
    """Write the first records of a new cluster. Retry until the log accepts them or already has them.

    `on_refused` is called after each refusal of a log that exists.
    """
    while True:
        try:
            await server.bootstrap_cluster()
            return
        except (Refusal, LogUnavailable):
            if server.follower.replica.index:
                await on_refused()
            await asyncio.sleep(RETRY_DELAY_S)


async def _join(election: Election, on_refused: Callable[[], Awaitable[None]]) -> None:
    """Write this server's member record to the log. Retry until that succeeds; `on_refused` is called after a failure.

    Raises `MemberIdInUse` if another server has its id.
    """
    while True:
        try:
            await election.join()
            return
        except (LogUnavailable, FollowerBehind):
            await on_refused()
            await asyncio.sleep(RETRY_DELAY_S)

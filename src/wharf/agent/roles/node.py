"""The node process: runs the node agent, and fake nodes if the configuration requests them."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from wharf.agent.data_folder import get_allocation_folder, get_state_folder
from wharf.agent.errors import StartupError
from wharf.agent.identity import get_agent_name
from wharf.agent.logs.following import AgentLogReader
from wharf.agent.node_identities import (
    FAKE_NODE_IDENTITIES_FILE,
    load_or_create_fake_node_identities,
    load_or_create_own_identity,
)
from wharf.agent.process_context import ProcessContext
from wharf.agent.startup_details import REGISTRATION_DETAIL, UNAVAILABLE_DRIVERS_DETAIL
from wharf.agent.tls.contexts import build_client_tls_context, get_server_scheme, reload_client_tls
from wharf.agent.tls.validity import start_certificate_watch
from wharf.config.settings import AgentSettings
from wharf.contract.client import NO_RETRIES, AsyncClient
from wharf.contract.client.http_transport import HttpTransport
from wharf.contract.client.relay.dialers import Dialer, ServerDialer
from wharf.contract.client.relay.websockets import CHANNEL_PING_TIMEOUT_S, SocketRelay, WebSocketRelay
from wharf.node.agent.node_agent import NodeAgent
from wharf.node.fake_fleet import FakeFleet
from wharf.node.fake_node import FakeMachine
from wharf.node.fake_transport import FakeNodeTransport
from wharf.node.settings import NodeLocation
from wharf.world import World
from wharf.world.stored_json import DamagedFile
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_S: Final = 2.0
"""How long a server with a node waits for its node to register before it reports ready all the same.

An agent that is only a node waits without limit: it is of no use before it is registered.
"""
NODE_UMASK: Final = 0o022
"""The umask of the node process, whatever that of the agent is, such as 0077 under systemd. Tasks run as other users, and must be
able to enter the folders that the node creates for them. Files of the node itself are created with an explicit mode."""
TASK_END_MARGIN_S: Final = 5.0
"""How long stopping waits for tasks beyond the longest kill timeout."""


async def run(context: ProcessContext) -> None:
    """Run the node process until it is asked to stop."""
    os.umask(NODE_UMASK)
    settings = context.order.settings
    tls = build_client_tls_context(settings.tls)
    context.add_reload_handler(lambda new: reload_client_tls(tls, new.tls))
    scheme = get_server_scheme(settings.tls)
    addresses = [
        address if "://" in address else f"{scheme}://{address}"
        for address in settings.client.servers or (context.order.address,)
    ]
    sockets = [
        WebSocketRelay(address, tls=tls if address.startswith("https") else None, ping_timeout_s=CHANNEL_PING_TIMEOUT_S)
        for address in addresses
    ]
    dialers = [ServerDialer(address, tls=tls) for address in addresses]

    # With access control, a new node registers with this token. Later it uses its own secret.
    token = settings.client.intro_token.reveal() or context.order.own_node_secret
    transports = [HttpTransport(address, token=token, tls=tls) for address in addresses]
    client = AsyncClient(context.world, transports, retry_policy=NO_RETRIES)  # The node agent retries by itself.
    data_folder = Path(context.order.data_folder)
    try:
        node = _build_node_agent(context, client, sockets, dialers)
    except DamagedFile as error:
        raise StartupError(str(error)) from error
    except OSError as error:
        raise StartupError(f"the node's folder {error.filename} cannot be used: {error.strerror}") from error
    details = {"drivers": ", ".join(await node.list_working_drivers())}
    if unavailable := node.describe_unavailable_drivers():
        details[UNAVAILABLE_DRIVERS_DETAIL] = unavailable

    def create_fake_client() -> AsyncClient:
        """Return a client for fake nodes, with connections of its own."""
        transports = [FakeNodeTransport(context.world, address, token=token, tls=tls) for address in addresses]
        return AsyncClient(context.world, transports, retry_policy=NO_RETRIES)

    fleet = _build_fake_fleet(context.world, create_fake_client, settings, data_folder)
    if fleet is not None:
        log.warning(
            "fake nodes are running: they report allocations as running and start no tasks",
            extra={"nodes": str(fleet.size)},
        )
        details["fake"] = str(fleet.size)
    is_ready = asyncio.Event()
    running = [context.world.start_task(_run_node(node, is_ready.set), name="node")]
    if not settings.server.enabled:  # Otherwise the brain does it.
        running.append(start_certificate_watch(context))
    if fleet is not None:
        running.append(context.world.start_task(fleet.run(), name="fake nodes"))
    started = context.world.start_task(is_ready.wait(), name="start")
    await asyncio.wait([started, *running], return_when=asyncio.FIRST_COMPLETED)
    if not started.done():  # A part failed before the node was ready.
        await context.wait_for_first([*running, started])
    stopping = context.world.start_task(context.stopping.wait(), name="stop request")
    registration = context.world.start_task(node.server_session.is_registered.wait(), name="registration")
    await asyncio.wait(
        [registration, stopping, *running],
        timeout=REGISTRATION_TIMEOUT_S if settings.server.enabled else None,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if registration.done():
        context.report_ready(**details)
    elif settings.server.enabled:
        context.report_ready(**details, **{REGISTRATION_DETAIL: "pending"})
    await cancel_tasks(registration)
    done, _ = await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
    if stopping in done and settings.client.drain_on_shutdown.enabled:
        await node.drain_node()
    if stopping in done and settings.client.stop_on_shutdown:
        try:
            async with asyncio.timeout(settings.client.max_kill_timeout.seconds + TASK_END_MARGIN_S):
                await node.stop_all_tasks()
        except TimeoutError:
            log.error(
                "tasks did not end in time and are left running",
                extra={"tasks": str(len(node.allocations.list_live_tasks()))},
            )
    await context.wait_for_first([stopping, *running])
    await client.close()
    if fleet is not None:
        await fleet.close()


async def _run_node(node: NodeAgent, on_ready: Callable[[], None]) -> None:
    """Run the node agent until it is cancelled. Raises `StartupError` if a file of the node is damaged."""
    try:
        await node.run(on_ready)
    except DamagedFile as error:
        raise StartupError(str(error)) from error


def _build_node_agent(
    context: ProcessContext,
    client: AsyncClient,
    sockets: Sequence[SocketRelay],
    dialers: Sequence[Dialer],
) -> NodeAgent:
    """Return the node agent with its location and identity, which is created at the first start of the node."""
    settings = context.order.settings
    location = NodeLocation(
        name=get_agent_name(settings),
        datacenter=settings.datacenter,
        region=settings.region,
        state_folder=get_state_folder(settings),
        allocation_folder=get_allocation_folder(settings),
        http_address=context.order.advertised_address,
    )
    location.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    identity = load_or_create_own_identity(context.world, location.state_folder)
    return NodeAgent(
        context.world,
        client,
        settings.client,
        location,
        identity,
        sockets,
        dialers,
        agent_log=AgentLogReader(Path(context.order.data_folder)),
    )


def _build_fake_fleet(
    world: World, create_client: Callable[[], AsyncClient], settings: AgentSettings, data_folder: Path
) -> FakeFleet | None:
    """Return the fake nodes of this agent, as many as `client.fake_nodes` requests; `None` without any."""
    count = settings.client.fake_nodes
    if not count:
        return None
    try:
        identities = load_or_create_fake_node_identities(world, data_folder / FAKE_NODE_IDENTITIES_FILE, count)
    except DamagedFile as error:
        raise StartupError(str(error)) from error
    machines = [
        FakeMachine(
            name=f"{get_agent_name(settings)}-{number}",
            datacenter=settings.datacenter,
            node_class=settings.client.node_class,
        )
        for number in range(1, count + 1)
    ]
    return FakeFleet(world, create_client, list(zip(machines, identities, strict=True)))

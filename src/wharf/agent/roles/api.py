"""The api process: answers HTTP from its replica, and sends writes that the leader decides to the brain."""

import asyncio
import os
import resource
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wharf.agent.access_control import build_caller_authenticator, open_keyring
from wharf.agent.errors import StartupError
from wharf.agent.forked_requests import ForkedRequestWorker
from wharf.agent.forks import disable_grpc_fork_support
from wharf.agent.http.gateway_activity import GatewayActivity
from wharf.agent.http.server import HttpServer
from wharf.agent.inspection import AgentInspection
from wharf.agent.logs.audit import open_audit_log
from wharf.agent.process_context import ProcessContext
from wharf.agent.roles.server import build_server, follow_log, get_brain_socket, open_log, prepare_server
from wharf.agent.server_records import RecordsNotSent, ServerRecords
from wharf.agent.tls.contexts import build_client_tls_context, get_server_scheme, reload_client_tls
from wharf.cluster.api.admission import LargeHeadPacer
from wharf.cluster.api.app import Api
from wharf.cluster.api.asgi import App, Receive, Scope, Send
from wharf.cluster.api.browser_gate import BrowserGate, BrowserRules, get_host_name
from wharf.cluster.api.connection_senders import SenderFinder
from wharf.cluster.api.handlers.acl.sessions import SessionFinder
from wharf.cluster.api.relay.members import find_member_secret
from wharf.cluster.api.relay.regions import RegionRelay
from wharf.cluster.api.routing.router import get_api_router
from wharf.cluster.server.metrics import RequestMeter
from wharf.cluster.server.node_channels.directory import HeldNodesReporter, ProcessAddress
from wharf.cluster.server.relay import RequestRelay
from wharf.cluster.server.rpc.http import HttpPeerTransports
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.rpc.pulse import PulseSender
from wharf.cluster.server.rpc.socket import BrainSocketClient
from wharf.cluster.server.server import Server
from wharf.config.settings import AgentSettings
from wharf.contract.client.liveness import PROBE_PATH
from wharf.contract.client.relay.port import Relay
from wharf.contract.client.relay.websockets import WebSocketRelay
from wharf.contract.client.transport import UNIX_SCHEME, Transport
from wharf.world.unix_sockets import shorten_socket_path

if TYPE_CHECKING:
    from wharf.agent.http.limits import ApiLimits
    from wharf.web.app import PageServer

MAX_PROBE_REPLY_BYTES: Final = 65_536
"""How much of the reply to a request to the own process is read."""

PAGE_PREFIX: Final = "/ui"
THREAD_SWITCH_INTERVAL_S: Final = 0.001
"""How long the thread for long computations may run Python code while the event loop waits. Protects all other requests: the
default of 5 ms would delay each of their steps by up to 5 ms.
"""


class PageGate:
    """Passes requests for pages to the pages, and all others to the API. The pages are loaded with the first request for one."""

    def __init__(self, server: Server, api: App) -> None:
        self._server = server
        self._api = api
        self._pages: PageServer | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] in ("http", "websocket") and scope["path"].startswith(PAGE_PREFIX):
            await self._get_pages()(scope, receive, send)
        else:
            await self._api(scope, receive, send)

    def _get_pages(self) -> "PageServer":
        """Return the pages. Loading them takes a tenth of a second, which only servers with a reader of pages spend."""
        if self._pages is None:
            from wharf.web.app import PageServer

            self._pages = PageServer(self._server.world, self._api, SessionFinder(self._server))
        return self._pages


def get_socket_name(process: str) -> str:
    """Return the name of the socket, in the data folder, on which an api process listens for the others of its server."""
    return f"{process}.sock"


def prepare() -> None:
    """Create what all copies of this process share."""
    prepare_server()
    get_api_router()


async def run(context: ProcessContext) -> None:
    """Run the api process until it is asked to stop."""
    disable_grpc_fork_support()
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    settings = context.order.settings
    server = build_server(context)
    if settings.server.enable_event_broker:
        server.enable_events(max_commits=settings.server.event_buffer_size)
    brain_client = BrainSocketClient(context.world, get_brain_socket(context))
    tls = build_client_tls_context(settings.tls)
    scheme = get_server_scheme(settings.tls)
    peer_transports = HttpPeerTransports(context.world, lambda address: _build_transport(f"{scheme}://{address}", tls))
    server.brain_transport = brain_client
    server.leader = LeaderClient(server.replica, server.identity.member_id, brain_client, peer_transports)
    regions = {name: region.servers for name, region in settings.regions.items() if name != settings.region}
    region_addresses = {address for addresses in regions.values() for address in addresses}
    server.relay = RequestRelay(
        context.world,
        lambda address: _build_relay(
            address if "://" in address else f"{scheme}://{address}", tls, is_region=address in region_addresses
        ),
        regions=regions,
        sockets_to=lambda address: WebSocketRelay(address if "://" in address else f"{scheme}://{address}", tls=tls),
        find_secret=lambda address: find_member_secret(server.replica, address),
    )
    folder = os.open(context.order.data_folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    server.local_channels.max_connections = _compute_max_channels()
    server.local_channels.reporter = HeldNodesReporter(
        context.world, server.replica, server.leader, ProcessAddress(server.identity.member_id, context.order.name)
    )
    # The path of a socket is limited to 107 bytes, so use the descriptor of the folder instead of its path.
    server.local_channels.address_of = lambda process: f"{UNIX_SCHEME}/proc/self/fd/{folder}/{get_socket_name(process)}"
    server.agent = AgentInspection(context)
    telemetry = settings.telemetry
    server.meter = RequestMeter(
        context.world,
        interval_s=telemetry.in_memory_collection_interval.seconds,
        retention_s=telemetry.in_memory_retention_period.seconds,
    )
    try:
        audit = open_audit_log(settings, Path(context.order.data_folder), secrets=context.order.log.secrets)
    except OSError as error:
        raise StartupError(
            f"the audit log cannot be written ({error}): fix that, or set audit.enabled = false"
        ) from error
    try:
        records = ServerRecords(context.world, settings, Path(context.order.data_folder), context.order.name)
    except RecordsNotSent as error:
        raise StartupError(str(error)) from error
    if settings.audit.enabled:
        audit = records.wrap_audit(audit, context.order.log.secrets)
    api = Api(
        server,
        audit=audit,
        max_body_bytes=settings.api.max_body_size.bytes,
        extra_headers=settings.http_api_response_headers,
        is_nomad_compatible=settings.compat.nomad,
        authenticator=build_caller_authenticator(context, server),
        worker=ForkedRequestWorker(server, cpu_limit_s=settings.api.max_request_cpu.seconds),
    )
    application = RegionRelay(
        api,
        server,
        api.region_slots,
        extra_headers=settings.http_api_response_headers,
        is_nomad_compatible=settings.compat.nomad,
    )
    socket_path = Path(context.order.data_folder) / get_socket_name(context.order.name)
    limits = _build_limits(application, context, server) if settings.limits.enabled else None
    if settings.limits.gateway_admin:
        token_file = Path(settings.limits.gateway_token_file)
        server.gateway = GatewayActivity(context.world, settings.limits.gateway_admin, token_file)
    served: App = LargeHeadPacer(application if limits is None else limits.app)
    if settings.ui.enabled:
        served = PageGate(server, served)
    served = BrowserGate(
        served,
        context.world,
        _build_browser_rules(settings, server),
        extra_headers=settings.http_api_response_headers,
        is_nomad_compatible=settings.compat.nomad,
    )
    port = HttpServer(
        context.world,
        served,
        settings,
        context.order.listening,
        socket_path=socket_path,
        find_sender=SenderFinder(server.replica, server.identity.door_secret).find_sender,
    )
    context.add_reload_handler(port.reload)
    context.add_reload_handler(lambda new: reload_client_tls(tls, new.tls))
    if limits is not None:
        context.add_reload_handler(limits.reload)
    if not await open_log(context, server.engine):
        return
    follower_task = context.world.start_task(follow_log(server), name="follower")
    reporter_task = context.world.start_task(server.local_channels.reporter.run(), name="node reports")
    stop_task = context.world.start_task(context.stopping.wait(), name="stop request")
    records.open(server)
    serve_task = context.world.start_task(_serve(context, server, port, limits), name="serving")
    # After a request to stop, serve_task ends by itself once open requests are answered.
    await asyncio.wait([stop_task, follower_task, serve_task], return_when=asyncio.FIRST_COMPLETED)
    # Blocking queries are answered with the current state instead of being cut off.
    server.reader.close()
    api.close()
    application.close()
    if stop_task.done() and server.follower.loaded_event.is_set():
        await serve_task
    await context.wait_for_first([stop_task, follower_task, serve_task])
    reporter_task.cancel()
    await brain_client.close()
    await peer_transports.close()
    await server.relay.close()
    await records.close()
    await server.engine.close()


def _build_browser_rules(settings: AgentSettings, server: Server) -> BrowserRules:
    """Return which web pages may send requests without a token, and the names of this server."""
    return BrowserRules(
        is_access_controlled=settings.acl.enabled,
        trusted_origins=frozenset(origin.lower() for origin in settings.api.trusted_origins),
        host_names=frozenset(name.lower() for name in settings.api.host_names),
        own_names=frozenset((get_host_name(server.identity.address), server.identity.name.lower())),
    )


def _compute_max_channels() -> int:
    """Return how many nodes may have a channel to this process: half of its open files, so that callers have the others."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit // 2


def _build_transport(address: str, tls: ssl.SSLContext | None) -> Transport:
    from wharf.contract.client.http_transport import (
        HttpTransport,  # Loads slowly, and is needed only with other servers.
    )

    return HttpTransport(address, tls=tls)


def _build_relay(address: str, tls: ssl.SSLContext | None, *, is_region: bool) -> Relay:
    """Return the relay to a server. Callers share no connection to another region (`is_region`), which they may not trust."""
    # Loads slowly, and is needed only with other servers.
    from wharf.contract.client.relay.http import MAX_IDLE_CONNECTIONS, HttpRelay

    return HttpRelay(address, tls=tls, max_idle_connections=0 if is_region else MAX_IDLE_CONNECTIONS)


def _build_limits(app: Any, context: ProcessContext, server: Server) -> "ApiLimits":  # An ASGI application.
    from wharf.agent.http.limits import ApiLimits  # Loads slowly, and is needed only with limits.

    return ApiLimits(context, server, app)


async def _serve(context: ProcessContext, server: Server, port: HttpServer, limits: "ApiLimits | None") -> None:
    """Open the port once the replica is loaded, and serve until the process is asked to stop."""
    await server.follower.loaded_event.wait()
    open_keyring(context, server)
    if limits is not None:
        await limits.open()
    socket_path = Path(context.order.data_folder) / get_socket_name(context.order.name)
    pulse_sender = PulseSender(
        context.world,
        context.order.name,
        member_id=server.identity.member_id,
        own_brain=server.brain_transport,
        leader=server.leader,
        heartbeats=server.heartbeats,
        probe=lambda: _probe_own_process(socket_path),
    )
    await pulse_sender.announce()
    await port.open()
    context.report_ready(address=context.order.address)
    pulses = context.world.start_task(pulse_sender.run(), name="pulses")
    try:
        await port.serve(context.stopping)
    finally:
        pulses.cancel()
        if limits is not None:
            await limits.close()


async def _probe_own_process(socket_path: Path) -> None:
    """Send a request to this process over a new connection, as a node sends a heartbeat, and wait for the reply.

    The request waits behind everything that arrived before it. Any reply shows how far the process is, also a refusal.
    Raises `OSError` if there is none.
    """
    with shorten_socket_path(socket_path) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(f"GET {PROBE_PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        if not await reader.read(MAX_PROBE_REPLY_BYTES):
            raise ConnectionResetError("the connection was closed without a reply")
    finally:
        writer.close()

"""An api process: answers HTTP from its replica, and asks the brain what only the leader may decide."""

import asyncio
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wharf.agent.access_control import build_gate, open_keyring
from wharf.agent.errors import StartupError
from wharf.agent.http.server import HttpServer
from wharf.agent.inspection import AgentInspection
from wharf.agent.logs.audit import open_audit_log
from wharf.agent.process_context import ProcessContext
from wharf.agent.roles.server import build_server, follow_log, get_brain_socket, open_log
from wharf.agent.tls.contexts import build_client_tls_context, reload_client_tls
from wharf.cluster.api.app import Api
from wharf.cluster.api.audit import AuditedWrite, AuditPort, AuditRecord
from wharf.cluster.api.handlers.agents import documents
from wharf.cluster.api.relay.regions import RegionRelay
from wharf.cluster.server.metrics import RequestMeter
from wharf.cluster.server.node_channels.directory import HeldNodesReporter, ProcessAddress
from wharf.cluster.server.relay import RequestRelay
from wharf.cluster.server.rpc.http import HttpPeerTransports
from wharf.cluster.server.rpc.leader import LeaderClient
from wharf.cluster.server.rpc.socket import BrainSocketClient
from wharf.cluster.server.server import Server
from wharf.contract.client.relay.port import Relay
from wharf.contract.client.relay.websockets import WebSocketRelay
from wharf.contract.client.transport import UNIX_SCHEME, Transport
from wharf.world import World

if TYPE_CHECKING:
    from wharf.agent.http.limits import ApiLimits

ROUTINE_ENDPOINTS: Final = frozenset(("node.heartbeat", "node.fetch", "node.report"))
"""What nodes say all the time. Only when it is refused is it worth a line."""


class WriteAuditor:
    """Between what the application tells of a write and what the audit log keeps."""

    def __init__(self, world: World, audit: AuditPort) -> None:
        self._world = world
        self._audit = audit

    def record(self, write: AuditedWrite) -> None:
        if write.endpoint in ROUTINE_ENDPOINTS and write.status < 400:
            return
        self._audit.record(
            AuditRecord(
                at_ns=self._world.now_ns(),
                request_id=write.request_id,
                endpoint=write.endpoint,
                method=write.method,
                path=write.path,
                namespace=write.namespace,
                accessor_id=write.accessor_id,
                token_name=write.token_name,
                source=write.source,
                status=write.status,
                index=write.index,
                error=write.error,
            )
        )


def get_socket_name(process: str) -> str:
    """Where an api process listens for the others of its server, below the data folder."""
    return f"{process}.sock"


async def run(life: ProcessContext) -> None:
    settings = life.order.settings
    server = build_server(life)
    if settings.server.enable_event_broker:
        server.enable_events(max_commits=settings.server.event_buffer_size)
    link = BrainSocketClient(life.world, get_brain_socket(life))
    tls = build_client_tls_context(settings.tls)
    scheme = "https" if tls is not None else "http"
    peers = HttpPeerTransports(lambda address: _exchange_with(f"{scheme}://{address}", tls))
    server.brain_transport = link
    server.leader = LeaderClient(server.replica, server.identity.member_id, link, peers)
    server.relay = RequestRelay(
        lambda address: _passage_to(address if "://" in address else f"{scheme}://{address}", tls),
        regions={name: region.servers for name, region in settings.regions.items() if name != settings.region},
        sockets_to=lambda address: WebSocketRelay(
            address if "://" in address else f"{scheme}://{address}", tls=tls if scheme == "https" else None
        ),
    )
    folder = os.open(life.order.data_folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    server.local_channels.reporter = HeldNodesReporter(
        life.world, server.replica, server.leader, ProcessAddress(server.identity.member_id, life.order.name)
    )
    # By way of the open folder: the name of a socket is short, and the folder's may be long.
    server.local_channels.address_of = lambda process: f"{UNIX_SCHEME}/proc/self/fd/{folder}/{get_socket_name(process)}"
    server.agent = AgentInspection(life)
    telemetry = settings.telemetry
    server.meter = RequestMeter(
        life.world,
        interval_s=telemetry.in_memory_collection_interval.seconds,
        retention_s=telemetry.in_memory_retention_period.seconds,
    )
    try:
        audit = open_audit_log(settings, Path(life.order.data_folder), secrets=life.order.log.secrets)
    except OSError as error:
        raise StartupError(
            f"the audit log cannot be written ({error}): mend that, or set audit.enabled = false"
        ) from error
    api = Api(
        server,
        audit=WriteAuditor(life.world, audit),
        max_body_bytes=settings.api.max_body_size.bytes,
        extra_headers=settings.http_api_response_headers,
        is_nomad_compatible=settings.compat.nomad,
        authenticator=build_gate(life, server),
    )
    door = RegionRelay(api, server)
    inner_door = Path(life.order.data_folder) / get_socket_name(life.order.name)
    limits = _limits_around(door, life, server) if settings.limits.enabled else None
    served = door if limits is None else limits.app
    port = HttpServer(life.world, served, settings, life.order.listening, socket_path=inner_door)
    life.add_reload_handler(port.reload)
    life.add_reload_handler(lambda new: reload_client_tls(tls, new.tls))
    if limits is not None:
        life.add_reload_handler(limits.reload)
    if not await open_log(life, server.engine):
        return
    following = life.world.start_task(follow_log(server), name="follower")
    telling = life.world.start_task(server.local_channels.reporter.run(), name="telling of nodes")
    stopping = life.world.start_task(life.stopping.wait(), name="asked to stop")
    serving = life.world.start_task(_serve(life, server, port, limits), name="serving")
    # Asked to stop, serving ends by itself, in its own time.
    await asyncio.wait([stopping, following, serving], return_when=asyncio.FIRST_COMPLETED)
    # Whoever waits in a blocking query is answered with what is there, instead of being cut off.
    server.reader.close()
    api.close()
    door.close()
    if stopping.done() and server.follower.loaded_event.is_set():
        await serving
    await life.wait_for_first([stopping, following, serving])
    telling.cancel()
    await link.close()
    await peers.close()
    await server.relay.close()
    await server.engine.close()


def _exchange_with(address: str, tls: ssl.SSLContext | None) -> Transport:
    from wharf.contract.client.http_transport import (
        HttpTransport,  # Where there is no other server, what is slow to load is never loaded.
    )

    return HttpTransport(address, tls=tls)


def _passage_to(address: str, tls: ssl.SSLContext | None) -> Relay:
    from wharf.contract.client.relay.http import HttpRelay  # For the same reason.

    return HttpRelay(address, tls=tls)


def _limits_around(app: Any, life: ProcessContext, server: Server) -> "ApiLimits":  # An ASGI application.
    from wharf.agent.http.limits import ApiLimits  # Here: whoever has no limits need not wait for them at the start.

    return ApiLimits(life, server, app)


async def _serve(life: ProcessContext, server: Server, port: HttpServer, limits: "ApiLimits | None") -> None:
    await server.follower.loaded_event.wait()
    open_keyring(life, server)
    if limits is not None:
        await limits.open()
    await port.open()
    life.report_ready(address=life.order.address)
    preparing = life.world.start_task(asyncio.to_thread(documents.prepare_documents), name="documents")
    try:
        await port.serve(life.stopping)
    finally:
        if limits is not None:
            await limits.close()
    await asyncio.wait([preparing])

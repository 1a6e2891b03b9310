"""An api process: answers HTTP from its replica, and asks the brain what only the leader may decide."""

import asyncio
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wharf.agent.access_control import gate_of, open_keyring
from wharf.agent.audit import audit_from
from wharf.agent.client_tls import client_tls, renew_client_tls
from wharf.agent.door import RunningAgent
from wharf.agent.http_port import HttpPort
from wharf.agent.life import CannotStart, Life
from wharf.agent.roles.serving import brain_socket, follow, make_server, open_log
from wharf.api.app import Api, Written
from wharf.api.audit import AuditPort, AuditRecord
from wharf.api.elsewhere import Elsewhere
from wharf.api.endpoints import documents
from wharf.client.exchange import UNIX, Exchange
from wharf.client.passage import Passage
from wharf.client.sockets import WebSocketPassage
from wharf.server.asking import Leader
from wharf.server.brain_socket import BrainLink
from wharf.server.meter import Meter
from wharf.server.passing import Passing
from wharf.server.peers import HttpPeers
from wharf.server.server import Server
from wharf.server.whereabouts import Place, Telling
from wharf.world import World

if TYPE_CHECKING:
    from wharf.agent.limiting import ApiLimits

ROUTINE: Final = frozenset(("node.heartbeat", "node.fetch", "node.report"))
"""What nodes say all the time. Only when it is refused is it worth a line."""


class AuditOfWrites:
    """Between what the application tells of a write and what the audit log keeps."""

    def __init__(self, world: World, audit: AuditPort) -> None:
        self._world = world
        self._audit = audit

    def record(self, written: Written) -> None:
        if written.endpoint in ROUTINE and written.status < 400:
            return
        self._audit.record(
            AuditRecord(
                at_ns=self._world.now_ns(),
                request_id=written.request_id,
                endpoint=written.endpoint,
                method=written.method,
                path=written.path,
                namespace=written.namespace,
                accessor_id=written.accessor_id,
                token_name=written.token_name,
                source=written.remote,
                status=written.status,
                index=written.index,
                error=written.error,
            )
        )


def door_name(process: str) -> str:
    """Where an api process listens for the others of its server, below the data folder."""
    return f"{process}.sock"


async def run(life: Life) -> None:
    settings = life.order.settings
    server = make_server(life)
    if settings.server.enable_event_broker:
        server.feed_events(commits_kept=settings.server.event_buffer_size)
    link = BrainLink(life.world, brain_socket(life))
    tls = client_tls(settings.tls)
    scheme = "https" if tls is not None else "http"
    peers = HttpPeers(lambda address: _exchange_with(f"{scheme}://{address}", tls))
    server.brain = link
    server.leader = Leader(server.replica, server.identity.member_id, link, peers)
    server.passing = Passing(
        lambda address: _passage_to(address if "://" in address else f"{scheme}://{address}", tls),
        regions={name: region.servers for name, region in settings.regions.items() if name != settings.region},
        sockets_to=lambda address: WebSocketPassage(
            address if "://" in address else f"{scheme}://{address}", tls=tls if scheme == "https" else None
        ),
    )
    folder = os.open(life.order.data_folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    server.held.telling = Telling(
        life.world, server.replica, server.leader, Place(server.identity.member_id, life.order.name)
    )
    # By way of the open folder: the name of a socket is short, and the folder's may be long.
    server.held.address_of = lambda process: f"{UNIX}/proc/self/fd/{folder}/{door_name(process)}"
    server.agent = RunningAgent(life)
    telemetry = settings.telemetry
    server.meter = Meter(
        life.world,
        interval_s=telemetry.in_memory_collection_interval.s,
        kept_s=telemetry.in_memory_retention_period.s,
    )
    try:
        audit = audit_from(settings, Path(life.order.data_folder), secrets=life.order.log.secrets)
    except OSError as error:
        raise CannotStart(
            f"the audit log cannot be written ({error}): mend that, or set audit.enabled = false"
        ) from error
    api = Api(
        server,
        audit=AuditOfWrites(life.world, audit),
        body_max_bytes=settings.api.max_body_size.bytes,
        more_headers=settings.http_api_response_headers,
        compat=settings.compat.nomad,
        gate=gate_of(life, server),
    )
    door = Elsewhere(api, server)
    inner_door = Path(life.order.data_folder) / door_name(life.order.name)
    limits = _limits_around(door, life, server) if settings.limits.enabled else None
    served = door if limits is None else limits.app
    port = HttpPort(life.world, served, settings, life.order.listening, door=inner_door)
    life.on_reload(port.reload)
    life.on_reload(lambda new: renew_client_tls(tls, new.tls))
    if limits is not None:
        life.on_reload(limits.reload)
    if not await open_log(life, server.engine):
        return
    following = life.world.start(follow(server), name="follower")
    telling = life.world.start(server.held.telling.run(), name="telling of nodes")
    stopping = life.world.start(life.stopping.wait(), name="asked to stop")
    serving = life.world.start(_serve(life, server, port, limits), name="serving")
    # Asked to stop, serving ends by itself, in its own time.
    await asyncio.wait([stopping, following, serving], return_when=asyncio.FIRST_COMPLETED)
    # Whoever waits in a blocking query is answered with what is there, instead of being cut off.
    server.reader.close()
    api.close()
    door.close()
    if stopping.done() and server.follower.loaded.is_set():
        await serving
    await life.first_of([stopping, following, serving])
    telling.cancel()
    await link.close()
    await peers.close()
    await server.passing.close()
    await server.engine.close()


def _exchange_with(address: str, tls: ssl.SSLContext | None) -> Exchange:
    from wharf.client.http import HttpExchange  # Where there is no other server, what is slow to load is never loaded.

    return HttpExchange(address, tls=tls)


def _passage_to(address: str, tls: ssl.SSLContext | None) -> Passage:
    from wharf.client.http_passage import HttpPassage  # For the same reason.

    return HttpPassage(address, tls=tls)


def _limits_around(app: Any, life: Life, server: Server) -> "ApiLimits":  # An ASGI application.
    from wharf.agent.limiting import ApiLimits  # Here: whoever has no limits need not wait for them at the start.

    return ApiLimits(life, server, app)


async def _serve(life: Life, server: Server, port: HttpPort, limits: "ApiLimits | None") -> None:
    await server.follower.loaded.wait()
    open_keyring(life, server)
    if limits is not None:
        await limits.open()
    await port.open()
    life.ready(address=life.order.address)
    preparing = life.world.start(asyncio.to_thread(documents.prepare), name="documents")
    try:
        await port.serve(life.stopping)
    finally:
        if limits is not None:
            await limits.close()
    await asyncio.wait([preparing])

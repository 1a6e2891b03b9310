"""Endpoints that look on while an agent works: its log, its machine, the stacks of its processes.

Who names another server gets that server's answer. Where access control is off, what tells of the machine and of
processes needs `enable_debug`: anybody who can connect could ask.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

import msgspec

from wharf.cluster.access import UNCHECKED_CALLER
from wharf.cluster.api.relay.members import find_member, relay_to_member
from wharf.cluster.api.requests.parameters import FALSE_WORDS, TRUE_WORDS
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody, StreamedBody
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.wire import agents as agents_wire

TEXT_CONTENT_TYPE: Final = "text/plain"
LOG_LEVELS: Final = ("trace", "debug", "info", "warn", "error")
HEARTBEAT_INTERVAL_S: Final = 10.0
"""How long a stream of frames may be silent before it says that it lives."""
MAX_PROFILE_S: Final = 60.0

_frame = msgspec.json.Encoder().encode


class AgentMonitorActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def stream_log(self, request: Request) -> ActionResult:
        given = request.get_text("log_level").lower() or "info"
        level = {"warning": "warn", "err": "error"}.get(given, given)
        as_json = _yes(request.get_text("log_json"), option="log json")
        plain = _yes(request.get_text("plain"), option="plain")
        _yes(request.get_text("log_include_location"), option="log include location")
        if level not in LOG_LEVELS:
            raise invalid_request(f"Unknown log level: {request.get_text('log_level')}")
        there = await self._elsewhere(
            request, both="Cannot target node and server simultaneously", status=RefusalCode.INVALID
        )
        if there is not None:
            return there
        lines = self._server.agent.follow_log(level, as_json=as_json)
        parts = _as_text(lines) if plain else self._as_frames(lines)
        return ActionResult(StreamedBody(parts, TEXT_CONTENT_TYPE if plain else "application/json"))

    async def _as_frames(self, lines: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
        """A frame a line; an empty one where nothing was logged for a while, so that dead connections are found."""
        upcoming: asyncio.Task[str | None] | None = None
        try:
            while True:
                upcoming = upcoming or self._server.world.start_task(_next_line(lines), name="next line")
                done, _ = await asyncio.wait([upcoming], timeout=HEARTBEAT_INTERVAL_S)
                if not done:
                    yield b"{}"
                    continue
                line = upcoming.result()
                if line is None:
                    return
                upcoming = None
                yield _frame(agents_wire.MonitorFrame(data=b64encode(f"{line}\n".encode()).decode()))
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
            await _close(lines)

    async def export_log(self, request: Request) -> ActionResult:
        on_disk = _yes(request.get_text("on_disk"), option="on disk")
        plain = _yes(request.get_text("plain"), option="plain")
        unit = request.get_text("service_name")
        if bool(unit) == on_disk:
            raise invalid_request(
                "Either -service-name or -on-disk must be set"
                if not on_disk
                else "Cannot target journalctl and log file"
            )
        there = await self._elsewhere(
            request, both="Cannot target node and server simultaneously", status=RefusalCode.INVALID
        )
        if there is not None:
            return there
        if unit:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED, "the system's journal is not read: ask for the log file, with on_disk"
            )
        parts = self._server.agent.read_log_file()
        return ActionResult(
            StreamedBody(parts if plain else _framed(parts), TEXT_CONTENT_TYPE if plain else "application/json")
        )

    async def read_host(self, request: Request) -> ActionResult:
        self._refuse_without_debug(request)
        there = await self._elsewhere(
            request, both="Can only forward to either client node or server", status=RefusalCode.NOT_FOUND
        )
        if there is not None:
            return there
        facts = await self._server.agent.read_host()
        data = agents_wire.HostData(
            os=facts.os,
            network=[dict(network) for network in facts.networks],
            resolv_conf=facts.resolv_conf,
            hosts=facts.hosts,
            environment=dict(facts.environment),
            disk={mount: dict(sizes) for mount, sizes in facts.disks.items()},
        )
        return ActionResult(agents_wire.HostReport(agent_id=self._server.identity.member_id, host_data=data))

    # -- processes -------------------------------------------------------------------------------------------------

    async def read_command_line(self, request: Request) -> ActionResult:
        return await self._pprof(request, self._server.agent.read_command_line)

    async def profile_process(self, request: Request) -> ActionResult:
        async def look() -> bytes:
            return (await self._server.agent.profile_process(_seconds(request.get_text("seconds")))).encode()

        return await self._pprof(request, look)

    async def read_named_profile(self, request: Request) -> ActionResult:
        name = request.get_path_value("profile")
        if name != "goroutine":
            raise not_found(f"Pprof profile not found profile: {name}")

        async def stacks() -> bytes:
            told = await self._server.agent.list_processes()
            return "\n".join(
                f"process {process.name} ({process.pid}), {process.phase}\n\n{process.stacks}" for process in told
            ).encode()

        return await self._pprof(request, stacks)

    async def _pprof(self, request: Request, look: Callable[[], Awaitable[bytes]]) -> ActionResult:
        self._refuse_without_debug(request)
        there = await self._elsewhere(
            request, both="Cannot forward to both server and client node", status=RefusalCode.INVALID
        )
        return there if there is not None else ActionResult(EncodedBody(await look(), TEXT_CONTENT_TYPE))

    # -- here or elsewhere -----------------------------------------------------------------------------------------

    def _refuse_without_debug(self, request: Request) -> None:
        if request.caller is UNCHECKED_CALLER and not self._server.agent.info.is_debug_enabled:
            raise Refusal(RefusalCode.FORBIDDEN, "Permission denied")

    async def _elsewhere(self, request: Request, *, both: str, status: RefusalCode) -> ActionResult | None:
        """The reply of the server or node that the request names; None: it is for this one."""
        server_id, node_id = request.get_text("server_id"), request.get_text("node_id")
        if server_id and node_id:
            raise invalid_request(both)
        if node_id:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED, "nodes are not asked for this yet: ask the server of the same agent"
            )
        if not server_id:
            return None
        member = find_member(self._server, server_id)
        if member is None:
            raise Refusal(status, f"unknown Wharf server {server_id}")
        return await relay_to_member(self._server, request, member)

    def build_handlers(self) -> dict[str, ActionHandler]:
        return {
            "agent.monitor": self.stream_log,
            "agent.monitor_export": self.export_log,
            "agent.host": self.read_host,
            "agent.pprof.cmdline": self.read_command_line,
            "agent.pprof.profile": self.profile_process,
            "agent.pprof.named": self.read_named_profile,
        }


def _yes(given: str, *, option: str) -> bool:
    if given == "" or given in FALSE_WORDS:
        return False
    if given in TRUE_WORDS:
        return True
    raise invalid_request(f"Unknown option for {option}: {given}")


def _seconds(given: str) -> float:
    """What is no number, or none that makes sense, is one second."""
    wanted = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 1
    return min(float(wanted or 1), MAX_PROFILE_S)


async def _as_text(lines: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    try:
        async for line in lines:
            yield f"{line}\n".encode()
    finally:
        await _close(lines)


async def _framed(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        async for part in parts:
            yield _frame(agents_wire.MonitorFrame(data=b64encode(part).decode()))


async def _next_line(lines: AsyncIterator[str]) -> str | None:
    return await anext(lines, None)


async def _close(lines: AsyncIterator[str]) -> None:
    if isinstance(lines, AsyncGenerator):
        await lines.aclose()

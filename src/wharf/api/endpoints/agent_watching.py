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

from wharf.access import UNCHECKED
from wharf.api.answers import Act, Done, Packed, Streamed
from wharf.api.onward import member_called, passed_on
from wharf.api.parameters import FALSE_WORDS, TRUE_WORDS
from wharf.api.request import Request
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.server.server import Server
from wharf.wire import agent_shapes as shapes

TEXT: Final = "text/plain"
LEVELS: Final = ("trace", "debug", "info", "warn", "error")
HEARTBEAT_S: Final = 10.0
"""How long a stream of frames may be silent before it says that it lives."""
PROFILE_MOST_S: Final = 60.0

_frame = msgspec.json.Encoder().encode


class AgentWatching:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def monitor(self, request: Request) -> Done:
        given = request.text("log_level").lower() or "info"
        level = {"warning": "warn", "err": "error"}.get(given, given)
        as_json = _yes(request.text("log_json"), option="log json")
        plain = _yes(request.text("plain"), option="plain")
        _yes(request.text("log_include_location"), option="log include location")
        if level not in LEVELS:
            raise invalid(f"Unknown log level: {request.text('log_level')}")
        there = await self._elsewhere(request, both="Cannot target node and server simultaneously", status=Code.INVALID)
        if there is not None:
            return there
        lines = self._server.agent.follow_log(level, as_json=as_json)
        parts = _as_text(lines) if plain else self._as_frames(lines)
        return Done(Streamed(parts, TEXT if plain else "application/json"))

    async def _as_frames(self, lines: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
        """A frame a line; an empty one where nothing was logged for a while, so that dead connections are found."""
        upcoming: asyncio.Task[str | None] | None = None
        try:
            while True:
                upcoming = upcoming or self._server.world.start(_next_line(lines), name="next line")
                done, _ = await asyncio.wait([upcoming], timeout=HEARTBEAT_S)
                if not done:
                    yield b"{}"
                    continue
                line = upcoming.result()
                if line is None:
                    return
                upcoming = None
                yield _frame(shapes.MonitorFrame(data=b64encode(f"{line}\n".encode()).decode()))
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
            await _close(lines)

    async def export(self, request: Request) -> Done:
        on_disk = _yes(request.text("on_disk"), option="on disk")
        plain = _yes(request.text("plain"), option="plain")
        unit = request.text("service_name")
        if bool(unit) == on_disk:
            raise invalid(
                "Either -service-name or -on-disk must be set"
                if not on_disk
                else "Cannot target journalctl and log file"
            )
        there = await self._elsewhere(request, both="Cannot target node and server simultaneously", status=Code.INVALID)
        if there is not None:
            return there
        if unit:
            raise Refusal(Code.NOT_OURS, "the system's journal is not read: ask for the log file, with on_disk")
        parts = self._server.agent.log_file()
        return Done(Streamed(parts if plain else _framed(parts), TEXT if plain else "application/json"))

    async def host(self, request: Request) -> Done:
        self._refuse_without_debug(request)
        there = await self._elsewhere(
            request, both="Can only forward to either client node or server", status=Code.UNKNOWN
        )
        if there is not None:
            return there
        facts = await self._server.agent.host()
        data = shapes.HostData(
            os=facts.os,
            network=[dict(network) for network in facts.networks],
            resolv_conf=facts.resolv_conf,
            hosts=facts.hosts,
            environment=dict(facts.environment),
            disk={mount: dict(sizes) for mount, sizes in facts.disks.items()},
        )
        return Done(shapes.HostTold(agent_id=self._server.identity.member_id, host_data=data))

    # -- processes -------------------------------------------------------------------------------------------------

    async def command_line(self, request: Request) -> Done:
        return await self._pprof(request, self._server.agent.command_line)

    async def profile(self, request: Request) -> Done:
        async def look() -> bytes:
            return (await self._server.agent.profile(_seconds(request.text("seconds")))).encode()

        return await self._pprof(request, look)

    async def named(self, request: Request) -> Done:
        name = request.value("profile")
        if name != "goroutine":
            raise unknown(f"Pprof profile not found profile: {name}")

        async def stacks() -> bytes:
            told = await self._server.agent.processes()
            return "\n".join(
                f"process {process.name} ({process.pid}), {process.phase}\n\n{process.stacks}" for process in told
            ).encode()

        return await self._pprof(request, stacks)

    async def _pprof(self, request: Request, look: Callable[[], Awaitable[bytes]]) -> Done:
        self._refuse_without_debug(request)
        there = await self._elsewhere(
            request, both="Cannot forward to both server and client node", status=Code.INVALID
        )
        return there if there is not None else Done(Packed(await look(), TEXT))

    # -- here or elsewhere -----------------------------------------------------------------------------------------

    def _refuse_without_debug(self, request: Request) -> None:
        if request.caller is UNCHECKED and not self._server.agent.facts.is_debug_enabled:
            raise Refusal(Code.FORBIDDEN, "Permission denied")

    async def _elsewhere(self, request: Request, *, both: str, status: Code) -> Done | None:
        """The reply of the server or node that the request names; None: it is for this one."""
        server_id, node_id = request.text("server_id"), request.text("node_id")
        if server_id and node_id:
            raise invalid(both)
        if node_id:
            raise Refusal(Code.NOT_OURS, "nodes are not asked for this yet: ask the server of the same agent")
        if not server_id:
            return None
        member = member_called(self._server, server_id)
        if member is None:
            raise Refusal(status, f"unknown Wharf server {server_id}")
        return await passed_on(self._server, request, member)

    def table(self) -> dict[str, Act]:
        return {
            "agent.monitor": self.monitor,
            "agent.monitor_export": self.export,
            "agent.host": self.host,
            "agent.pprof.cmdline": self.command_line,
            "agent.pprof.profile": self.profile,
            "agent.pprof.named": self.named,
        }


def _yes(given: str, *, option: str) -> bool:
    if given == "" or given in FALSE_WORDS:
        return False
    if given in TRUE_WORDS:
        return True
    raise invalid(f"Unknown option for {option}: {given}")


def _seconds(given: str) -> float:
    """What is no number, or none that makes sense, is one second."""
    wanted = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 1
    return min(float(wanted or 1), PROFILE_MOST_S)


async def _as_text(lines: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    try:
        async for line in lines:
            yield f"{line}\n".encode()
    finally:
        await _close(lines)


async def _framed(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        async for part in parts:
            yield _frame(shapes.MonitorFrame(data=b64encode(part).decode()))


async def _next_line(lines: AsyncIterator[str]) -> str | None:
    return await anext(lines, None)


async def _close(lines: AsyncIterator[str]) -> None:
    if isinstance(lines, AsyncGenerator):
        await lines.aclose()

"""Endpoints that observe an agent: its log, its host, and profiles and stacks of its processes.

A request that names another server is relayed to it, and a node streams the log of its agent. While access control is off, the host and the processes are
reported only with `enable_debug`, because everyone who can connect could request them.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from wharf.cluster.access import UNCHECKED_CALLER
from wharf.cluster.api.handlers.allocations.node_calls import build_node_call
from wharf.cluster.api.relay.members import find_member, relay_to_member, relay_to_node_holder
from wharf.cluster.api.replies.encoding import encode_json
from wharf.cluster.api.requests.parameters import FALSE_WORDS, TRUE_WORDS
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody, StreamedBody, require_record
from wharf.cluster.server.node_channels.port import NoNodePath
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import NODES
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found, permission_denied
from wharf.contract.wire import agents as agents_wire
from wharf.world.tasks import cancel_tasks

TEXT_CONTENT_TYPE: Final = "text/plain"
BINARY_CONTENT_TYPE: Final = "application/octet-stream"
MEMORY_PROFILES: Final = ("heap", "allocs")
"""Nomad's names of memory profiles."""
LOG_LEVELS: Final = ("trace", "debug", "info", "warn", "error")
HEARTBEAT_INTERVAL_S: Final = 10.0
"""Seconds without a log line after which an empty frame is sent, so that dead connections are detected."""
MAX_PROFILE_S: Final = 60.0
"""Limits how long a profile slows the process down."""
BOTH_TARGETS_TEXT: Final = "Cannot target node and server simultaneously"


class AgentMonitorActions:
    """Streams the log of an agent and reads its host and processes."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def stream_log(self, request: Request) -> ActionResult:
        """Stream new log lines of the requested level and above, from this agent or the server that the request names."""
        name = request.get_text("log_level").lower() or "info"
        level = {"warning": "warn", "err": "error"}.get(name, name)
        as_json = _parse_flag(request.get_text("log_json"), option="log json")
        plain = _parse_flag(request.get_text("plain"), option="plain")
        _parse_flag(request.get_text("log_include_location"), option="log include location")
        if level not in LOG_LEVELS:
            unknown = cut_echo(request.get_text("log_level"))
            raise invalid_request(f"Unknown log level: {unknown}; the levels are {', '.join(LOG_LEVELS)}")
        node_id = request.get_text("node_id")
        if node_id and not request.get_text("server_id"):
            return await self._stream_node_log(request, node_id, is_plain=plain)
        relayed = await self._relay(request, both_text=BOTH_TARGETS_TEXT, unknown_code=RefusalCode.INVALID)
        if relayed is not None:
            return relayed
        return self._build_log_result(_encode_lines(await self._server.agent.open_log(level, as_json=as_json)), plain)

    async def _stream_node_log(self, request: Request, node_id: str, *, is_plain: bool) -> ActionResult:
        """Stream the log lines of the agent that runs this node, through the node's connection. Raises `Refusal`."""
        await require_record(self._server, NODES, node_id, not_found_text=f"Unknown node {cut_echo(node_id)}")
        try:
            channel = self._server.node_channels.channel_to(node_id)
        except NoNodePath:
            return await relay_to_node_holder(self._server, request, node_id)
        reply = await channel.call(build_node_call(request, ""))
        if reply.parts is None:
            raise Refusal(RefusalCode.NOT_IMPLEMENTED, "this node does not stream its log")
        return self._build_log_result(reply.parts, is_plain)

    def _build_log_result(self, parts: AsyncIterator[bytes], is_plain: bool) -> ActionResult:
        """Return log lines as they are, or in JSON frames."""
        if is_plain:
            return ActionResult(StreamedBody(parts, TEXT_CONTENT_TYPE, can_compress=True))
        return ActionResult(StreamedBody(self._iterate_frames(parts), "application/json", can_compress=True))

    async def _iterate_frames(self, parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield each part as a JSON frame, and an empty frame after every `HEARTBEAT_INTERVAL_S` without a part."""
        upcoming: asyncio.Task[bytes | None] | None = None
        try:
            while True:
                upcoming = upcoming or self._server.world.start_task(_read_next(parts), name="next line")
                done, _ = await asyncio.wait([upcoming], timeout=HEARTBEAT_INTERVAL_S)
                if not done:
                    yield b"{}"
                    continue
                part = upcoming.result()
                if part is None:
                    return
                upcoming = None
                yield encode_json(agents_wire.MonitorFrame(data=b64encode(part).decode()))
        finally:
            if upcoming is not None:
                await cancel_tasks(upcoming)
            await _close(parts)

    async def export_log(self, request: Request) -> ActionResult:
        """Send the whole log file of this agent or the named server. Raises `Refusal` for the systemd journal."""
        on_disk = _parse_flag(request.get_text("on_disk"), option="on disk")
        plain = _parse_flag(request.get_text("plain"), option="plain")
        unit = request.get_text("service_name")
        if bool(unit) == on_disk:
            raise invalid_request(
                "Either -service-name or -on-disk must be set"
                if not on_disk
                else "Cannot target journalctl and log file"
            )
        relayed = await self._relay(request, both_text=BOTH_TARGETS_TEXT, unknown_code=RefusalCode.INVALID)
        if relayed is not None:
            return relayed
        if unit:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED,
                "reading the systemd journal is not supported: set on_disk to read the log file",
            )
        parts = self._server.agent.read_log_file()
        return ActionResult(
            StreamedBody(
                parts if plain else _frame_parts(parts),
                TEXT_CONTENT_TYPE if plain else "application/json",
                can_compress=True,
            )
        )

    async def read_host(self, request: Request) -> ActionResult:
        """Report the operating system, networks, disks and environment of the host."""
        self._refuse_without_debug(request)
        relayed = await self._relay(
            request, both_text="Can only forward to either client node or server", unknown_code=RefusalCode.NOT_FOUND
        )
        if relayed is not None:
            return relayed
        host = await self._server.agent.read_host()
        data = agents_wire.HostData(
            os=host.os,
            network=[dict(network) for network in host.networks],
            resolv_conf=host.resolv_conf,
            hosts=host.hosts,
            environment=dict(host.environment),
            disk={mount: dict(sizes) for mount, sizes in host.disks.items()},
        )
        return ActionResult(agents_wire.HostReport(agent_id=self._server.identity.member_id, host_data=data))

    # -- processes -------------------------------------------------------------------------------------------------

    async def read_command_line(self, request: Request) -> ActionResult:
        return await self._inspect(request, self._server.agent.read_command_line)

    async def profile_process(self, request: Request) -> ActionResult:
        """Return a profile of the api process, sampled for the requested seconds."""
        seconds, as_pprof = _parse_seconds(request.get_text("seconds")), _wants_pprof(request)
        return await self._inspect(
            request, lambda: self._server.agent.profile_process(seconds, as_pprof=as_pprof), is_binary=as_pprof
        )

    async def read_named_profile(self, request: Request) -> ActionResult:
        """Return the stacks of all processes of the agent, or a memory profile of the api process."""
        name = request.get_path_value("profile")
        if name in MEMORY_PROFILES:
            seconds, as_pprof = _parse_seconds(request.get_text("seconds")), _wants_pprof(request)
            return await self._inspect(
                request, lambda: self._server.agent.profile_memory(name, seconds, as_pprof=as_pprof), is_binary=as_pprof
            )
        if name != "goroutine":
            raise not_found(f"Pprof profile not found profile: {name}")

        async def read_stacks() -> bytes:
            processes = await self._server.agent.list_processes()
            return "\n".join(
                f"process {process.name} ({process.pid}), {process.phase}\n\n{process.stacks}" for process in processes
            ).encode()

        return await self._inspect(request, read_stacks)

    async def _inspect(
        self, request: Request, inspect: Callable[[], Awaitable[bytes]], *, is_binary: bool = False
    ) -> ActionResult:
        """Return what `inspect` reads from this agent, or the reply of the server that the request names.

        `is_binary`: it is not text.
        """
        self._refuse_without_debug(request)
        relayed = await self._relay(
            request, both_text="Cannot forward to both server and client node", unknown_code=RefusalCode.INVALID
        )
        content_type = BINARY_CONTENT_TYPE if is_binary else TEXT_CONTENT_TYPE
        return relayed if relayed is not None else ActionResult(EncodedBody(await inspect(), content_type))

    # -- access and relay ------------------------------------------------------------------------------------------

    def _refuse_without_debug(self, request: Request) -> None:
        """Raise a `Refusal` if access control is off and `enable_debug` is not set."""
        if request.caller is UNCHECKED_CALLER and not self._server.agent.info.is_debug_enabled:
            raise permission_denied(
                "profiles need `enable_debug = true` in the configuration of this agent, or access control"
            )

    async def _relay(self, request: Request, *, both_text: str, unknown_code: RefusalCode) -> ActionResult | None:
        """Return the reply of the server that the request names, or `None` if the request is for this server.

        Raises `Refusal`: with the text `both_text` if the request names a server and a node, with the code
        `unknown_code` if the server is unknown.
        """
        server_id, node_id = request.get_text("server_id"), request.get_text("node_id")
        if server_id and node_id:
            raise invalid_request(both_text)
        if node_id:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED,
                "node_id is not supported here: name the server of the same agent with server_id",
            )
        if not server_id:
            return None
        member = find_member(self._server, server_id)
        if member is None:
            raise Refusal(unknown_code, f"unknown Wharf server {server_id}")
        return await relay_to_member(self._server, request, member)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = AgentMonitorActions(server)
    return {
        "agent.monitor": actions.stream_log,
        "agent.monitor_export": actions.export_log,
        "agent.host": actions.read_host,
        "agent.pprof.cmdline": actions.read_command_line,
        "agent.pprof.profile": actions.profile_process,
        "agent.pprof.named": actions.read_named_profile,
    }


def _parse_flag(text: str, *, option: str) -> bool:
    """Return whether the text means true; an empty text means false. Raises `Refusal` that names the option."""
    if text == "" or text in FALSE_WORDS:
        return False
    if text in TRUE_WORDS:
        return True
    raise invalid_request(f"Unknown option for {option}: {text}")


def _parse_seconds(text: str) -> float:
    """Return the duration of a profile, at most `MAX_PROFILE_S`. Invalid numbers and 0 mean one second."""
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1
    return min(float(seconds or 1), MAX_PROFILE_S)


def _wants_pprof(request: Request) -> bool:
    """Return whether the request asks for the format that `go tool pprof` reads, with `debug=0`."""
    return request.get_text("debug") == "0"


async def _encode_lines(lines: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    """Yield the lines as bytes, each with a line break. Closes `lines` at the end."""
    try:
        async for line in lines:
            yield f"{line}\n".encode()
    finally:
        await _close(lines)


async def _frame_parts(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield each part of a file as a JSON frame with base64 data."""
    async with aclosing(parts):
        async for part in parts:
            yield encode_json(agents_wire.MonitorFrame(data=b64encode(part).decode()))


async def _read_next(parts: AsyncIterator[bytes]) -> bytes | None:
    return await anext(parts, None)


async def _close(iterator: AsyncIterator[Any]) -> None:
    if isinstance(iterator, AsyncGenerator):
        await iterator.aclose()

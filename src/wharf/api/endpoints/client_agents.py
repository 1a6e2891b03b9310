"""Endpoints that the node which runs a task answers: files, logs, commands, figures.

What can be judged without the node is judged here: what is asked for, of whom, and whether the caller may. The rest is the
node's, through its channel.
"""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from re import compile as pattern
from typing import Any, Final

import msgspec

from wharf.api.answers import Act, Done, Packed, Reading, Streamed
from wharf.api.gate import token_of
from wharf.api.log_tails import kept_log
from wharf.api.onward import holder_of, passed_to_holder
from wharf.api.request import Request
from wharf.model.allocation import Allocation
from wharf.model.job import Job
from wharf.model.need import EXEC_ON_NODE
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.model.secret import migrate_token
from wharf.server.node_channels import NodeQuestion, NoPath, Talk
from wharf.server.server import Server
from wharf.state.tables import ALLOCATIONS, JOB_VERSIONS, NODES
from wharf.wire.client_shapes import (
    AllocPauseRequest,
    AllocRestartRequest,
    AllocSignalRequest,
    NodeIdentityRequest,
    NodeMetaApplyRequest,
)

META_KEY: Final = pattern(r"[a-zA-Z_][a-zA-Z0-9_-]*(?:\.[a-zA-Z_][a-zA-Z0-9_-]*)*")
PAUSE_STATES: Final = ("pause", "run", "scheduled")
LOG_TYPES: Final = ("stdout", "stderr")
ORIGINS: Final = ("", "start", "end")
OPEN_DRIVERS: Final = frozenset({"raw_exec"})
"""Drivers that do not keep the files of a task apart from those of its node."""

GONE: Final = frozenset({Code.UNKNOWN, Code.UNAVAILABLE})
"""The node is not there, or has the files no more."""

READS: Final[dict[str, Reading]] = {}

Check = Callable[[Allocation, Job | None], None]
"""Raises Refusal where what is asked cannot be done with this allocation."""


class ClientAgents:
    def __init__(self, server: Server) -> None:
        self._server = server

    # -- of a node ---------------------------------------------------------------------------------------------------

    async def of_node(self, request: Request) -> Done:
        return await self._ask_node(request, request.text("node_id"))

    async def apply_metadata(self, request: Request) -> Done:
        asked = request.read_body(NodeMetaApplyRequest)
        if not asked.meta:
            raise invalid("missing required Meta object")
        wrong = [key for key in asked.meta if not META_KEY.fullmatch(key)]
        if wrong:
            raise invalid(f"invalid meta key {wrong[0]!r}: use names of letters, digits, `_` and `-`, joined by dots")
        return await self._ask_node(request, request.text("node_id") or asked.node_id)

    async def renew_identity(self, request: Request) -> Done:
        asked = request.read_body(NodeIdentityRequest) if request.body else NodeIdentityRequest()
        return await self._ask_node(request, request.text("node_id") or asked.node_id)

    async def _ask_node(self, request: Request, node_id: str) -> Done:
        node_id = node_id or self._server.agent.facts.node_id
        if not node_id:
            raise invalid("missing node ID: this server runs no tasks itself, so say with `node_id` whom you ask")
        replica = self._server.replica
        if replica.get(NODES, node_id) is None:
            await self._server.reader.catch_up()
        if replica.get(NODES, node_id) is None:
            raise unknown(f"Unknown node {node_id}")
        return await self._ask(request, node_id, about="")

    # -- of an allocation --------------------------------------------------------------------------------------------

    async def of_allocation(self, request: Request) -> Done:
        return await self._ask_about(request)

    async def restart(self, request: Request) -> Done:
        asked = request.read_body(AllocRestartRequest) if request.body else AllocRestartRequest()
        if asked.task_name and asked.all_tasks:
            raise invalid("restart one task or all of them: TaskName and AllTasks cannot both be set")

        def check(allocation: Allocation, job: Job | None) -> None:
            if allocation.is_terminal:
                raise invalid("restart of an alloc that should not run")
            _check_task(allocation, job, asked.task_name)

        return await self._ask_about(request, check)

    async def signal(self, request: Request) -> Done:
        asked = request.read_body(AllocSignalRequest)
        if not asked.signal:
            raise invalid("missing signal: name one, such as SIGHUP")
        return await self._ask_about(request, lambda allocation, job: _check_task(allocation, job, asked.task))

    async def pause(self, request: Request) -> Done:
        asked = request.read_body(AllocPauseRequest)
        if asked.schedule_state not in PAUSE_STATES:
            raise invalid(f"invalid schedule state {asked.schedule_state!r}: use one of {', '.join(PAUSE_STATES)}")
        return await self._ask_about(request, lambda allocation, job: _check_task(allocation, job, asked.task))

    async def snapshot(self, request: Request) -> Done:
        """For the node on which another allocation takes this one's place."""
        allocation = await self._allocation(request, None)
        if self._server.access.settings.enabled:
            node = self._server.replica.get(NODES, allocation.node_id)
            expected = migrate_token(allocation.id, node.secret_digest if node is not None else "")
            if not expected or not compare_digest(token_of(request.headers).encode(), expected.encode()):
                raise Refusal(Code.FORBIDDEN, "Permission denied")
        return await self._ask(request, allocation.node_id, about=allocation.id)

    async def execute(self, request: Request) -> Done:
        """Without a websocket nothing runs; what is wrong with the question is told all the same."""
        allocation = await self.to_exec_beside(request)
        try:
            self._server.channels.to(allocation.node_id)
        except NoPath:
            await holder_of(self._server, allocation.node_id)
        raise invalid("commands run over a websocket: ask with an upgrade")

    async def begin_exec(self, request: Request, allocation: Allocation) -> Talk:
        """A command beside a task of the allocation, and the way to talk with it. Raises Refusal."""
        return await self._server.channels.to(allocation.node_id).talk(_question(request, allocation.id))

    async def to_exec_beside(self, request: Request) -> Allocation:
        """The allocation, if what is asked can be done and this caller may ask it. Raises Refusal."""
        task = request.text("task")
        if not task:
            raise invalid("must provide task name")
        if not _command(request.text("command")):
            raise invalid("command is not present")

        def check(allocation: Allocation, job: Job | None) -> None:
            _check_task(allocation, job, task)
            if _driver(allocation, job, task) in OPEN_DRIVERS:
                request.require(EXEC_ON_NODE, namespace=allocation.namespace)

        return await self._allocation(request, check)

    async def with_path(self, request: Request) -> Done:
        if not request.text("path"):
            raise invalid("must provide a file name: give its `path`")
        return await self._ask_about(request)

    async def read_at(self, request: Request) -> Done:
        if "offset" not in request.parameters:
            raise invalid("missing offset: say from which byte to read")
        if request.number("offset") < 0:
            raise invalid("offset cannot be negative")
        return await self.with_path(request)

    async def stream(self, request: Request) -> Done:
        _check_origin(request)
        return await self.with_path(request)

    async def logs(self, request: Request) -> Done:
        if not request.text("task"):
            raise invalid("must provide task name")
        if request.text("type") not in LOG_TYPES:
            raise invalid('log type must be "stdout" or "stderr"')
        _check_origin(request)
        task = request.text("task")
        allocation = await self._allocation(request, lambda alloc, job: _check_logged(alloc, job, task))
        try:
            return await self._ask(request, allocation.node_id, about=allocation.id)
        except Refusal as refusal:
            if refusal.code not in GONE or (kept := kept_log(request, allocation)) is None:
                raise
            return kept

    async def _ask_about(self, request: Request, check: Check | None = None) -> Done:
        allocation = await self._allocation(request, check)
        return await self._ask(request, allocation.node_id, about=allocation.id)

    async def _allocation(self, request: Request, check: Check | None) -> Allocation:
        """The one that the path names, if the caller may do with it what is asked. Raises Refusal."""
        allocation_id = request.value("alloc_id")
        replica = self._server.replica
        allocation = replica.get(ALLOCATIONS, allocation_id)
        if allocation is None:
            await self._server.reader.catch_up()
            allocation = replica.get(ALLOCATIONS, allocation_id)
        if allocation is None:
            raise unknown(f'Unknown allocation "{allocation_id}"')
        request.require(namespace=allocation.namespace)
        if check is not None:
            job = replica.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)
            check(allocation, job)
        return allocation

    # -- the way to the node -----------------------------------------------------------------------------------------

    async def _ask(self, request: Request, node_id: str, *, about: str) -> Done:
        try:
            channel = self._server.channels.to(node_id)
        except NoPath:
            return await passed_to_holder(self._server, request, node_id)
        answer = await channel.ask(_question(request, about))
        if answer.parts is not None:
            return Done(Streamed(answer.parts, answer.content_type))
        return Done(Packed(answer.body, answer.content_type))


def _question(request: Request, about: str) -> NodeQuestion:
    verb = request.endpoint.name.removeprefix("client.")
    given = {name: value for name, value in request.parameters.items() if not isinstance(value, tuple)}
    return NodeQuestion(verb, about, given, request.body)


def _command(given: str) -> list[str]:
    """`["/bin/sh", "-c", "ls"]`"""
    if not given:
        return []
    try:
        return msgspec.json.decode(given, type=list[str])
    except msgspec.MsgspecError:
        raise invalid('command must be a list of texts as JSON, such as ["/bin/ls", "-l"]') from None


def _check_task(allocation: Allocation, job: Job | None, task: str) -> None:
    """Raises where the allocation's group has no such task. Empty means all of them."""
    if task and job is not None and _driver(allocation, job, task) is None:
        raise _no_such_task(task)


def _check_logged(allocation: Allocation, job: Job | None, task: str) -> None:
    """Raises where the allocation's group has no such task, or one whose output nobody keeps."""
    _check_task(allocation, job, task)
    group = job.group(allocation.task_group) if job is not None else None
    if any(each.name == task and each.log_config.disabled for each in (group.tasks if group else None) or ()):
        raise unknown(f'task "{task}" has no logs: its job disables them by LogConfig.Disabled')


def _no_such_task(task: str) -> Refusal:
    return invalid(f'unknown task name "{task}"')


def _driver(allocation: Allocation, job: Job | None, task: str) -> str | None:
    group = job.group(allocation.task_group) if job is not None else None
    found: Mapping[str, Any] = {each.name: each.driver for each in (group.tasks if group else None) or ()}
    return found.get(task)


def _check_origin(request: Request) -> None:
    if request.text("origin") not in ORIGINS:
        raise invalid("invalid origin: use `start` or `end`")
    if request.number("offset") < 0:
        raise invalid("offset cannot be negative")


def acts_of(server: Server) -> dict[str, Act]:
    agents = ClientAgents(server)
    of_node = ("metadata", "stats", "gc", "gc_now", "identity")
    of_allocation = ("pause_state", "alloc_stats", "checks", "alloc_gc", "alloc_gc_now", "fs_list")
    return {
        **{f"client.{name}": agents.of_node for name in of_node},
        **{f"client.{name}": agents.of_allocation for name in of_allocation},
        "client.checks_by_allocation": agents.of_allocation,
        "client.metadata_apply": agents.apply_metadata,
        "client.identity_renew": agents.renew_identity,
        "client.restart": agents.restart,
        "client.signal": agents.signal,
        "client.pause": agents.pause,
        "client.snapshot": agents.snapshot,
        "client.exec": agents.execute,
        "client.fs_stat": agents.with_path,
        "client.fs_cat": agents.with_path,
        "client.fs_read_at": agents.read_at,
        "client.fs_stream": agents.stream,
        "client.fs_logs": agents.logs,
    }

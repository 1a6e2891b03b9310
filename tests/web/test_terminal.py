"""The terminal of a page: who may open it, what limits it, and when it ends."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from tests.cluster.api.test_node_channels import RUNS, OpenNode, build_stdin, with_node
from tests.cluster.api.test_websocket_relay import WebSocketCaller
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.web.browsing import Browser, a_browser
from tests.web.strict_html import find_problems
from tests.web.test_logs import set_allocation
from tests.web.test_sign_in import sign_in
from wharf.cluster.api.handlers.acl.sessions import CHECK_INTERVAL_S, MIN_CHECK_INTERVAL_S
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.times import SECOND
from wharf.web.terminal_relay import (
    INPUT_OVERHEAD_CHARS,
    MAX_UNREAD_CHARS,
    MAX_WAITING_INPUT_CHARS,
    NOT_READING_TEXT,
    SIGNED_OUT_TEXT,
    TerminalRelay,
    build_exec_scope,
    relay_terminal,
)
from wharf.world import RealWorld
from wharf.world.tasks import cancel_tasks

PAGE = f"/ui/allocations/{RUNS}/terminal"
COMMAND = f"task=server&command={quote(json.dumps(['/bin/sh']))}"
EXEC_RULES = 'namespace "default" { capabilities = ["read-job", "alloc-exec"] }'
READ_RULES = 'namespace "default" { policy = "read" }'


@asynccontextmanager
async def a_terminal_host(
    rules: str = EXEC_RULES, *, session_ttl_s: int = 3_600
) -> AsyncGenerator[tuple[OneServer, Browser, OpenNode], None]:
    """A server with access control, a person who is signed in with these rights, and a node with a running task."""
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        await set_allocation(server, task_states={"server": TaskState(state=TaskStatus.RUNNING)})
        server.server.access.apply_settings(AccessSettings(is_enabled=True, page_session_ttl_ns=session_ttl_s * SECOND))
        server.api = server.build_api()
        management = {"x-cluster-token": (await server.client.acl.bootstrap()).secret_id}
        browser = a_browser(server)
        policy, token = {"Name": "p", "Rules": rules}, {"Name": "t", "Type": "client", "Policies": ["p"]}
        await browser.send("PUT", "/v1/acl/policy/p", headers=management, body=json.dumps(policy).encode())
        created = await browser.send("PUT", "/v1/acl/token", headers=management, body=json.dumps(token).encode())
        await sign_in(browser, json.loads(created.text)["SecretID"])
        node = OpenNode(cluster, server)
        await node.open()
        try:
            yield server, browser, node
        finally:
            await node.close()


async def open_terminal(browser: Browser, node: OpenNode) -> WebSocketCaller:
    """Open a terminal, and wait until its command runs."""
    socket = browser.open_socket(f"{PAGE}/socket", COMMAND)
    await socket.expect("websocket.accept")
    await until(lambda: node.handler.is_running_command, what="the command")
    return socket


@in_virtual_time
async def test_a_terminal_passes_input_output_and_the_exit_code() -> None:
    async with a_terminal_host() as (_, browser, node):
        page = await browser.get(PAGE)
        socket = await open_terminal(browser, node)
        socket.send(type="websocket.receive", text=build_stdin(b"ls\r"))
        output = await socket.expect("websocket.send")
        socket.send(type="websocket.receive", text='{"stdin":{"close":true}}')
        exit_message = await socket.expect("websocket.send")
        closed = await socket.expect("websocket.close")

        assert (page.status, find_problems(page.text)) == (200, [])
        assert json.loads(output["text"])["stdout"]["data"] == "bHMN"
        assert json.loads(exit_message["text"])["result"]["exit_code"] == 5
        assert closed["code"] == 1000
        assert [dict(each.parameters)["tty"] for each in node.handler.requests if each.verb == "exec"] == [True]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": ""},
        {"origin": "null"},
        {"origin": "https://evil.example"},
        {"origin": "https://127.0.0.1:4646"},  # Another scheme.
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@in_virtual_time
async def test_a_page_of_another_site_opens_no_terminal(headers: dict[str, str]) -> None:
    async with a_terminal_host() as (_, browser, node):
        socket = browser.open_socket(f"{PAGE}/socket", COMMAND, headers=headers)

        assert (await socket.refusal())[0] == 403
        assert node.handler.requests == []


@in_virtual_time
async def test_without_a_session_a_terminal_is_refused_with_a_reason() -> None:
    async with a_terminal_host() as (_, browser, node):
        browser.cookies.clear()
        page = await browser.get(PAGE)
        socket = browser.open_socket(f"{PAGE}/socket", COMMAND)
        await socket.expect("websocket.accept")

        assert (page.status, page.get_header("location")) == (303, f"/ui/sign-in?next={quote(PAGE, safe='')}")
        assert (await socket.expect("websocket.close"))["reason"] == SIGNED_OUT_TEXT
        assert node.handler.requests == []


@in_virtual_time
async def test_without_the_right_the_page_names_it_and_nothing_runs() -> None:
    async with a_terminal_host(READ_RULES) as (_, browser, node):
        page = await browser.get(PAGE)
        socket = browser.open_socket(f"{PAGE}/socket", COMMAND)
        await socket.expect("websocket.accept")
        closed = await socket.expect("websocket.close")

        assert (page.status, find_problems(page.text), "alloc-exec" in page.text) == (403, [], True)
        assert (closed["code"], closed["reason"]) == (1008, "Permission denied")
        assert node.handler.requests == []


@in_virtual_time
async def test_a_terminal_ends_when_its_browser_is_signed_out() -> None:
    async with a_terminal_host() as (_, browser, node):
        socket = await open_terminal(browser, node)
        await browser.post("/ui/sign-out")
        closed = await socket.expect("websocket.close")
        await pass_time(MIN_CHECK_INTERVAL_S)

        assert (closed["code"], closed["reason"]) == (1008, SIGNED_OUT_TEXT)
        assert not node.handler.is_running_command


@in_virtual_time
async def test_a_terminal_ends_with_the_time_of_the_session() -> None:
    async with a_terminal_host(session_ttl_s=60) as (_, browser, node):
        socket = await open_terminal(browser, node)
        await pass_time(55)
        assert not socket.is_served
        await pass_time(5 + CHECK_INTERVAL_S)

        assert (await socket.expect("websocket.close"))["reason"] == SIGNED_OUT_TEXT


@in_virtual_time
async def test_the_command_is_never_taken_from_the_address() -> None:
    async with a_terminal_host() as (_, browser, _node):
        page = await browser.get(f"{PAGE}?command=%5B%22rm%22%5D&task=%3Cscript%3E&connect=1")

        assert (page.status, find_problems(page.text)) == (200, [])
        assert ("rm" in page.text.split(), 'value="/bin/sh"' in page.text, "<script>" in page.text) == (
            False, True, False,
        )  # fmt: skip


@in_virtual_time
async def test_only_the_terminal_may_make_styles() -> None:
    async with a_terminal_host() as (_, browser, _node):
        terminal = (await browser.get(PAGE)).get_header("content-security-policy").split("; ")
        other = (await browser.get(f"/ui/allocations/{RUNS}")).get_header("content-security-policy").split("; ")

        assert set(terminal) ^ set(other) == {"style-src 'self'", "style-src 'self' 'unsafe-inline'"}
        assert "style-src 'self' 'unsafe-inline'" in terminal


@in_virtual_time
async def test_an_allocation_without_a_running_task_has_no_terminal() -> None:
    async with a_terminal_host() as (server, browser, _node):
        await set_allocation(server, task_states={"server": TaskState(state=TaskStatus.DEAD)})
        page = await browser.get(PAGE)

        assert (page.status, find_problems(page.text)) == (200, [])
        assert "No task of this allocation runs" in page.text


def test_the_api_gets_the_handshake_and_the_token_but_no_cookie() -> None:
    kept = [(b"host", b"h"), (b"Sec-WebSocket-Key", b"k")]
    scope = {"headers": [*kept, (b"cookie", b"c"), (b"origin", b"o"), (b"x-cluster-token", b"foreign")]}

    built = build_exec_scope(scope, RUNS, "task=t", [(b"x-cluster-token", b"own")])

    assert built["headers"] == [*kept, (b"x-cluster-token", b"own")]
    assert built["raw_path"] == f"/v1/client/allocation/{RUNS}/exec".encode()


# -- limits


class _Ends:
    """A browser whose messages a test gives, and what it receives."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.received: list[Any] = []

    async def send(self, message: Any) -> None:
        self.received.append(message)

    def give(self, text: str) -> None:
        self.messages.put_nowait({"type": "websocket.receive", "text": text})


OUTPUT = {"type": "websocket.send", "text": "x" * MAX_UNREAD_CHARS}


@in_virtual_time
async def test_output_waits_until_the_page_has_shown_it_also_behind_unread_input() -> None:
    ends = _Ends()
    relay = TerminalRelay(ends.messages.get, ends.send)
    reading = asyncio.ensure_future(relay.read_browser())
    await relay.send_from_api(OUTPUT)
    await relay.send_from_api(OUTPUT)
    third = asyncio.ensure_future(relay.send_from_api(OUTPUT))
    ends.give(build_stdin(b"nobody reads this"))
    await pass_time(1)
    assert (len(ends.received), third.done()) == (2, False)

    ends.give(json.dumps({"read": 10**12}))  # No page has shown more than it got.
    await third
    blocked = asyncio.ensure_future(relay.send_from_api(OUTPUT))
    await pass_time(1)

    assert (len(ends.received), blocked.done()) == (4, True)
    assert (await relay.receive_for_api())["text"] == build_stdin(b"nobody reads this")
    await cancel_tasks(reading)


@in_virtual_time
async def test_more_input_than_may_wait_ends_the_terminal() -> None:
    ends = _Ends()

    async def read_nothing(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await asyncio.get_running_loop().create_future()

    running = asyncio.ensure_future(
        relay_terminal(RealWorld(), read_nothing, {}, ends.messages.get, ends.send, asyncio.Event().wait)
    )
    for _ in range(2 + MAX_WAITING_INPUT_CHARS // (10_000 + INPUT_OVERHEAD_CHARS)):
        ends.give("x" * 10_000)
    await running

    assert ends.received[-1] == {"type": "websocket.close", "code": 1008, "reason": NOT_READING_TEXT}

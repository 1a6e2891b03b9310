"""Requests that browsers send for web pages of other sites."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.cluster.api.test_node_channels import EXEC, RUNS, OpenNode, with_node
from tests.cluster.api.test_websocket_relay import WebSocketCaller
from tests.kit.callers import a_token
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.asgi import App
from wharf.cluster.api.browser_gate import BrowserGate, BrowserRules
from wharf.contract.client import ClientReply
from wharf.contract.wire.endpoint_table import ENDPOINTS

HOST = "127.0.0.1:4646"
FOREIGN = {"host": HOST, "origin": "https://evil.example", "accept-language": "en"}
EXEC_QUERY = 'task=server&command=["sh"]'
JUNK_TOKEN = {"x-cluster-token": "11111111-2222-3333-4444-555555555555"}


def put_gate(server: OneServer, *, app: App | None = None, **rules: Any) -> BrowserGate:
    return BrowserGate(app or server.api, server.world, BrowserRules(**rules))


async def send(gate: BrowserGate, method: str, path: str, headers: Mapping[str, str], **options: Any) -> ClientReply:
    return await send_raw(gate, method, path, headers=headers, **options)  # type: ignore[arg-type]  # Any application.


def is_refused(reply: ClientReply) -> bool:
    return (reply.status, reply.headers.get("x-cluster-error-reason")) == (403, "foreign-page")


def fill_path(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "x", path)


# -- endpoints


@pytest.mark.parametrize(
    "sender",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": f"http://{HOST}"},
    ],
)
@in_virtual_time
async def test_a_foreign_page_can_use_no_endpoint_that_changes_something(sender: dict[str, str]) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        gate = put_gate(server)
        index = server.replica.index

        changing = [each for each in ENDPOINTS if each.method != "GET" or each.path.endswith("/gc")]
        passed = [
            each.name
            for each in changing
            if not is_refused(await send(gate, each.method, fill_path(each.path), {"host": HOST, **sender}, body=b"{}"))
        ]

        assert (passed, server.replica.index) == ([], index)
        assert len(changing) > 100


@in_virtual_time
async def test_programs_and_own_pages_reach_every_endpoint_that_changes_something() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        gate = put_gate(server)
        own_page = {"host": HOST, "origin": f"http://{HOST}"}

        refused = [
            each.name
            for each in ENDPOINTS
            if each.method != "GET"
            for headers in ({}, own_page)
            if is_refused(await send(gate, each.method, fill_path(each.path), headers, body=b"{"))
        ]

        assert refused == []


@in_virtual_time
async def test_a_refusal_names_the_page_and_what_to_do() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await send(put_gate(server), "PUT", "/v1/jobs", FOREIGN)
        controlled = await send(put_gate(server, is_access_controlled=True), "PUT", "/v1/jobs", FOREIGN)

        assert reply.body.decode() == (
            "a page of https://evil.example sent this request: add the origin of the page to `api.trusted_origins` of this "
            "server if it may control this cluster"
        )
        assert "send a token in X-Cluster-Token, or add the origin" in controlled.body.decode()


@in_virtual_time
async def test_a_foreign_page_reads_nothing_that_it_could_pass_on() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        gate = put_gate(server)
        navigation = {"host": HOST, "sec-fetch-site": "cross-site"}

        assert is_refused(await send(gate, "GET", "/v1/vars", FOREIGN))  # Browsers let pages read replies here (CORS).
        unreadable = await send(gate, "GET", "/v1/jobs", FOREIGN)
        assert (unreadable.status, "access-control-allow-origin" in unreadable.headers) == (200, False)
        assert (await send(gate, "GET", "/v1/vars", navigation)).status == 200  # A link that the user follows.
        preflight = {**FOREIGN, "access-control-request-method": "PUT"}
        assert (await send(gate, "OPTIONS", "/v1/var/a", preflight)).status == 204


# -- tokens


@in_virtual_time
async def test_with_a_token_a_foreign_page_may_do_what_the_token_permits() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(access=True)
        gate = put_gate(server, is_access_controlled=True)
        token = await a_token(server, management=True)
        bearer = {"authorization": f"Bearer {token['x-cluster-token']}"}

        for headers in (token, bearer):
            assert (await send(gate, "PUT", "/v1/system/gc", {**FOREIGN, **headers})).status == 200
        assert "access-control-allow-origin" in (await send(gate, "GET", "/v1/vars", {**FOREIGN, **token})).headers
        assert is_refused(await send(gate, "PUT", "/v1/system/gc", FOREIGN))
        unknown = await send(gate, "PUT", "/v1/system/gc", {**FOREIGN, **JUNK_TOKEN})
        assert (unknown.status, is_refused(unknown)) == (403, False)


@in_virtual_time
async def test_without_access_control_a_token_proves_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert is_refused(await send(put_gate(server), "PUT", "/v1/var/a", {**FOREIGN, **JUNK_TOKEN}))


# -- senders


async def is_accepted(headers: Mapping[str, str], method: str = "PUT", **options: Any) -> bool:
    """Return whether a request reaches the application behind a gate."""
    async with ACluster() as cluster:
        server = await cluster.a_server()
        rules = {"trusted_origins": frozenset(("https://dash.example",)), **options}
        return not is_refused(await send(put_gate(server, **rules), method, "/v1/system/gc", headers))


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"origin": "http://127.0.0.1:4646"}, True),
        ({"origin": "https://127.0.0.1:4646"}, True),  # A proxy ends TLS.
        ({"origin": "http://127.0.0.1:3000"}, False),
        ({"origin": "http://localhost:4646"}, False),
        ({"origin": "http://127.0.0.1:4646.evil.example"}, False),
        ({"origin": "http://[::1"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "https://wharf.example", "host": "wharf.example:443"}, True),
        ({"origin": "https://WHARF.example", "host": "wharf.EXAMPLE"}, True),
        ({"origin": "https://wharf.example:80", "host": "wharf.example"}, False),
        # A proxy that changes `Host`; the browser itself has compared.
        ({"origin": "https://wharf.example", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"origin": "http://127.0.0.1:4646", "sec-fetch-site": "future"}, False),
        ({"origin": "https://dash.example"}, True),
        ({"origin": "https://DASH.example", "sec-fetch-site": "cross-site"}, True),
        ({"origin": "http://dash.example"}, False),
        ({"origin": "http://127.0.0.1:4646", "x-forwarded-host": "evil.example"}, True),
        ({"origin": "https://evil.example", "x-forwarded-host": "evil.example"}, False),
    ],
)
@in_virtual_time
async def test_only_own_and_trusted_pages_may_change_something(headers: dict[str, str], is_own: bool) -> None:
    assert await is_accepted({"host": HOST, **headers}, host_names=frozenset(("wharf.example",))) is is_own


@in_virtual_time
async def test_servers_that_a_request_of_an_own_page_is_relayed_to_see_no_page() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        received: list[dict[bytes, bytes]] = []

        async def application(scope: Any, receive: Any, send: Any) -> None:
            received.append(dict(scope["headers"]))
            await server.api(scope, receive, send)

        gate = put_gate(server, app=application)
        await send(gate, "PUT", "/v1/system/gc", {"host": HOST, "origin": f"http://{HOST}", "sec-fetch-site": "none"})
        await send(gate, "PUT", "/ui/jobs", {"host": HOST, "origin": f"http://{HOST}"})

        assert received == [{b"host": HOST.encode()}, {b"host": HOST.encode(), b"origin": f"http://{HOST}".encode()}]


# -- names of the server (DNS rebinding)


@pytest.mark.parametrize(
    ("host", "is_accepted_locally", "is_listed"),
    [
        ("127.0.0.1:4646", True, True),
        ("[::1]:4646", True, True),
        ("10.0.0.5", True, True),
        ("localhost:4646", True, True),
        ("laptop:4646", True, True),
        ("laptop.local:4646", True, True),
        ("wharf.example.com:4646", False, True),
        ("WHARF.example.com.", False, True),
        ("m1.nodes.example.com:4646", True, True),
        ("evil.example:4646", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("evil.localhost.example", False, False),
    ],
)
@in_virtual_time
async def test_browsers_without_a_token_must_use_a_name_of_the_server(
    host: str, is_accepted_locally: bool, is_listed: bool
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        own = frozenset(("m1.nodes.example.com",))
        names = frozenset(("wharf.example.com",))
        for path in ("/v1/jobs", "/ui/jobs"):
            results = [
                not is_refused(await send(gate, "GET", path, {"host": host, "accept-language": "en"}))
                for gate in (
                    put_gate(server, own_names=own),
                    put_gate(server, own_names=own, host_names=names, is_access_controlled=True),
                    put_gate(server, is_access_controlled=True),
                )
            ]
            assert results == [is_accepted_locally, is_listed, True]
        assert not is_refused(await send(put_gate(server), "PUT", "/v1/system/gc", {"host": host}))  # A program.


# -- websockets


@pytest.mark.parametrize(
    ("headers", "is_open"),
    [
        ({}, True),
        ({"origin": f"http://{HOST}"}, True),
        ({"origin": "https://dash.example"}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-site"}, False),
    ],
)
@in_virtual_time
async def test_a_foreign_page_can_open_no_terminal(headers: dict[str, str], is_open: bool) -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster)
        node = OpenNode(cluster, server)
        await node.open()
        gate = put_gate(server, trusted_origins=frozenset(("https://dash.example",)))
        sent = [(name.encode(), value.encode()) for name, value in {"host": HOST, **headers}.items()]
        caller = WebSocketCaller(gate, EXEC, f"{EXEC_QUERY}&ws_handshake=true", headers=sent)

        if is_open:
            await caller.expect("websocket.accept")
            caller.send(type="websocket.receive", text='{"version": 1}')
            caller.send(type="websocket.receive", text='{"stdin":{"close":true}}')
            assert "exited" in (await caller.expect("websocket.send"))["text"]
        else:
            status, text = await caller.refusal()
            assert (status, b"sent this request" in text, node.handler.requests) == (403, True, [])
        await caller.wait_closed()
        await node.close()


@in_virtual_time
async def test_a_foreign_page_needs_a_token_in_the_first_message_although_callers_without_one_have_rights() -> None:
    async with ACluster() as cluster:
        server = await with_node(cluster, access=True)
        node = OpenNode(cluster, server)
        await node.open()
        rules = 'namespace "default" { capabilities = ["alloc-exec"] }'
        token = (await a_token(server, rules, name="anonymous"))["x-cluster-token"]
        gate = put_gate(server, is_access_controlled=True)

        async def connect(token: str, sender: dict[bytes, bytes], query: str = "&ws_handshake=true") -> WebSocketCaller:
            headers = [(b"host", HOST.encode()), *sender.items()]
            caller = WebSocketCaller(gate, EXEC, EXEC_QUERY + query, headers=headers)
            handshake = {"version": 1, "auth_token": token}
            caller.send(type="websocket.receive", text=msgspec.json.encode(handshake).decode())
            caller.send(type="websocket.receive", text='{"stdin":{"close":true}}')
            return caller

        page = {b"origin": b"https://evil.example"}
        for caller in (await connect("", page), await connect("", page, "&ws_handshake=false")):
            await caller.expect("websocket.accept")
            assert "a page of https://evil.example" in (await caller.expect("websocket.close"))["reason"]
            await caller.wait_closed()
        for caller in (await connect(token, page), await connect("", {})):
            await caller.expect("websocket.accept")
            assert "exited" in (await caller.expect("websocket.send"))["text"]
            await caller.wait_closed()
        assert (await (await connect(token, page, "")).refusal())[0] == 403
        assert [(each.verb, each.about) for each in node.handler.requests] == [("exec", RUNS)] * 2
        await node.close()

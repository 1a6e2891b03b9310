"""The activity of organizations that a server reads from the gateway in its configuration."""

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, running
from tests.agent.test_access_control import ACL_ENABLED, ask, bootstrap_access
from tests.agent.test_processes import write_agent_config
from tests.limits.admin.test_commands import ADA_HEADER, Operator, run_as_operator
from tests.limits.decision_services import ADA, DIRECTORY
from tests.ports import free_ports
from tests.waiting import wait_until
from wharf.agent.http.gateway_activity import MAX_REPLY_BYTES, MAX_REQUESTS, MAX_TIME_S, GatewayActivity
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import SECOND
from wharf.contract.wire.limits import OrganizationActivity
from wharf.world import RealWorld

TOKEN = "a-token-of-twenty-signs-or-more"
ROUTE = "/v1/limits/organizations/acme"


def write_token(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    file = folder / "gateway-token"
    file.write_text(text + "\n")
    file.chmod(mode)
    return file


def ask_running_gateway(
    folder: Path, scenario: Callable[[Operator, GatewayActivity], Awaitable[OrganizationActivity]]
) -> OrganizationActivity:
    """Run a scenario with a gateway and what reads its activity."""
    token = write_token(folder)

    async def run(operator: Operator) -> OrganizationActivity:
        return await scenario(operator, GatewayActivity(RealWorld(), f"http://127.0.0.1:{operator.port}", token))

    more = f'admin_listen = "127.0.0.1:0"\nadmin_token_file = "{token}"\n'
    return run_as_operator(folder, run, rules='[[rule]]\nname = "core"\nceiling = 2\n', more=more)


@asynccontextmanager
async def a_listener(reply: bytes | None) -> AsyncIterator[str]:
    """Yield the address of a listener that sends these bytes to each request; with `None` it never replies."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if reply is None:
            await ended.wait()
        else:
            writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        server.close()


async def read_refusal(address: str, token: Path, *, timeout_s: float = 20.0) -> Refusal:
    """Return the refusal of a request to a gateway at this address."""
    with pytest.raises(Refusal) as refused:
        await GatewayActivity(RealWorld(), address, token, timeout_s=timeout_s).read_activity(
            "acme", minutes=60, page=1
        )
    return refused.value


def build_reply(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


def a_row(count: int, time: str = "2027-01-31T12:00:00Z") -> bytes:
    """Return a report with one row, which has this number of requests and this time."""
    texts = {"actor_name": "a", "actor_type": "opaque", "user_name": None, "is_member": None, "resource_name": "acme"}
    counts = {"total_request_count": count, "rate_limited_request_count": 0}
    times = {"last_request_timestamp": time, "last_rate_limited_timestamp": None}
    return json.dumps([{**texts, **counts, **times}]).encode()


def test_a_time_that_the_api_cannot_send_is_cut(tmp_path: Path) -> None:
    async def scenario() -> OrganizationActivity:
        async with a_listener(build_reply(a_row(1, "9999-12-31T00:00:00Z"))) as address:
            gateway = GatewayActivity(RealWorld(), address, write_token(tmp_path))
            return await gateway.read_activity("acme", minutes=60, page=1)

    (row,) = asyncio.run(scenario()).rows

    assert row.last == MAX_TIME_S * SECOND


def test_members_and_outsiders_are_listed_with_their_resource_and_their_refusals(tmp_path: Path) -> None:
    async def scenario(operator: Operator, gateway: GatewayActivity) -> OrganizationActivity:
        for _ in range(3):
            await operator.send(ADA_HEADER, target="/orgs/acme")
        await operator.send(target="/orgs/acme")
        return await gateway.read_activity("acme", minutes=60, page=1)

    found = ask_running_gateway(tmp_path, scenario)

    member, outsider = found.rows
    assert (member.user, member.is_member, member.resource, member.requests, member.refused) == (
        "ada",
        True,
        "acme",
        3,
        1,
    )
    assert (outsider.actor_type, outsider.user, outsider.is_member, outsider.requests) == ("none", "", None, 1)
    assert found.since < member.last_refused <= member.last
    assert (found.page, found.has_more) == (1, False)


def test_an_organization_that_the_gateway_does_not_know_is_not_found(tmp_path: Path) -> None:
    async def scenario(_operator: Operator, gateway: GatewayActivity) -> OrganizationActivity:
        return await gateway.read_activity("emca", minutes=60, page=1)

    with pytest.raises(Refusal, match="'emca' is not in the directory") as refused:
        ask_running_gateway(tmp_path, scenario)

    assert refused.value.code is RefusalCode.NOT_FOUND


def test_a_page_after_the_last_one_is_empty(tmp_path: Path) -> None:
    async def scenario(operator: Operator, gateway: GatewayActivity) -> OrganizationActivity:
        await operator.send(ADA_HEADER, target="/orgs/acme")
        return await gateway.read_activity("acme", minutes=60, page=2)

    assert ask_running_gateway(tmp_path, scenario).rows == ()


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("another-token-of-twenty-signs", 0o600, "it rejected the token in"),
        (TOKEN, 0o640, "other users can access"),
        ("", 0o600, "does not contain a token"),
    ],
)
def test_a_token_that_is_wrong_or_readable_by_others_is_a_sentence_without_the_token(
    tmp_path: Path, text: str, mode: int, problem: str
) -> None:
    async def scenario(_operator: Operator, gateway: GatewayActivity) -> OrganizationActivity:
        write_token(tmp_path, text, mode)
        return await gateway.read_activity("acme", minutes=60, page=1)

    with pytest.raises(Refusal, match=problem) as refused:
        ask_running_gateway(tmp_path, scenario)

    assert refused.value.code is RefusalCode.UNAVAILABLE
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (build_reply(b"<html>"), "its reply is not a report"),
        (build_reply(b'[{"actor_name": 1}]'), "its reply is not a report"),
        (build_reply(a_row(1 << 70)), "its reply is not a report"),
        (build_reply(a_row(-1)), "its reply is not a report"),
        (build_reply(a_row(1, "2027-01-31T12:00:00")), "its reply is not a report"),
        (build_reply(b'{"message": "no such\\u001b[2J report"}', "400 Bad Request"), "status 400: no such[2J report"),
        (build_reply(b"", "302 Found\r\nlocation: http://192.0.2.1/"), "it replied with the status 302"),
        (build_reply(b" " * (MAX_REPLY_BYTES + 1)), "bytes"),
        (b"", "no report from the gateway"),
    ],
)
def test_anything_but_a_report_is_a_sentence(tmp_path: Path, reply: bytes, problem: str) -> None:
    async def scenario() -> Refusal:
        async with a_listener(reply) as address:
            return await read_refusal(address, write_token(tmp_path))

    refusal = asyncio.run(scenario())

    assert refusal.code is RefusalCode.UNAVAILABLE
    assert problem in str(refusal)


def test_a_gateway_that_never_replies_is_left_in_time(tmp_path: Path) -> None:
    async def scenario() -> Refusal:
        async with a_listener(None) as address:
            return await read_refusal(address, write_token(tmp_path), timeout_s=0.2)

    assert "it has not replied within 0.2 s" in str(asyncio.run(scenario()))


def test_a_token_file_that_is_a_pipe_does_not_hold_a_request(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)

    refusal = asyncio.run(read_refusal("http://127.0.0.1:9", tmp_path / "pipe"))

    assert "does not contain a token" in str(refusal)


def test_more_requests_than_the_gateway_should_get_are_refused_at_once(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        async with a_listener(None) as address:
            gateway = GatewayActivity(RealWorld(), address, write_token(tmp_path), timeout_s=0.5)
            requests = [gateway.read_activity("acme", minutes=60, page=1) for _ in range(MAX_REQUESTS + 1)]
            return [str(each) for each in await asyncio.gather(*requests, return_exceptions=True)]

    *waited, refused = asyncio.run(scenario())

    assert ["has not replied" in each for each in waited] == [True] * MAX_REQUESTS
    assert "the server is overloaded" in refused


@contextmanager
def a_gateway_process(folder: Path, port: int, admin_port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a running `wharf gateway` in front of no service."""
    (folder / "rules.toml").write_text("")
    (folder / "people.toml").write_text(DIRECTORY)
    (folder / "limits.toml").write_text(
        'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n'
        f'admin_listen = "127.0.0.1:{admin_port}"\nadmin_token_file = "gateway-token"\n'
        f'[gateway]\nupstream = "http://127.0.0.1:9"\nlisten = "127.0.0.1:{port}"\n'
    )
    out = folder / "gateway.txt"
    with out.open("wb") as file:
        command = [sys.executable, "-m", "wharf", "gateway", "--config", str(folder / "limits.toml")]
        gateway = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Admin commands" in out.read_text(), what="the gateway is ready")
        yield gateway
    finally:
        gateway.kill()
        gateway.wait(timeout=ANSWERED_WITHIN_S)


def send_as_ada(port: int) -> int:
    """Send a request about an organization through the gateway, and return its status."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orgs/acme", headers={"authorization": f"token {ADA}"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S)
    with refused.value as error:
        return error.code


def test_a_server_relays_the_activity_to_operators_only_and_says_when_the_gateway_is_away(tmp_path: Path) -> None:
    token = write_token(tmp_path)
    port, admin_port = free_ports(2)
    settings = f'[limits]\ngateway_admin = "http://127.0.0.1:{admin_port}"\ngateway_token_file = "{token}"\n'
    file = write_agent_config(tmp_path / "a", ACL_ENABLED + settings)
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        secret = bootstrap_access(agent)["SecretID"]
        ask(
            agent,
            "PUT",
            "/v1/acl/policy/reader",
            {"Name": "reader", "Rules": 'operator { policy = "read" }'},
            token=secret,
        )
        reader = {"Name": "ann", "Type": "client", "Policies": ["reader"]}
        reader_secret = json.loads(ask(agent, "PUT", "/v1/acl/token", reader, token=secret)[1])["SecretID"]
        with a_gateway_process(tmp_path, port, admin_port) as gateway:
            assert send_as_ada(port) == 502  # There is no service.
            status, text = ask(agent, "GET", f"{ROUTE}?minutes=5", token=secret)
            refused = [ask(agent, "GET", ROUTE, token=each)[0] for each in (reader_secret, "")]
            wrong = [
                ask(agent, "GET", path, token=secret)[0]
                for path in (
                    f"{ROUTE}?page=0",
                    f"{ROUTE}?minutes=x",
                    "/v1/limits/organizations/..%2Frules",
                    "/v1/limits/organizations/%2E%2E",
                )
            ]
            gateway.kill()
            gateway.wait(timeout=ANSWERED_WITHIN_S)
        away = ask(agent, "GET", ROUTE, token=secret)

    (row,) = json.loads(text)["Rows"]
    assert (status, row["User"], row["IsMember"], row["Resource"], row["Requests"]) == (200, "ada", True, "acme", 1)
    assert (refused, wrong) == ([403, 403], [400, 400, 400, 400])
    assert away[0] == 503
    assert f"no report from the gateway at http://127.0.0.1:{admin_port}" in away[1]
    assert TOKEN not in text + away[1]

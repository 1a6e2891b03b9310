"""A login over real sockets, with an identity provider on its own port."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, RedirectResponse, StreamingResponse
from starlette.routing import Route

from tests.agent.processes import running
from tests.agent.test_access_control import ACL_ENABLED, ask, bootstrap_access
from tests.agent.test_processes import write_agent_config
from tests.attempts import require_cpu
from tests.cluster.api.login_provider import CLIENT_ID, CLIENT_SECRET, LoginProvider
from tests.kit.loop_holds import measure_holds
from tests.waiting import wait_until
from wharf.agent import access_control
from wharf.agent.access_control import MAX_PROVIDER_REPLY_BYTES, HttpIdentityProviders
from wharf.cluster.server.security.login_providers import ProviderRequest, ProviderUnreachable
from wharf.world import tls_contexts

REDIRECT_URL = "http://localhost:4649/oidc/callback"


@contextmanager
def serve_in_thread(app: Any, listening: socket.socket) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        wait_until(lambda: server.started, what="the provider answers")
        yield
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_a_login_at_an_identity_provider_returns_a_token(tmp_path: Path, listening: socket.socket) -> None:
    issuer = f"http://127.0.0.1:{listening.getsockname()[1]}"
    provider = LoginProvider(lambda: int(time.time()), issuer=issuer)
    file = write_agent_config(tmp_path / "a", ACL_ENABLED)
    with serve_in_thread(provider.app, listening), running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        secret = bootstrap_access(agent)["SecretID"]

        def put(path: str, body: object, *, token: str = "") -> Any:
            status, reply = ask(agent, "PUT", path, body, token=token)
            assert status == 200, reply
            return json.loads(reply) if reply else None

        config = {
            "OIDCDiscoveryURL": issuer,
            "OIDCClientID": CLIENT_ID,
            "OIDCClientSecret": CLIENT_SECRET,
            "AllowedRedirectURIs": [REDIRECT_URL],
            "ClaimMappings": {"email": "email"},
        }
        method = {"Name": "sso", "Type": "OIDC", "TokenLocality": "local", "MaxTokenTTL": "1h", "Config": config}
        put("/v1/acl/auth-method", method, token=secret)
        put("/v1/acl/binding-rule", {"AuthMethod": "sso", "BindType": "management"}, token=secret)

        login = put(
            "/v1/acl/oidc/auth-url", {"AuthMethodName": "sso", "RedirectURI": REDIRECT_URL, "ClientNonce": "a nonce"}
        )
        redirect = provider.visit(login["AuthURL"])
        body = {"AuthMethodName": "sso", "ClientNonce": "a nonce", "RedirectURI": REDIRECT_URL}
        token = put("/v1/acl/oidc/complete-auth", {**body, "State": redirect["state"], "Code": redirect["code"]})

        assert (token["Name"], token["Type"]) == ("OIDC-sso", "management")
        assert ask(agent, "GET", "/v1/acl/tokens", token=token["SecretID"])[0] == 200


def test_a_provider_that_is_silent_replies_too_much_or_redirects_is_rejected(
    listening: socket.socket,
) -> None:
    app = Starlette(
        routes=[
            Route("/much", lambda _request: PlainTextResponse("x" * (MAX_PROVIDER_REPLY_BYTES + 1))),
            Route("/elsewhere", lambda _request: RedirectResponse("/much")),
        ]
    )
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def fetch_status(url: str) -> int:
        return asyncio.run(HttpIdentityProviders().send(ProviderRequest(url))).status

    with serve_in_thread(app, listening):
        assert fetch_status(f"{address}/elsewhere") == 307
        with pytest.raises(ProviderUnreachable, match=f"more than {MAX_PROVIDER_REPLY_BYTES} bytes"):
            fetch_status(f"{address}/much")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ProviderUnreachable, match="does not answer"):
        fetch_status(f"http://127.0.0.1:{port}")


def test_a_provider_that_never_ends_its_reply_is_given_up(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_control, "PROVIDER_TIMEOUT_S", 0.3)

    async def trickle() -> AsyncIterator[bytes]:
        async with asyncio.timeout(20):
            while True:
                yield b"x"
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await asyncio.Event().wait()

    app = Starlette(routes=[Route("/slow", lambda _request: StreamingResponse(trickle()))])
    began_s = time.monotonic()
    request = ProviderRequest(f"http://127.0.0.1:{listening.getsockname()[1]}/slow")
    expected = pytest.raises(ProviderUnreachable, match=r"does not answer: no complete reply within 0\.3 s")
    with serve_in_thread(app, listening), expected:
        asyncio.run(HttpIdentityProviders().send(request))

    assert time.monotonic() - began_s < 5


def test_requests_to_a_provider_do_not_hold_the_event_loop_while_certificates_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_contexts, "_cache", tls_contexts._ContextCache())
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def send_many() -> list[object]:
        requests = [HttpIdentityProviders().send(ProviderRequest(f"https://127.0.0.1:{port}")) for _ in range(10)]
        return await asyncio.gather(*requests, return_exceptions=True)

    asyncio.run(send_many())  # Imports the HTTP library.
    monkeypatch.setattr(tls_contexts, "_cache", tls_contexts._ContextCache())
    with measure_holds() as holds:
        failures = asyncio.run(send_many())

    assert all(isinstance(failure, ProviderUnreachable) for failure in failures)
    holds.require_short("reading certificates", 0.010)
    require_cpu(holds.total_s, 0.050, "the requests")


@pytest.mark.parametrize(
    "text", ["no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "ü"]
)
def test_certificates_of_an_auth_method_that_cannot_be_read_are_reported(text: str) -> None:
    with pytest.raises(
        ProviderUnreachable, match=r"the certificates to check https://127\.0\.0\.1:1 with cannot be read"
    ):
        asyncio.run(HttpIdentityProviders().send(ProviderRequest("https://127.0.0.1:1", ca_pem=(text,))))


IMPORTING_THREADS = """
import asyncio, sys, threading
from wharf.agent.access_control import HttpIdentityProviders
from wharf.cluster.server.security.login_providers import ProviderRequest, ProviderUnreachable

threads = set()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "httpx2":
            threads.add(threading.current_thread() is threading.main_thread())

async def log_in():
    try:
        await HttpIdentityProviders().send(ProviderRequest(url="http://127.0.0.1:1/keys"))
    except ProviderUnreachable:
        print("refused")

assert "httpx2" not in sys.modules
sys.meta_path.insert(0, Finder())
asyncio.run(log_in())
print(threads)
"""


def test_the_first_login_loads_the_http_library_on_a_thread() -> None:
    process = subprocess.run(
        [sys.executable, "-c", IMPORTING_THREADS], capture_output=True, text=True, timeout=60, check=True
    )

    assert process.stdout.split() == ["refused", "{False}"]

"""Header names that a service may take for one of the gateway's own, in front of a real WSGI server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from tests.http_servers import serving
from tests.limits.gateway.running_gateway import RunningGateway, run_scenario

OWN_HEADERS = (
    *("X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "True-Client-IP", "Content-Length", "Transfer-Encoding"),
    *("X-Wharf-Request-Id", "X-Wharf-Cpu-Ms", "Proxy-Authorization", "Keep-Alive", "If-None-Match"),
)


class SilentHandler(WSGIRequestHandler):
    """Serves one request without writing a log."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def run_wsgi_service() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run a WSGI service in a thread. Return its URL, and the environment of each request that it received."""
    received: list[dict[str, Any]] = []

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        received.append(environ)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    with serving(make_server("127.0.0.1", 0, application, handler_class=SilentHandler)) as server:
        yield f"http://127.0.0.1:{server.server_port}", received


@pytest.mark.parametrize("sign", ["_", "."])
def test_a_header_that_a_wsgi_service_can_take_for_one_of_the_gateway_is_refused(tmp_path: Path, sign: str) -> None:
    with run_wsgi_service() as (url, received):

        async def scenario(running: RunningGateway) -> list[tuple[str, int, str]]:
            replies = []
            for own_name in OWN_HEADERS:
                for name in {own_name.replace("-", sign), own_name.replace("-", sign, 1).upper()}:
                    reply = await running.request("/things", f"{name}: 7")
                    replies.append((name, reply.status, reply.json()["message"]))
            return replies

        replies = run_scenario(tmp_path, scenario, upstream=url)

    assert [reply for reply in replies if reply[1] != 400 or f'"{reply[0]}"' not in reply[2]] == []
    assert received == []


def test_a_wsgi_service_sees_only_the_true_address_of_a_caller(tmp_path: Path) -> None:
    with run_wsgi_service() as (url, received):

        async def scenario(running: RunningGateway) -> int:
            reply = await running.request(
                "/things", "X-Forwarded-For: 6.6.6.6", "X-Real-IP: 6.6.6.6", "Forwarded: for=6"
            )
            return reply.status

        status = run_scenario(tmp_path, scenario, upstream=url)

    (environ,) = received
    assert (status, environ["HTTP_X_FORWARDED_FOR"]) == (200, "127.0.0.1")
    assert [name for name, value in environ.items() if "6.6.6.6" in str(value)] == []


def test_other_headers_with_underscores_reach_a_wsgi_service(tmp_path: Path) -> None:
    with run_wsgi_service() as (url, received):

        async def scenario(running: RunningGateway) -> int:
            return (await running.request("/things", "api_key: abc", "X_Real_IPs: 1", "Content_Language: x")).status

        status = run_scenario(tmp_path, scenario, upstream=url)

    (environ,) = received
    assert (status, environ["HTTP_API_KEY"], environ["HTTP_X_REAL_IPS"]) == (200, "abc", "1")


def test_an_address_header_of_a_proxy_is_forwarded_if_proxies_are_configured(tmp_path: Path) -> None:
    with run_wsgi_service() as (url, received):

        async def scenario(running: RunningGateway) -> int:
            return (await running.request("/things", "X-Forwarded-For: 203.0.113.9", "X-Real-IP: 203.0.113.9")).status

        status = run_scenario(tmp_path, scenario, upstream=url, more="[addresses]\nhops = 1\n")

    (environ,) = received
    assert (status, environ["HTTP_X_REAL_IP"]) == (200, "203.0.113.9")
    assert environ["HTTP_X_FORWARDED_FOR"] == "203.0.113.9, 127.0.0.1"

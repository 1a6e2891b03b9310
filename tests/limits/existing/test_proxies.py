"""Real proxies ask a real limiter, with the configurations of docs/limits-proxies.md: Envoy, Traefik and Caddy."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.docs.limits_proxies import (
    RULES,
    Reply,
    fetch,
    list_differences,
    read_files,
    replace_ports,
    run_gateway,
    run_limiter,
    run_program,
    run_service,
    send_raw,
)
from tests.limits.decision_services import DIRECTORY
from tests.ports import free_ports
from tests.waiting import wait_until

FILES = read_files()
RunProxy = Callable[[Path, int, int], AbstractContextManager[int]]
PROGRAMS = Path(os.environ.get("WHARF_CLIENTS", "build/clients")).absolute() / "proxies"


@contextmanager
def run_checks(folder: Path) -> Iterator[tuple[int, int]]:
    """Run a limiter with a check endpoint, and a service. Yields the ports of both."""
    (check,) = free_ports(1)
    settings = replace_ports(FILES["check.toml"], {8082: check})
    (folder / "limits.toml").write_text(f'directory = "people.toml"\ninsights = true\n{settings}')
    (folder / "rules.toml").write_text(RULES)
    (folder / "people.toml").write_text(DIRECTORY)
    with run_service() as service, run_limiter(folder, "limits.toml"):
        yield check, service


@contextmanager
def run_traefik(folder: Path, check: int, service: int) -> Iterator[int]:
    """Run Traefik with the configuration of the page. Yields its port."""
    (port,) = free_ports(1)
    (folder / "dynamic.yaml").write_text(replace_ports(FILES["dynamic.yaml"], {8082: check, 3000: service}))
    (folder / "traefik.yaml").write_text(
        f"entryPoints: {{ web: {{ address: '127.0.0.1:{port}' }} }}\n"
        "providers: { file: { filename: dynamic.yaml } }\nglobal: { checkNewVersion: false }\n"
    )
    command = [str(PROGRAMS / "traefik"), "--configFile=traefik.yaml"]
    with run_program(command, folder, port, path="/rate_limit"):
        wait_until(lambda: fetch(port, "/rate_limit").status == 200, what="Traefik has its routes")
        yield port


@contextmanager
def run_caddy(folder: Path, check: int, service: int) -> Iterator[int]:
    """Run Caddy with the configuration of the page. Yields its port."""
    (port,) = free_ports(1)
    text = replace_ports(FILES["Caddyfile"], {8082: check, 3000: service, 8010: port})
    (folder / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https off\n}\n" + text)
    command = [str(PROGRAMS / "caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]
    folders = {"XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with run_program(command, folder, port, path="/rate_limit", **folders):
        yield port


METER = """
[[domain]]
name = "shop"
[[domain.descriptors]]
key = "remote_address"
algorithm = "meter"
ceiling = 25
"""


@contextmanager
def run_envoy(folder: Path, rules: str, configuration: Any) -> Iterator[int]:
    """Run an Envoy in front of a service and beside a limiter with these rules. Yields its port."""
    grpc, port = free_ports(2)
    (folder / "rules.toml").write_text(rules)
    (folder / "limits.toml").write_text(replace_ports(FILES["limits.toml"], {8081: grpc}))
    with run_service() as service, run_limiter(folder, "limits.toml"):
        text = json.dumps(configuration)
        (folder / "envoy.json").write_text(replace_ports(text, {8081: grpc, 10000: port, 3000: service}))
        options = ["--concurrency", "1", "--disable-hot-restart", "-l", "error"]
        with run_program([str(PROGRAMS / "envoy"), "-c", "envoy.json", *options], folder, port, path="/ready"):
            yield port


def load_yaml(name: str) -> Any:
    return YAML(typ="safe").load(FILES[name])


@pytest.fixture
def envoy(tmp_path: Path) -> Iterator[int]:
    """An Envoy with the configuration of the page. Yields its port."""
    with run_envoy(tmp_path, FILES["rules.toml"], load_yaml("envoy.yaml")) as port:
        yield port


def test_envoy_reports_costs_that_are_known_only_after_the_request(tmp_path: Path) -> None:
    """Each response of the service has 11 bytes: after three of them, more than 25 are counted."""
    configuration = load_yaml("envoy.yaml")
    listener = configuration["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"]["virtual_hosts"][0]["routes"] = [load_yaml("costs.yaml")]
    with run_envoy(tmp_path, METER, configuration) as port:
        refused = ask_until_limited(port)
    limit = json.loads(refused.body)["limit"]
    assert (limit["name"], limit["allowed"]) == ("shop_remote_address", 25)


def ask_until_limited(port: int, x_user: str = "ada") -> Reply:
    """Send requests until one is refused. Envoy admits some while it does not know yet that the limiter is healthy."""
    return wait_until(
        lambda: reply if (reply := fetch(port, x_user=x_user)).status == 429 else None, what="a refusal of the proxy"
    )


def test_envoy_adds_the_headers_of_the_limiter(envoy: int) -> None:
    reply = wait_until(
        lambda: found if "ratelimit" in (found := fetch(envoy, x_user="ada")).headers else None,
        what="Envoy has asked the limiter",
    )
    assert '"shop_route_orders_user";q=2;w=10' in reply.headers["ratelimit-policy"]
    assert 'w=60;name="shop_remote_address"' in reply.headers["x-ratelimit-limit"]


def test_envoy_refuses_with_the_reply_of_the_limiter(envoy: int) -> None:
    reply = ask_until_limited(envoy, x_user="guest")
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert json.loads(reply.body)["limit"]["name"] in ("shop_route_orders_user_guest", "shop_remote_address")
    assert int(reply.headers["retry-after"]) > 0


SPELLINGS = (
    *(b"/orders?x=%d" % number for number in range(3)),
    *(b"/orders/", b"/orders/7", b"//orders", b"/x/../orders", b"/./orders", b"/%6frders", b"/Orders", b"/ORDERS?x=1"),
    *(b"/orders;a=b", b"/orders/?", b"/x/%2e%2e/orders", b"http://shop.example/orders?x=1"),
)
FEW = """
[[domain]]
name = "shop"
[[domain.descriptors]]
key = "route"
value = "orders"
ceiling = 1
descriptors = [{ key = "user", ceiling = 1 }]
"""


@pytest.mark.parametrize("headers", [(), (b"X-User: ada",)])
def test_no_spelling_of_a_path_avoids_a_limit_in_envoy(tmp_path: Path, headers: tuple[bytes, ...]) -> None:
    with run_envoy(tmp_path, FEW, load_yaml("envoy.yaml")) as port:
        wait_until(
            lambda: send_raw(port, b"GET /orders", *headers).status == 429 or None, what="a refusal of the proxy"
        )
        statuses = {spelling: send_raw(port, b"GET " + spelling, *headers).status for spelling in SPELLINGS}
        others = [send_raw(port, b"GET " + path, *headers).status for path in (b"/", b"/ordersx", b"/items?x=/orders")]
    assert (set(statuses.values()), others) == ({429}, [200, 200, 200])


def test_envoy_refuses_paths_with_escaped_slashes(envoy: int) -> None:
    assert send_raw(envoy, b"GET /x%2forders").status == 400


def test_a_long_header_does_not_avoid_a_limit_in_envoy(envoy: int) -> None:
    reply = ask_until_limited(envoy, x_user="x" * 50_000)
    assert reply.headers["x-envoy-ratelimited"] == "true"


@contextmanager
def run_beside_gateway(folder: Path, run_proxy: RunProxy) -> Iterator[tuple[int, int]]:
    """Run a proxy with a limiter, and a gateway with the same rules, in front of one service. Yields the ports of both."""
    (gateway,) = free_ports(1)
    with (
        run_checks(folder) as (check, service),
        run_gateway(folder, gateway, service),
        run_proxy(folder, check, service) as port,
    ):
        yield port, gateway


def test_a_caller_of_caddy_gets_what_the_gateway_gives(tmp_path: Path) -> None:
    """Caddy escapes some characters before it asks and forwards, so that the limiter has nothing to refuse."""
    with run_beside_gateway(tmp_path, run_caddy) as (port, gateway):
        differences = list_differences(port, gateway)
    shown = [reply.splitlines() for reply, _ in differences]
    assert [(lines[0], lines[1], lines[-1]) for lines in shown] == [
        ("GET /orders#x", "200", "GET /orders%23x"),
        ("GET /caf\xc3\xa9", "200", "GET /caf%C3%A9"),
    ]


def test_a_caller_of_traefik_gets_the_refusals_and_pages_of_the_gateway(tmp_path: Path) -> None:
    """Traefik admits a request if the status is 2xx, so a refusal cannot have the status 200, which GraphQL needs."""
    with run_beside_gateway(tmp_path, run_traefik) as (port, gateway):
        differences = list_differences(port, gateway, odd=())
    by_limiter = [(reply.splitlines()[:2]) for reply, expected in differences if "cache-control" in expected]
    assert by_limiter == [["GET /graphql?query={viewer{login}}", "429"]]


def test_a_caller_of_traefik_gets_the_replies_of_the_service_unchanged(tmp_path: Path) -> None:
    """Traefik cannot add the headers about limits."""
    with run_checks(tmp_path) as (check, service), run_traefik(tmp_path, check, service) as port:
        through, direct = send_raw(port, b"GET /limited"), send_raw(service, b"GET /limited")
    ignored = {"date", "server", "connection"}
    assert (through.status, through.body) == (direct.status, direct.body)
    assert sorted(h for h in through.headers if h[0] not in ignored) == sorted(
        h for h in direct.headers if h[0] not in ignored
    )


@pytest.mark.parametrize("run_proxy", [run_traefik, run_caddy])
def test_a_request_with_a_body_is_checked_and_forwarded(tmp_path: Path, run_proxy: RunProxy) -> None:
    with run_checks(tmp_path) as (check, service), run_proxy(tmp_path, check, service) as port:
        reply = send_raw(port, b"POST /orders", body=b"x" * 100_000)
        refused = [send_raw(port, b"POST /reports/1", body=b"x" * 1_000).status for _ in range(2)]
    assert (reply.status, reply.body, refused) == (200, b"POST /orders", [200, 429])


@pytest.mark.parametrize("run_proxy", [run_traefik, run_caddy])
def test_a_caller_cannot_describe_another_request(tmp_path: Path, run_proxy: RunProxy) -> None:
    forged = (b"X-Forwarded-Uri: /orders", b"X-Forwarded-Method: PUT", b"X-Check-Reply: page", b"X-Wharf-Admitted: 1")
    with run_checks(tmp_path) as (check, service), run_proxy(tmp_path, check, service) as port:
        statuses = [
            send_raw(port, b"GET /reports/1", *forged, b"X-Forwarded-For: 192.0.2.%d" % number).status
            for number in range(3)
        ]
    assert statuses == [200, 429, 429]


@pytest.mark.parametrize("program", ["envoy", "traefik", "caddy"])
def test_the_program_runs(program: str) -> None:
    arguments = ["--version"] if program == "envoy" else ["version"]
    assert subprocess.run([PROGRAMS / program, *arguments], capture_output=True, check=False).returncode == 0

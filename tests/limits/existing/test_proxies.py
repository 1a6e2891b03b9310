"""Real proxies ask a real limiter, with the configurations of docs/limits-proxies.md: Envoy, Traefik and Caddy."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.docs.limits_proxies import Reply, fetch, read_files, replace_ports, run_limiter, run_program, run_service
from tests.ports import free_ports
from tests.waiting import wait_until

FILES = read_files()
PROGRAMS = Path(os.environ.get("WHARF_CLIENTS", "build/clients")).absolute() / "proxies"
RULES = '[[rule]]\nname = "core"\nwindow = "1m"\nceiling = { none = 2 }\nstatus = 429\n'
LIMITS_HEADERS = ("ratelimit", "ratelimit-policy")


@contextmanager
def run_checks(folder: Path) -> Iterator[tuple[int, int]]:
    """Run a limiter with a check endpoint, and a service. Yields the ports of both."""
    (check,) = free_ports(1)
    (folder / "limits.toml").write_text(replace_ports(FILES["check.toml"], {8082: check}))
    (folder / "rules.toml").write_text(RULES)
    with run_service() as service, run_limiter(folder, "limits.toml"):
        yield check, service


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
    assert '"shop_path_orders_user";q=2;w=10' in reply.headers["ratelimit-policy"]
    assert 'w=60;name="shop_remote_address"' in reply.headers["x-ratelimit-limit"]


def test_envoy_refuses_with_the_reply_of_the_limiter(envoy: int) -> None:
    reply = ask_until_limited(envoy, x_user="guest")
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert json.loads(reply.body)["limit"]["name"] in ("shop_path_orders_user_guest", "shop_remote_address")
    assert int(reply.headers["retry-after"]) > 0


def test_a_long_header_does_not_avoid_a_limit_in_envoy(envoy: int) -> None:
    reply = ask_until_limited(envoy, x_user="x" * 50_000)
    assert reply.headers["x-envoy-ratelimited"] == "true"


def test_traefik_refuses_with_the_reply_of_the_limiter(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with run_checks(tmp_path) as (check, service):
        (tmp_path / "dynamic.yaml").write_text(replace_ports(FILES["dynamic.yaml"], {8082: check, 3000: service}))
        (tmp_path / "traefik.yaml").write_text(
            f"entryPoints: {{ web: {{ address: '127.0.0.1:{port}' }} }}\n"
            "providers: { file: { filename: dynamic.yaml } }\nglobal: { checkNewVersion: false }\n"
        )
        command = [str(PROGRAMS / "traefik"), "--configFile=traefik.yaml"]
        with run_program(command, tmp_path, port):
            admitted = wait_until(
                lambda: reply if (reply := fetch(port)).status != 404 else None, what="Traefik has its routes"
            )
            refused = ask_until_limited(port)
    assert (admitted.status, admitted.body) == (200, "GET /orders")
    assert json.loads(refused.body)["message"].startswith("API rate limit exceeded for 127.0.0.1.")
    assert "retry-after" in refused.headers


def test_caddy_adds_headers_and_refuses_with_the_reply_of_the_limiter(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with run_checks(tmp_path) as (check, service):
        text = replace_ports(FILES["Caddyfile"], {8082: check, 3000: service, 8010: port})
        (tmp_path / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https off\n}\n" + text)
        command = [str(PROGRAMS / "caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]
        folders = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
        with run_program(command, tmp_path, port, path="/first", **folders):
            admitted = fetch(port)
            refused = fetch(port)
    assert (admitted.status, admitted.body) == (200, "GET /orders")
    assert [admitted.headers[name] for name in LIMITS_HEADERS] == ['"core";r=0;t=60', '"core";q=2;w=60']
    assert (refused.status, "retry-after" in refused.headers) == (429, True)


@pytest.mark.parametrize("program", ["envoy", "traefik", "caddy"])
def test_the_program_runs(program: str) -> None:
    arguments = ["--version"] if program == "envoy" else ["version"]
    assert subprocess.run([PROGRAMS / program, *arguments], capture_output=True, check=False).returncode == 0

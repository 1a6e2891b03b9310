"""The files of docs/limits-proxies.md work: nginx, FastAPI, Django, Flask, and the manifests for Kubernetes."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.docs.limits_proxies import (
    ROOT,
    RULES,
    TOKEN_OF_ADA,
    fetch,
    list_differences,
    read_files,
    replace_ports,
    run_gateway,
    run_limiter,
    run_nginx,
    run_program,
    run_service,
    send_raw,
)
from tests.docs.test_limits import read_blocks
from tests.limits.decision_services import ADA, DIRECTORY
from tests.ports import free_ports
from wharf.limits.config.settings import StoreKind
from wharf.limits.config.settings_file import read_settings
from wharf.limits.rules import lint_rules, read_rules

FILES = read_files()
FEW = """
[[rule]]
name = "core"
ceiling = { credential = 3, none = 2 }
status = 429
"""
CREDENTIALS_PAGE = ROOT / "docs" / "limits-credentials.md"
MANIFESTS = ROOT / "packaging" / "kubernetes" / "limits.yaml"


def write_limits(folder: Path, text: str, rules: str = FEW) -> None:
    """Write settings, rules and accounts for a limiter."""
    (folder / "limits.toml").write_text(f'directory = "people.toml"\ninsights = true\n{text}')
    (folder / "rules.toml").write_text(rules)
    (folder / "people.toml").write_text(DIRECTORY)


@contextlib.contextmanager
def run_nginx_of_page(folder: Path, *, check: int, port: int, service: int) -> Iterator[None]:
    """Run nginx with the configuration of the page at these ports."""
    text = replace_ports(FILES["nginx.conf"], {8082: check, 8000: port, 3000: service})
    # nginx itself replies to this path, with 404: it is internal.
    with run_nginx(folder, text, port, path="/_limits/"):
        yield


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[int]:
    """An nginx with the configuration of the page, in front of a service and beside a limiter. Yields its port."""
    check, port = free_ports(2)
    write_limits(tmp_path, replace_ports(FILES["check.toml"], {8082: check}))
    with (
        run_service() as service,
        run_limiter(tmp_path, "limits.toml"),
        run_nginx_of_page(tmp_path, check=check, port=port, service=service),
    ):
        yield port


@pytest.mark.needs_program("nginx")
def test_a_caller_of_nginx_gets_what_the_gateway_gives(tmp_path: Path) -> None:
    check, port, gateway = free_ports(3)
    write_limits(tmp_path, replace_ports(FILES["check.toml"], {8082: check}), RULES)
    with (
        run_service() as service,
        run_limiter(tmp_path, "limits.toml"),
        run_gateway(tmp_path, gateway, service),
        run_nginx_of_page(tmp_path, check=check, port=port, service=service),
    ):
        differences = list_differences(port, gateway)
    assert differences == []


@pytest.mark.needs_program("nginx")
@pytest.mark.parametrize(("line", "headers", "status"), [
    (b"GET /%zz", (), 400),
    (b"GET /%00", (), 400),
    (b"get /orders", (), 400),
    (b"GET /or ders", (), 400),
    (b"GET /orders", (b"Authorization: Bearer one", b"Authorization: Bearer two"), 400),
    (b"GET /" + b"x" * 10_000, (), 414),
])  # fmt: skip
def test_nginx_itself_refuses_what_the_page_says(
    nginx: int, line: bytes, headers: tuple[bytes, ...], status: int
) -> None:
    reply = send_raw(nginx, line, *headers)
    assert (reply.status, b"nginx" in reply.body) == (status, True)


@pytest.mark.needs_program("nginx")
@pytest.mark.parametrize("value", [b"Bearer a\x01b", b"Bearer a\x7fb", b"Bearer a\x0bb"])
def test_a_control_character_in_a_header_is_refused_with_400(nginx: int, value: bytes) -> None:
    reply = send_raw(nginx, b"GET /orders", b"Authorization: " + value)
    assert (reply.status, json.loads(reply.body)["message"].startswith("A header is malformed")) == (400, True)


@pytest.mark.needs_program("nginx")
@pytest.mark.parametrize("path", ["/_limits/check", "/_limits/reply"])
def test_callers_cannot_reach_the_locations_for_the_limiter(nginx: int, path: str) -> None:
    assert fetch(nginx, path, x_check_reply="page").status == 404


@pytest.mark.needs_program("nginx")
def test_the_refused_body_of_a_request_is_not_read_as_another_request(nginx: int) -> None:
    for _ in range(3):
        reply = send_raw(nginx, b"POST /orders", body=b"GET /smuggled HTTP/1.1\r\n\r\n" * 1_000)
    assert (reply.status, json.loads(reply.body)["status"]) == (429, "429")


@pytest.mark.needs_program("nginx")
def test_nginx_forwards_what_the_limiter_admits_and_adds_the_headers(nginx: int) -> None:
    reply = fetch(nginx, "/orders?page=2")
    assert (reply.status, reply.body) == (200, "GET /orders?page=2")
    assert (reply.headers["ratelimit"], reply.headers["ratelimit-policy"]) == ('"core";r=1;t=3600', '"core";q=2;w=3600')
    assert "x-github-request-id" in reply.headers


@pytest.mark.needs_program("nginx")
def test_nginx_forwards_a_request_with_a_body(nginx: int) -> None:
    assert fetch(nginx, body=b"x" * 100_000).body == "POST /orders"


@pytest.mark.needs_program("nginx")
def test_nginx_refuses_with_429_and_with_the_body_of_the_limiter(nginx: int) -> None:
    for _ in range(3):
        reply = fetch(nginx)
    message = json.loads(reply.body)["message"]
    assert (reply.status, message.startswith("API rate limit exceeded for 127.0.0.1.")) == (429, True)
    assert 3_590 <= int(reply.headers["retry-after"]) <= 3_600
    assert reply.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.needs_program("nginx")
def test_nginx_passes_the_credential_to_the_limiter(nginx: int) -> None:
    assert fetch(nginx, authorization=f"Bearer {ADA}").headers["ratelimit"].startswith('"core";r=2')


@pytest.mark.needs_program("nginx")
def test_nginx_refuses_a_wrong_credential_with_401(nginx: int) -> None:
    reply = fetch(nginx, authorization="Bearer wrong")
    assert (reply.status, json.loads(reply.body)["message"]) == (401, "Bad credentials")


@pytest.mark.needs_program("nginx")
def test_behind_nginx_the_limiter_asks_the_service_who_owns_a_credential(tmp_path: Path) -> None:
    check, port = free_ports(2)
    with run_service() as service:
        settings = dict(read_blocks(CREDENTIALS_PAGE))["checks.toml"]
        (tmp_path / "limits.toml").write_text(replace_ports(settings, {8082: check, 3000: service}))
        (tmp_path / "rules.toml").write_text(FEW)
        with run_limiter(tmp_path, "limits.toml"), run_nginx_of_page(tmp_path, check=check, port=port, service=service):
            tokens = (TOKEN_OF_ADA, "unknown-0123456789012345", TOKEN_OF_ADA)
            limits = [fetch(port, authorization=f"Bearer {token}").headers["ratelimit"] for token in tokens]
    assert [limit.partition(";t=")[0] for limit in limits] == ['"core";r=2', '"core";r=1', '"core";r=1']


@pytest.mark.needs_program("nginx")
def test_nginx_leaves_a_403_of_the_service_unchanged(nginx: int) -> None:
    reply = fetch(nginx, "/forbidden")
    assert (reply.status, reply.body) == (403, "GET /forbidden")


@pytest.mark.needs_program("nginx")
def test_callers_of_nginx_cannot_choose_their_address_or_path(nginx: int) -> None:
    for number in range(3):
        reply = fetch(nginx, x_forwarded_for=f"192.0.2.{number}", x_original_uri="/other", x_original_method="PUT")
    assert reply.status == 429


@pytest.mark.needs_program("nginx")
def test_without_a_limiter_nginx_admits_requests(tmp_path: Path) -> None:
    check, port = free_ports(2)
    with run_service() as service, run_nginx_of_page(tmp_path, check=check, port=port, service=service):
        reply = fetch(port)
    assert (reply.status, reply.body, "ratelimit" in reply.headers) == (200, "GET /orders", False)


SERVE_WSGI = (
    "import sys, importlib, wsgiref.simple_server as server; "
    "module = importlib.import_module(sys.argv[1]); "
    "server.make_server('127.0.0.1', int(sys.argv[2]), getattr(module, sys.argv[3])).serve_forever()"
)


DJANGO_ASGI = (("get_wsgi", "get_asgi"), ("core.wsgi", "core.asgi"), ("limits.wsgi", "limits.asgi"), ("lambda: ", ""))
"""How the page says that the example for Django must be changed for ASGI."""


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("fastapi_shop", ["-m", "uvicorn", "fastapi_shop:app", "--port", "PORT", "--no-access-log"]),
        ("django_shop", ["-c", SERVE_WSGI, "django_shop", "PORT", "application"]),
        ("django_asgi", ["-m", "uvicorn", "django_asgi:application", "--port", "PORT", "--no-access-log"]),
        ("flask_shop", ["-c", SERVE_WSGI, "flask_shop", "PORT", "app"]),
    ],
)
def test_the_example_of_a_framework_limits_requests(tmp_path: Path, module: str, command: list[str]) -> None:
    write_limits(tmp_path, 'rules = "rules.toml"\ndata_folder = "data"\n')
    text = FILES.get(f"{module}.py") or FILES["django_shop.py"]
    if module == "django_asgi":
        for old, new in DJANGO_ASGI:
            assert old in text
            text = text.replace(old, new)
    (tmp_path / f"{module}.py").write_text(text)
    (port,) = free_ports(1)
    arguments = [str(port) if part == "PORT" else part for part in command]
    token = f"Bearer {ADA}"
    with run_program([sys.executable, *arguments], tmp_path, port, path="/other"):
        replies = [fetch(port, authorization=token) for _ in range(4)]

    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert [json.loads(reply.body) for reply in replies[:3]] == [["tea"]] * 3
    assert [reply.headers["x-ratelimit-remaining"] for reply in replies] == ["2", "1", "0", "0"]


def load_yaml(text: str) -> list[Any]:
    return list(YAML(typ="safe").load_all(io.StringIO(text)))


def find_manifest(kind: str, name: str) -> Any:
    found = [m for m in load_yaml(MANIFESTS.read_text()) if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    (manifest,) = found
    return manifest


def test_the_settings_of_the_manifests_are_valid() -> None:
    data = find_manifest("ConfigMap", "limits")["data"]
    settings = read_settings(data["limits.toml"])
    assert (settings.store.kind, settings.store.redis.addresses) == (StoreKind.REDIS, ("limits-redis:6379",))
    assert lint_rules(read_rules(data["rules.toml"])) == []


@pytest.mark.parametrize("name", ["gateway", "limits", "limits-redis"])
def test_each_service_of_the_manifests_selects_the_pods_of_its_deployment(name: str) -> None:
    service, deployment = find_manifest("Service", name), find_manifest("Deployment", name)
    template = deployment["spec"]["template"]
    ports = [port["name"] for container in template["spec"]["containers"] for port in container["ports"]]
    assert (
        service["spec"]["selector"] == template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    )
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)


@pytest.mark.parametrize(("name", "port"), [("gateway", "gateway"), ("limits", "grpc")])
def test_the_pods_listen_where_the_settings_say(name: str, port: str) -> None:
    settings = read_settings(find_manifest("ConfigMap", "limits")["data"]["limits.toml"])
    (container,) = find_manifest("Deployment", name)["spec"]["template"]["spec"]["containers"]
    numbers = {entry["containerPort"] for entry in container["ports"]}
    expected = {
        "gateway": {settings.gateway.port, settings.gateway.metrics_port},
        "grpc": {settings.serve.grpc_port, settings.serve.metrics_port},
    }
    assert numbers == expected[port]


@pytest.mark.parametrize(("file", "kinds"), [
    ("istio.yaml", ["EnvoyFilter"]),
    ("contour.yaml", ["ExtensionService", "ContourConfiguration", "HTTPProxy"]),
])  # fmt: skip
def test_the_examples_for_istio_and_contour_are_yaml(file: str, kinds: list[str]) -> None:
    assert [manifest["kind"] for manifest in load_yaml(FILES[file])] == kinds

"""`wharf limits serve` as a process: its lines, its errors, its metrics, and its end."""

import asyncio
import gc
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.limits.serving.messages import OK, make_request
from wharf.cli.root import root
from wharf.limits.config.settings import LimiterSettings, ServeSettings, StoreSettings
from wharf.limits.serving.messages import SERVICE, RateLimitResponse
from wharf.limits.serving.process import ServeStartError, run_servers
from wharf.world import RealWorld
from wharf.world.quiet_grpc import grpc

RULES = '[[domain]]\nname = "shop"\n[[domain.descriptors]]\nkey = "user"\nceiling = 1\n'
BOTH = ServeSettings(grpc_host="127.0.0.1", check_host="127.0.0.1", drain_ms=100)
Action = Callable[[list[str]], Awaitable[object]]


async def do_nothing(_lines: list[str]) -> None:
    pass


def run_until_ready(folder: Path, serve: ServeSettings = BOTH, action: Action = do_nothing) -> list[str]:
    """Run the servers in this process, perform an action when they are ready, and return the lines that they printed."""
    lines: list[str] = []
    (folder / "rules.toml").write_text(RULES)

    async def scenario() -> None:
        stop_event, ready_event = asyncio.Event(), asyncio.Event()

        def print_line(line: str) -> None:
            lines.append(line)
            if line.startswith("Admin commands"):
                ready_event.set()

        settings = LimiterSettings(
            rules_file=folder / "rules.toml", data_folder=folder, store=StoreSettings(is_saved=False), serve=serve
        )
        running = asyncio.ensure_future(
            run_servers(settings, RealWorld(), print_line=print_line, stop_event=stop_event)
        )
        ready = asyncio.ensure_future(ready_event.wait())
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not running.done():
            await action(lines)
        stop_event.set()
        await running

    thresholds = gc.get_threshold()
    try:
        asyncio.run(scenario())
    finally:
        gc.set_threshold(*thresholds)
    return lines


def test_the_servers_print_their_addresses(tmp_path: Path) -> None:
    first, second, third = run_until_ready(tmp_path)
    assert re.fullmatch(r"Envoy's rate limit protocol is served at 127\.0\.0\.1:\d+", first)
    assert re.fullmatch(r"Checks of nginx, Traefik and Caddy are served at http://127\.0\.0\.1:\d+/check", second)
    assert third == f"Admin commands connect through {tmp_path / 'admin.sock'}"


@pytest.mark.parametrize(
    ("serve", "word"),
    [
        (ServeSettings(grpc_host="127.0.0.1", drain_ms=100), "Envoy's"),
        (ServeSettings(check_host="127.0.0.1", drain_ms=100), "Checks"),
    ],
)
def test_each_server_can_run_alone(tmp_path: Path, serve: ServeSettings, word: str) -> None:
    lines = run_until_ready(tmp_path, serve)
    assert [line.partition(" ")[0] for line in lines] == [word, "Admin"]


@pytest.mark.parametrize("protocol", ["grpc", "check"])
def test_a_port_in_use_is_reported(tmp_path: Path, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        serve = ServeSettings(**{f"{protocol}_host": "127.0.0.1", f"{protocol}_port": port, "drain_ms": 100})
        with pytest.raises(ServeStartError, match=rf"cannot listen on 127\.0\.0\.1:{port}: "):
            run_until_ready(tmp_path, serve)


def test_without_an_address_the_message_names_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("")
    result = CliRunner().invoke(root, ["limits", "serve", "--config", str(file)])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        'Error: nothing to serve: set `grpc_listen` or `check_listen` in [serve], such as grpc_listen = "127.0.0.1:8081"',
    )


@pytest.mark.parametrize("table", ["", '[resolver]\nurl = "/api/v1/user"\n'])
def test_a_question_without_a_service_is_reported(tmp_path: Path, table: str) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(f'credentials = "resolved"\ndata_folder = "data"\n{table}[serve]\ncheck_listen = "127.0.0.1:0"\n')
    result = CliRunner().invoke(root, ["limits", "serve", "--config", str(file)])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        'Error: the limiter cannot ask who owns a credential: `url` in `[resolver]` is the path "/api/v1/user", and it is not '
        'known of which service. Write the whole URL, such as url = "http://127.0.0.1:3000/api/v1/user", or set `upstream` in '
        "`[gateway]`",
    )


def test_invalid_settings_are_reported_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('[serve]\ncheck_listen = "0.0.0.0:8082"\n')
    result = CliRunner().invoke(root, ["limits", "serve", "--config", str(file)])
    assert (
        result.exit_code,
        f"{file}:2:1: serve.check_listen: other machines can reach 0.0.0.0:8082" in result.stderr,
    ) == (
        1,
        True,
    )


def test_a_changed_rules_file_takes_effect(tmp_path: Path) -> None:
    codes: list[int] = []

    async def action(lines: list[str]) -> None:
        address = lines[0].rpartition(" ")[2]
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")
            message = make_request("user=ada").SerializeToString()
            replies = [await call(message, timeout=10) for _ in range(2)]
            codes.extend(RateLimitResponse.FromString(reply).overall_code for reply in replies)
            (tmp_path / "rules.toml").write_text(RULES.replace("ceiling = 1", "ceiling = 100"))
            async with asyncio.timeout(30):
                while codes[-1] != OK:
                    codes.append(RateLimitResponse.FromString(await call(message, timeout=10)).overall_code)

    run_until_ready(tmp_path, action=action)
    assert (codes[:2], codes[-1]) == ([1, 2], 1)


def test_metrics_count_the_requests_of_both_servers(tmp_path: Path) -> None:
    found: list[str] = []

    async def action(lines: list[str]) -> None:
        async with grpc.aio.insecure_channel(lines[0].rpartition(" ")[2]) as channel:
            call = channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")
            await call(make_request("user=ada").SerializeToString(), timeout=10)
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "admin.sock"))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: limits\r\n\r\n")
        found.extend((await reader.read()).decode().splitlines())
        writer.close()

    run_until_ready(tmp_path, action=action)
    assert {
        "wharf_limits_grpc_requests_total 1",
        "wharf_limits_check_requests_total 0",
        'wharf_limits_rule_requests_total{rule="shop_user",outcome="within"} 1',
    } <= set(found)

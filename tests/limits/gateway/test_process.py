"""`wharf gateway` as a process: errors that prevent its start."""

import asyncio
import errno
import gc
import logging
import os
import re
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wharf.cli.root import root
from wharf.limits.config import LimiterSettings
from wharf.limits.config.settings import GatewaySettings, StoreSettings, Upstream
from wharf.limits.gateway.process import OTHER_OPEN_FILES, GatewayStartError, explain_listen_error, run_gateway
from wharf.world import RealWorld


@pytest.mark.parametrize(
    "command",
    [("gateway", "--upstream", "http://127.0.0.1:9", "--data-dir", "data"), ("limits", "demo", "--duration", "1")],
)
def test_a_port_in_use_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = CliRunner().invoke(root, [*command, "--port", str(port)])

    message = f"port {port} on 127.0.0.1 is in use: stop what listens there, or choose another with --port"
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, f"Error: {message}")


def test_a_gateway_without_a_service_names_the_missing_option() -> None:
    result = CliRunner().invoke(root, ["gateway"])

    assert "missing service: give its URL with --upstream, such as http://127.0.0.1:3000" in result.output


def run_until_ready(folder: Path, action: Callable[[list[str], asyncio.Event], object], **fields: Any) -> list[str]:
    """Run a gateway in this process, perform an action when it is ready, and return the lines that it printed."""
    lines: list[str] = []

    async def scenario() -> None:
        stop_event = asyncio.Event()

        def print_line(line: str) -> None:
            lines.append(line)
            if line.startswith("Admin commands"):
                asyncio.get_running_loop().call_soon(action, lines, stop_event)

        settings = LimiterSettings(
            data_folder=folder,
            gateway=GatewaySettings(**{"port": 0, "drain_ms": 100, **fields.pop("gateway", {})}),
            store=StoreSettings(is_saved=False),
            **fields,
        )
        upstream = Upstream(host="127.0.0.1", port=9)
        await run_gateway(settings, upstream, RealWorld(), print_line=print_line, stop_event=stop_event)

    thresholds = gc.get_threshold()
    try:
        asyncio.run(scenario())
    finally:
        gc.set_threshold(*thresholds)
    return lines


def stop(_lines: list[str], stop_event: asyncio.Event) -> None:
    stop_event.set()


def test_a_gateway_prints_its_addresses(tmp_path: Path) -> None:
    first, second = run_until_ready(tmp_path, stop)

    assert re.fullmatch(r"Gateway listens at http://127\.0\.0\.1:\d+ and forwards to http://127\.0\.0\.1:9", first)
    assert second == f"Admin commands connect through {tmp_path / 'admin.sock'}"


def test_the_address_of_a_gateway_on_ipv6_has_brackets(tmp_path: Path) -> None:
    assert run_until_ready(tmp_path, stop, gateway={"host": "::1"})[0].startswith("Gateway listens at http://[::1]:")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_gateway(tmp_path: Path, number: signal.Signals) -> None:
    lines = run_until_ready(tmp_path, lambda *_: os.kill(os.getpid(), number))

    assert len(lines) == 2


def test_a_hangup_reloads_the_rules(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("")

    def hang_up(_lines: list[str], stop_event: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.05, stop_event.set)

    with caplog.at_level(logging.INFO):
        run_until_ready(tmp_path, hang_up, rules_file=rules)
    assert [record.getMessage() for record in caplog.records if "file loaded" in record.getMessage()] == [
        f"file loaded purpose=rules path={rules}"
    ]


def test_a_gateway_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (900, limits[1]))
    found: list[int] = []

    def read_limit(_lines: list[str], stop_event: asyncio.Event) -> None:
        found.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        stop_event.set()

    try:
        run_until_ready(tmp_path, read_limit, gateway={"connections_most": 1_500, "upstream_connections_most": 100})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert found == [1_500 + 100 + OTHER_OPEN_FILES]


def test_a_gateway_warns_if_its_connections_need_too_many_open_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        run_until_ready(tmp_path, stop, gateway={"connections_most": 10_000_000})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert ["connections_most=10000000" in record.getMessage() for record in caplog.records if record.levelno > 20] == [
        True
    ]


def test_a_port_for_admin_commands_that_is_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(GatewayStartError, match=f"cannot listen for admin commands at {tmp_path}/admin.sock: "):
            run_until_ready(tmp_path, stop, admin_host="127.0.0.1", admin_port=port, admin_token="t")


def test_a_second_gateway_of_a_data_folder_is_rejected(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "admin.sock"))
        other.listen()
        with pytest.raises(GatewayStartError, match="another limiter listens at"):
            run_until_ready(tmp_path, stop)


def test_a_certificate_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("no certificate")
    with pytest.raises(GatewayStartError):
        run_until_ready(tmp_path, stop, gateway={"certificate_file": tmp_path / "cert", "key_file": tmp_path / "cert"})


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EADDRINUSE, "port 8 on h is in use: stop what listens there, or choose another with --port"),
        (errno.EACCES, "not allowed to listen on port 8: choose one above 1023 with --port"),
        (errno.EADDRNOTAVAIL, "this machine has no address h: choose one that it has with --host"),
        (errno.ENOBUFS, "cannot listen on h port 8: no space"),
    ],
)
def test_an_error_of_listening_names_the_remedy(number: int, message: str) -> None:
    assert explain_listen_error(OSError(number, "no space"), "h", 8) == message


def test_an_error_of_listening_without_a_number_is_reported_as_it_is() -> None:
    assert explain_listen_error(OSError("odd"), "h", 8) == "cannot listen on h port 8: odd"

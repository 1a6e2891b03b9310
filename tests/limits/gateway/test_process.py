"""`wharf gateway` as a process: errors that prevent its start."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from wharf.cli.root import root


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

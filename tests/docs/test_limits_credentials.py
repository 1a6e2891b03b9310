"""The files and commands of docs/limits-credentials.md work, and the commands print what the page shows."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docs.test_limits import Terminal, mask, read_blocks, split_commands
from wharf.limits.rate_limiter import load_settings

PAGE = Path(__file__).parents[2] / "docs" / "limits-credentials.md"
TOKEN = "ada-token-0000000000000"
BASIC = base64.b64encode(f"ada:{TOKEN}".encode()).decode()


class CodeHost(BaseHTTPRequestHandler):
    """Answers who owns a credential, and every other request with an empty object."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        credential = self.headers.get("authorization") or self.headers.get("cookie")
        is_known = credential in (f"token {TOKEN}", f"Basic {BASIC}", "i_like_gitea=session-of-ada")
        is_question = self.path == "/api/v1/user"
        body = b'{"login": "ada", "id": 5}' if is_question and is_known else b"{}"
        self.send_response(401 if is_question and not is_known else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_the_commands_of_the_page_print_what_the_page_shows(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    host = ThreadingHTTPServer(("127.0.0.1", terminal.service), CodeHost)
    thread = threading.Thread(target=host.serve_forever)
    thread.start()
    shown, expected = [], []
    try:
        for name, text in read_blocks(PAGE):
            if name == "limits.toml":
                (tmp_path / name).write_text(terminal.replace_ports(text))
            for command, *lines in split_commands(text) if name == "$" else ():
                expected.append((command, mask("\n".join(lines))))
                shown.append((command, mask(terminal.run_command(command))))
    finally:
        terminal.close()
        host.shutdown()
        thread.join()
        host.server_close()

    assert shown == expected


@pytest.mark.parametrize(
    "name", ["limits.toml", "gitlab.toml", "hook.toml", "checks.toml", "tokens.toml", "revocation.toml"]
)
def test_the_files_of_the_page_are_valid(tmp_path: Path, name: str) -> None:
    (tmp_path / "revocation.secret").write_text("a secret of twenty characters")
    (tmp_path / "revocation.secret").chmod(0o600)
    (tmp_path / name).write_text(dict(read_blocks(PAGE))[name])
    (tmp_path / "rules.toml").write_text("")

    assert load_settings(tmp_path / name).credentials.mode.value in ("opaque", "resolved")

"""Text that other people wrote cannot control the terminal of the user: names, descriptions, events and errors of servers."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureIO

from tests.cli.every_command import build_arguments, list_commands
from tests.cli.terminal import COMMAND_RETRIES, WEB, Terminal, _SyncTransport, open_terminal, write_file
from tests.kit.exchange import InMemoryTransport
from wharf.cli.common.terminal import TerminalStream, begin_line_again, render_for_terminal, style, write_bytes
from wharf.contract.client import ClientReply, ClientRequest, ClientSettings, SyncClient
from wharf.contract.client.flow import ClientDefaults

HOSTILE = "\x1b[31mFORGED\x1b[8m\x1b]0;title\x07\x9b2J\rover\b\u202egnp\u2066\x1bc\x7f\n"
"""Sets a colour, hides text, sets the title, clears, overwrites, reorders, resets the terminal, and begins a line."""
OWN_COLOURS = re.compile(r"\x1b\[(?:0|1|2|3[1-6]|[12];3[1-6])m")
TOO_LARGE = WEB.replace("ID: web", "ID: large").replace("CPU: 100", "CPU: 1000000")
"""A job that no node can run, so that its evaluation has reasons."""
STRUCTURAL = re.compile(
    # Values that commands parse, or that name other records.
    "(ID|Id|Time|At|Date|Until|Deadline|Duration|Interval|Timeout|Window|Delay|Age|TTL|Kind|Type|Status|Mode|Health|"
    "Index|Path|Hash|Namespace|Region|Address|Addr|Version|Digest|Operand|Content|State|Algorithm|Eligibility|Token|Secret|"
    "Resources|MemoryMB|TriggeredBy|Lifecycle|Hook|Locality|Provider|Protocol|AccessMode|By|AttachmentMode|Capabilities)$"
)

TIME = re.compile(r"\d{4}-\d\d-\d\dT")


def poison(value: Any, key: str = "") -> Any:
    """Return a JSON value with hostile text at the end of every text, and in every key of maps that users fill."""
    if isinstance(value, dict):
        return {name: poison(part, name) for name, part in value.items()}
    if isinstance(value, list):
        return [poison(part, key) for part in value]
    is_free = isinstance(value, str) and value and not STRUCTURAL.search(key) and not TIME.match(value)
    return value + HOSTILE if is_free else value


class HostileTransport(InMemoryTransport):
    """Returns the replies of the server with hostile text in them. A reply that commands cannot read then stays as it is."""

    async def send(self, request: ClientRequest) -> ClientReply:
        reply = await super().send(request)
        body = reply.body
        if reply.status >= 300:
            body += HOSTILE.encode()
        else:
            try:
                body = json.dumps(poison(json.loads(body))).encode()
            except ValueError:
                body += HOSTILE.encode()
        return ClientReply(reply.status, reply.headers, body)


class HostileTerminal(Terminal):
    """A terminal whose server sends hostile text. `ids` has the ids of records of the server, by noun."""

    ids: dict[str, list[str]] = {}

    def connect(self, settings: ClientSettings) -> SyncClient:
        exchange = HostileTransport(self.server.api)
        transport = _SyncTransport(self.loop, exchange, settings.token)
        defaults = ClientDefaults(settings.namespace, settings.region, settings.stale)
        return SyncClient(self.world, [transport], defaults=defaults, retry_policy=COMMAND_RETRIES)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHARF_ADDR", "http://127.0.0.1:1")
    monkeypatch.setenv("WHARF_TOKEN", "")


@pytest.fixture
def terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HostileTerminal]:
    with open_terminal(capsys, nodes=2) as opened:
        run_all(
            opened,
            ("job", "run", "--detach", write_file(tmp_path, WEB)),
            ("job", "run", "--detach", write_file(tmp_path, TOO_LARGE, "large.yaml")),
            ("namespace", "apply", "team", "--description", "text"),
            ("node", "pool", "apply", "web", "--description", "text"),
            ("var", "put", "a/b", "k=v"),
        )
        opened.wait(30)
        hostile = HostileTerminal(opened.loop, opened.cluster, opened.server, capsys)
        hostile.ids = {
            noun: [
                record["ID"] for record in sort_by_size(json.loads(opened.run_ok("operator", "api", f"/v1/{noun}s")))
            ]
            for noun in ("node", "allocation", "evaluation", "deployment")
        }
        # Not at the streams themselves, because pytest replaces them between the setup and the call of a test.
        monkeypatch.setattr(CaptureIO, "isatty", lambda _: True)
        yield hostile


@pytest.fixture
def terminal_with_access_control(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HostileTerminal]:
    with open_terminal(capsys, access=True) as opened:
        monkeypatch.setenv("WHARF_TOKEN", opened.run_ok("acl", "bootstrap", "-t", "{{.SecretID}}").strip())
        policy = write_file(tmp_path, 'namespace "default" { policy = "read" }', "policy.hcl")
        run_all(
            opened,
            ("acl", "policy", "apply", "web", policy, "--description", "text"),
            ("acl", "role", "create", "--name", "web", "--policy", "web"),
            ("acl", "token", "create", "--name", "text", "--policy", "web"),
        )
        monkeypatch.setattr(CaptureIO, "isatty", lambda _: True)
        yield HostileTerminal(opened.loop, opened.cluster, opened.server, capsys)


def sort_by_size(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records, those with most content first."""
    return sorted(records, key=lambda record: len(json.dumps(record)), reverse=True)


def run_all(terminal: Terminal, *commands: tuple[str, ...]) -> None:
    for words in commands:
        result = terminal.run(*words)
        assert result.code == 0, result


def find_unsafe(text: str) -> str:
    """Return the first dangerous part of what a terminal receives; empty if there is none."""
    if "\x1b[31mFORGED" in text:
        return "a colour from the server"
    rest = OWN_COLOURS.sub("", text)
    found = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", rest)
    return repr(rest[max(0, found.start() - 60) : found.end() + 20]) if found else ""


def list_reading_commands(ids: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """Return all commands that show something, without an argument and with that of a record that exists."""
    reading = (
        "list",
        "status",
        "info",
        "inspect",
        "members",
        "config",
        "get",
        "peers",
        "history",
        "deployments",
        "search",
    )
    arguments: dict[tuple[str, ...], str] = {
        ("namespace",): "team", ("var",): "a/b", **{(noun,): found[0] for noun, found in ids.items()},
        ("alloc",): ids.get("allocation", ["web"])[0], ("eval",): ids.get("evaluation", ["web"])[0],
    }  # fmt: skip
    found: list[tuple[str, ...]] = []
    for words, _ in list_commands():
        if words[0] not in ("config", "tls", "limits", "completion", "version") and words[-1] in reading:
            found += [words, (*words, arguments.get(words[:-1], "web"))]
    return found


def run_reading_commands(terminal: HostileTerminal) -> tuple[dict[str, str], set[tuple[str, ...]]]:
    """Run all commands that show something. Return the problems by command, and which commands showed hostile text."""
    problems: dict[str, str] = {}
    shown: set[tuple[str, ...]] = set()
    for words in list_reading_commands(terminal.ids):
        result = terminal.run(*words)
        if problem := find_unsafe(result.out + result.err):
            problems[" ".join(words)] = problem
        if "FORGED" in result.out and result.code == 0:
            shown.add(words[:2])
    return problems, shown


def test_no_list_or_status_command_lets_a_server_control_the_terminal(terminal: HostileTerminal) -> None:
    problems, shown = run_reading_commands(terminal)

    assert problems == {}
    nouns = {words[0] for words in shown}
    # The replies were really hostile, and commands could read them.
    assert {"job", "node", "alloc", "eval", "deployment", "namespace", "status", "var", "server"} - nouns == set()


def test_no_list_of_access_control_lets_a_server_control_the_terminal(
    terminal_with_access_control: HostileTerminal,
) -> None:
    problems, shown = run_reading_commands(terminal_with_access_control)

    assert problems == {}
    assert {("acl", "token"), ("acl", "policy"), ("acl", "role")} - shown == set()


def test_no_error_of_a_server_controls_the_terminal(terminal: HostileTerminal) -> None:
    problems, shown = {}, 0
    local = {"config", "tls", "completion", "version", "limits"}
    for words, command in list_commands():
        if words[0] in local or words[-1] == "init":
            continue
        result = terminal.run(*words, *build_arguments(words, command, text="nope"))
        shown += "FORGED" in result.err
        if problem := find_unsafe(result.out + result.err):
            problems[" ".join(words)] = problem

    assert problems == {}
    assert shown >= 10


def test_output_to_a_pipe_is_exact(terminal: HostileTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CaptureIO, "isatty", lambda _: False)

    result = terminal.run("namespace", "list")

    assert "\x1b]0;title\x07" in result.out


def test_our_own_colours_reach_the_terminal_and_those_of_others_do_not() -> None:
    assert render_for_terminal(f"{style('good', fg='green')} \x1b[32mbad\x1b[0m") == (
        "\x1b[32mgood\x1b[0m \\u001b[32mbad\\u001b[0m"
    )


def test_a_line_can_be_begun_again_by_commands_only() -> None:
    assert render_for_terminal(f"{begin_line_again()}50 %\rover") == "\x1b[1G50 %\\u000dover"


def test_a_json_document_with_escapes_for_a_terminal_is_still_the_same_document() -> None:
    document = {"name": HOSTILE + "\u009b\U000e0041"}
    text = json.dumps(document, ensure_ascii=False)

    assert json.loads(render_for_terminal(text)) == document


@pytest.mark.parametrize("is_terminal", [True, False])
def test_bytes_of_a_server_are_escaped_on_a_terminal_only(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)

    write_bytes(b"a\x1b[2Jb\n")

    assert capfdbinary.readouterr().out == (b"a\\u001b[2Jb\n" if is_terminal else b"a\x1b[2Jb\n")


def test_click_does_not_pass_by_the_filter_of_a_terminal_with_ascii_encoding() -> None:
    class AsciiStream:
        encoding = "ascii"

    assert TerminalStream(AsciiStream()).encoding == "utf-8"  # type: ignore[arg-type]  # Only the encoding is read.

"""What all commands have in common: wrong input and failing output give a sentence and an exit code, never a traceback."""

import errno
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.every_command import Words, build_arguments, list_commands, takes_file, takes_text
from tests.cli.terminal import WEB, CommandResult, Terminal, open_terminal, write_file

MAX_ERROR_CHARS = 1_500
LOCAL_OPERATOR_COMMANDS = frozenset({("operator", "debug"), ("operator", "keyring", "generate")})
"""Commands of operators that need no server."""
SEARCHES = frozenset({("search",), ("var", "list")})
"""Commands that succeed if nothing matches."""
CREATES = frozenset({
    ("compat", "install-nomad"), ("compat", "install-slurm"), ("namespace", "apply"), ("node", "pool", "apply"),
    ("var", "lock"),
})  # fmt: skip
"""Commands whose argument names what they create, or a path of the API."""


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHARF_ADDR", "http://127.0.0.1:1")  # For commands that do not use the client of the test.
    monkeypatch.chdir(tmp_path)


def find_problem(result: CommandResult) -> str:
    """Return what is wrong with the result of a command that must fail; empty if nothing is."""
    lines = result.err.splitlines()
    if result.code == 0:
        return f"exit code 0: {result.out}"
    if not any(line.startswith("wharf: ") and len(line) > len("wharf: ") + 10 for line in lines):
        return f"no sentence: {result}"
    if len(result.err) > MAX_ERROR_CHARS:
        return f"{len(result.err)} characters: {result.err[:300]}"
    unprintable = [line for line in lines if not line.isprintable()]
    return f"control characters: {unprintable}" if unprintable else ""


def call_all(terminal: Terminal, choose: Callable[[Words, click.Command], list[str] | None]) -> dict[str, str]:
    """Call each command with the arguments that `choose` returns, if any; return the problems by command."""
    problems: dict[str, str] = {}
    for words, command in list_commands():
        arguments = choose(words, command)
        if arguments is None:
            continue
        try:
            problem = find_problem(terminal.run(*words, *arguments))
        except Exception:
            problem = traceback.format_exc()[-600:]
        if problem:
            problems[" ".join(words)] = problem
    return problems


@pytest.mark.parametrize(
    "text",
    ["nope", "", "a b", "../x/y?z#", "a\nb\x1b[31m\u202e", "x" * 10_000, "\udcff\udcfe", "%", "*"],
    ids=["unknown", "empty", "space", "path", "control", "long", "non-UTF-8", "percent", "star"],
)
def test_a_wrong_id_or_name_gives_a_sentence(terminal: Terminal, text: str) -> None:
    def choose(words: Words, command: click.Command) -> list[str] | None:
        may_succeed = text not in ("", "\udcff\udcfe") and words in SEARCHES | CREATES
        return build_arguments(words, command, text=text) if takes_text(command) and not may_succeed else None

    assert call_all(terminal, choose) == {}


def test_a_command_without_a_server_gives_a_sentence(terminal: Terminal) -> None:
    terminal.set_away(True)
    local = {"config", "tls", "completion", "version", "limits"}

    def choose(words: Words, command: click.Command) -> list[str] | None:
        is_local = words[0] in local or words[-1] == "init" or words in LOCAL_OPERATOR_COMMANDS
        return None if is_local else build_arguments(words, command, text="web")

    assert call_all(terminal, choose) == {}


def test_a_wrong_token_gives_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHARF_TOKEN", "11111111-2222-3333-4444-555555555555")
    local = {"config", "tls", "completion", "version", "limits"}
    public = {("status",), ("operator", "api"), ("login",), ("acl", "auth-method", "list"), *LOCAL_OPERATOR_COMMANDS}

    def choose(words: Words, command: click.Command) -> list[str] | None:
        is_local = words[0] in local or words[-1] == "init" or words in public
        return None if is_local or takes_file(command) else build_arguments(words, command, text="web")

    with open_terminal(capsys, access=True) as terminal:
        assert call_all(terminal, choose) == {}


def test_an_unknown_id_or_name_says_which_command_lists_the_known_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unknown id also has the form of ids of records, and the token is valid."""
    unknown = "11111111-2222-3333-4444-555555555555"
    other_input = {
        ("compat", "install-nomad"),
        ("compat", "install-slurm"),
        ("job", "dispatch"),
        ("node", "meta", "apply"),
        ("var", "put"),
        ("operator", "api"),
        ("search",),
        ("var", "list"),
    }
    creates_or_deletes = {("namespace", "apply"), ("namespace", "delete"), ("node", "pool", "apply"), ("var", "lock")}
    problems: dict[str, str] = {}
    with open_terminal(capsys, access=True) as terminal:
        created = json.loads(terminal.run_ok("acl", "bootstrap", "--json"))
        monkeypatch.setenv("WHARF_TOKEN", created["SecretID"])
        for words, command in list_commands():
            is_other = words in other_input | creates_or_deletes or words[0] == "limits"
            if takes_text(command) and not takes_file(command) and not is_other:
                result = terminal.run(*words, *build_arguments(words, command, text=unknown))
                # The id of a token may be its secret, which is not repeated.
                is_named = unknown in result.err or words[:2] == ("acl", "token")
                if not is_named or "`wharf " not in result.err:
                    problems[" ".join(words)] = result.err

    assert problems == {}


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "Latin 1", "binary", "large"])
def test_a_file_that_cannot_be_used_gives_a_sentence(terminal: Terminal, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "input.yaml"
    if kind == "folder":
        file.mkdir()
    elif kind == "large":
        with file.open("wb") as target:
            target.truncate(100_000_000)
    elif kind != "missing":
        file.write_bytes({"empty": b"", "Latin 1": b"ID: caf\xe9\n", "binary": b"\x00\xff\x01\n" * 50}[kind])
    writes = {("job", "init"), ("volume", "init"), ("operator", "snapshot", "save")}
    takes_any_content = {("job", "dispatch")}

    def choose(words: Words, command: click.Command) -> list[str] | None:
        is_valid = kind == "empty" and words in {("limits", "lint"), ("acl", "bootstrap")}
        if not takes_file(command) or words in writes | takes_any_content or is_valid:
            return None
        return build_arguments(words, command, text="web", file=str(file))

    assert call_all(terminal, choose) == {}


class FailingOutput(io.RawIOBase):
    """A file that cannot be written, such as a closed pipe or a file on a full disk."""

    def __init__(self, error: OSError) -> None:
        self.error: OSError | None = error

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.error is not None:
            raise self.error
        return len(data)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "wharf: cannot write the output: No space left on device\n"),
        (OSError(errno.EIO, "Input/output error"), "wharf: cannot write the output: Input/output error\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
    ],
    ids=["full disk", "failing disk", "closed pipe"],
)
def test_output_that_cannot_be_written_gives_a_sentence_unless_its_reader_left(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, error: OSError, expected: str
) -> None:
    calls = [[*words, "--help"] for words, _ in list_commands()]
    calls += [[*words] for words, _ in list_commands() if words[-1] in ("list", "members", "get-config", "bash")]
    calls += [["status"], ["job", "status"], ["node", "status"], ["operator", "api", "/v1/jobs"], ["version"]]
    calls += [["completion", "bash"], ["config", "show"], ["job", "status", "--json"]]
    calls = [words for words in calls if "acl" not in words or "--help" in words]
    problems: dict[str, CommandResult] = {}
    for words in calls:
        file = FailingOutput(error)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8"))
            result = terminal.run(*words)
            file.error = None
        if (result.code, result.err) != (1, expected):
            problems[" ".join(words)] = result

    assert problems == {}


@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        ("wharf --help >/dev/full", 1, "wharf: cannot write the output: No space left on device\n"),
        ("wharf completion bash | true; exit ${PIPESTATUS[0]}", 1, ""),
        ("wharf version >&-", 0, ""),
        ("PYTHONIOENCODING=ascii wharf job status ä", 1, None),
        (
            "wharf job status $'\\xff'",
            1,
            "wharf: Invalid value for '[JOB]': \\udcff is not UTF-8 text: enter it in UTF-8\n",
        ),
    ],
)
def test_a_process_with_unusual_output_or_arguments_prints_no_traceback(
    tmp_path: Path, command: str, code: int, err: str | None
) -> None:
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    process = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert process.returncode == code
    assert "Traceback" not in process.stderr
    assert err is None or process.stderr == err


@pytest.mark.parametrize("columns", ["1", "20"])
def test_commands_work_on_a_narrow_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    terminal.run("job", "run", write_file(tmp_path, WEB))
    calls = [[*words, "--help"] for words, _ in list_commands()]
    calls += [["status"], ["job", "status"], ["job", "status", "web"], ["job", "explain", "web"], ["eval", "list"]]
    calls += [["node", "status"], ["deployment", "list"], ["search", "web"], ["job", "history", "-p", "web"]]

    assert {" ".join(words): code for words in calls if (code := terminal.run(*words).code)} == {}

"""Walkthrough pages: every command of a page is run with a real agent and must print what the page shows.

Values that differ in each run are masked on both sides: ids, times, indexes, addresses and node names. `…` in a page matches
any text. A file is a block of YAML, HCL, JSON, TOML, shell or Python under a line that ends with its name in code marks and a colon.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from tests.agent.processes import RunningAgent
from tests.forked_command import run_in_fork
from tests.notices import is_notice
from tests.waiting import wait_until
from wharf.cli import main

PAGES = Path(__file__).parents[2]
SHOWN_ADDRESS = "http://127.0.0.1:4646"
READS = re.compile(
    r"curl '?http|nomad job status|"
    r"wharf (job (status|history|explain|plan)|deployment (status|list)|node status|status|job logs|alloc (logs|fs)|(namespace|quota) (list|status)|squeue|sacct|(service|volume) (list|status)|flow (list|status(?!.*--follow)))\b"
)
"""Commands that only read. They are repeated until they print what the page shows, because the cluster may need time."""
SHELL_SYNTAX = re.compile(r"[|;&<>$*`\\]")
"""Signs that a shell must interpret. In quotes they need no shell, but one does no harm."""
WITHIN_S = 60.0
MASKS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\b[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\b(\d+(ms|[smhd]))+ ago\b|\bin (\d+(ms|[smhd]))+|\bnow\b"), "WHEN"),
    (re.compile(r"(index) \d+|(Index\":)\d+"), r"\1\2 N"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
)
PROGRESS = re.compile(r" +\d+m?s  ")
"""A progress line; the number of these lines depends on the machine."""
FILE = re.compile(r"`([\w.-]+\.(?:yaml|hcl|json|toml|vars|sh|py))`:$")


class CommandStep(NamedTuple):
    """A command on a page, and the output that the page shows."""

    command: str
    shown: list[str]


class FileStep(NamedTuple):
    """A file on a page."""

    file: str
    text: str


def read_steps(page: Path) -> Iterator[CommandStep | FileStep]:
    """Yield the commands and files of a page in order. Other blocks are skipped."""
    name, kind, lines = "", "", list[str]()
    for line in page.read_text().splitlines():
        if not kind and line:
            name = found[1] if (found := FILE.search(line)) else name if line.startswith("```") else ""
        if line.startswith("```") and not kind:
            kind, lines = line[3:] or "text", []
        elif line == "```":
            if kind == "console":
                yield from _split_commands(lines)
            elif name:
                yield FileStep(name, "\n".join(lines) + "\n")
            kind = ""
        else:
            lines.append(line)


def _split_commands(lines: list[str]) -> Iterator[CommandStep]:
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield CommandStep(lines[start][2:], lines[start + 1 : end])


def wait_for_nodes(agent: RunningAgent, count: int = 1) -> None:
    """Wait until the agent is ready and this number of nodes can run tasks. On a slow machine, nodes register later."""
    agent.wait_ready()

    def are_ready() -> bool:
        nodes: Any = agent.get("/v1/nodes")
        return len([node for node in nodes if node["Status"] == "ready"]) >= count

    wait_until(are_ready, what=f"{count} nodes are ready", within_s=WITHIN_S)


class Walk:
    """Runs the steps of a page. `nodes` is a pattern of the node names on the page.

    `addresses` maps addresses in commands of the page to those of servers of the test.
    """

    def __init__(self, agent: RunningAgent, *, nodes: str, addresses: Mapping[str, str] | None = None) -> None:
        self._agent = agent
        self._addresses = addresses or {}
        self._node_pattern: re.Pattern[str] | None = None
        self._nodes_shown = re.compile(rf"\b{nodes}\b")
        self._environment = {
            "WHARF_ADDR": agent.address,
            "COLUMNS": "100",
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(sys.path),
        }

    def run_step(self, step: CommandStep | FileStep) -> None:
        """Run a step. Raises AssertionError if its output differs from the page."""
        if isinstance(step, FileStep):
            (self._agent.folder / step.file).write_text(step.text)
            return
        if step.command.startswith("export "):
            name, _, value = step.command.removeprefix("export ").partition("=")
            self._environment[name] = "\n".join(self._run_command(f'echo "{value}"'))
            return
        shown = mask(step.shown, self._nodes_shown)
        printed: list[str] = []

        def matches_page() -> bool:
            output = self._run_command(step.command)
            printed[:] = mask(output, self._read_node_pattern())
            if not matches(shown, printed):
                self._node_pattern = None  # More nodes may have registered since the names were read.
                printed[:] = mask(output, self._read_node_pattern())
            return matches(shown, printed)

        if READS.match(step.command):
            with suppress(AssertionError):  # The comparison below shows the last output, which explains more.
                wait_until(matches_page, what=step.command, within_s=WITHIN_S)
        else:
            matches_page()
        assert matches(shown, printed), "\n".join(
            [f"{step.command} shows", *shown, "but the command printed", *printed]
        )

    def _read_node_pattern(self) -> re.Pattern[str]:
        """Return a pattern of the agent's node names, which matches nothing if they cannot be read."""
        if self._node_pattern is not None:
            return self._node_pattern
        output = self._run_command("wharf node status -t '{{range .}}{{.Name}} {{end}}'")
        names = [] if not output or output[0].startswith("wharf: ") else output[0].split()
        if not names:
            return re.compile(r"(?!)")
        longest_first = sorted(names, key=len, reverse=True)
        self._node_pattern = re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})\b")
        return self._node_pattern

    def _run_command(self, command: str) -> list[str]:
        """Run a command of the page in the folder of the agent. Return its output lines."""
        for shown, real in self._addresses.items():
            command = command.replace(shown, real)
        if command.startswith("curl "):
            return self._send_request(shlex.split(command.replace(SHOWN_ADDRESS, self._agent.address)))
        if command.startswith(("wharf ", "nomad ")) and not SHELL_SYNTAX.search(command):
            return self._run_wharf(shlex.split(command))
        text = re.sub(r"(^|\$\()wharf\b", rf"\1{sys.executable} -m wharf", command)
        process = subprocess.run(
            text,
            shell=True,
            cwd=self._agent.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
            env=self._environment,
        )
        return process.stdout.rstrip("\n").splitlines()

    def _run_wharf(self, words: list[str]) -> list[str]:
        """Run a command of `wharf`, or of the link `nomad`, without a shell. Return its output lines."""
        program, *arguments = words
        with tempfile.TemporaryFile() as output:
            run_in_fork(
                lambda: main(arguments, program=program),
                folder=self._agent.folder,
                environment=self._environment,
                output=output,
                errors=output,
            )
            output.seek(0)
            return output.read().decode().rstrip("\n").splitlines()

    @staticmethod
    def _send_request(words: list[str]) -> list[str]:
        """Return what curl would print, because curl may not be installed."""
        url = next(word for word in words if word.startswith("http"))
        method = words[words.index("-X") + 1] if "-X" in words else "GET"
        body = words[words.index("-d") + 1] if "-d" in words else ""
        headers = dict([words[words.index("-H") + 1].split(": ", 1)]) if "-H" in words else {}
        return httpx2.request(method, url, content=body, headers=headers).text.splitlines()


def mask(lines: list[str], nodes: re.Pattern[str]) -> list[str]:
    """Mask values that differ between runs, and collapse column widths."""
    found: list[str] = []
    for line in lines:
        if PROGRESS.match(line) or is_notice(line):
            continue
        text = nodes.sub("NODE", line)
        for pattern, word in MASKS:
            text = pattern.sub(word, text)
        found.append(" ".join(text.split()))
    return found


def matches(shown: list[str], printed: list[str]) -> bool:
    if len(shown) != len(printed):
        return False
    return all(
        re.fullmatch(".*".join(map(re.escape, line.split("…"))), text)
        for line, text in zip(shown, printed, strict=True)
    )

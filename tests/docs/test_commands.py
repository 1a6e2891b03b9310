"""The walk through the commands is true: every command of it is typed again, at a real agent with twenty fake nodes."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.agent.processes import RunningAgent, running
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
READS = re.compile(
    r"wharf (job (status|history|explain|plan)|deployment (status|list)|node status|status|namespace list)\b"
)
WITHIN_S = 30.0
NODE_IN_PAGE = re.compile(r"\bvm-\d+\b")
MASKS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\b(?=\w*\d)[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\b(\d+(ms|[smhd]))+ ago\b|\bin (\d+(ms|[smhd]))+|\bnow\b"), "WHEN"),
    (re.compile(r"(index) \d+"), r"\1 N"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
)
PROGRESS = re.compile(r" +\d+m?s  ")
"""A line of what is followed: how many there are depends on the machine."""


class Typed(NamedTuple):
    command: str
    shown: list[str]


def walk() -> Iterator[Typed | tuple[str, str]]:
    """Commands with what is shown of them, and files by name with their text, in order."""
    name, kind, lines = "", "", list[str]()
    for line in PAGE.read_text().splitlines():
        if found := re.search(r"`(\w+\.yaml)`:$", line):
            name = found[1]
        if line.startswith("```") and not kind:
            kind, lines = line[3:], []
        elif line == "```":
            if kind == "yaml":
                yield name, "\n".join(lines) + "\n"
            else:
                yield from _typed(lines)
            kind = ""
        else:
            lines.append(line)


def _typed(lines: list[str]) -> Iterator[Typed]:
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield Typed(lines[start][2:], lines[start + 1 : end])


def masked(lines: list[str], nodes: re.Pattern[str]) -> list[str]:
    """Without what differs every time: ids, times, indexes, addresses, which node, and how wide that makes columns."""
    found: list[str] = []
    for line in lines:
        if PROGRESS.match(line):
            continue
        text = nodes.sub("NODE", line)
        for pattern, word in MASKS:
            text = pattern.sub(word, text)
        found.append(" ".join(text.split()))
    return found


def type_in(agent: RunningAgent, command: str) -> list[str]:
    wharf = f"{sys.executable} -m wharf"
    done = subprocess.run(
        re.sub(r"^wharf", wharf, command),
        shell=True,
        cwd=agent.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
        env={"WHARF_ADDR": agent.address, "COLUMNS": "100", "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )
    return done.stdout.rstrip("\n").splitlines()


def fits(shown: list[str], said: list[str]) -> bool:
    """`…` stands for the rest of what is between its two sides."""
    if len(shown) != len(said):
        return False
    return all(
        re.fullmatch(".*".join(map(re.escape, line.split("…"))), text) for line, text in zip(shown, said, strict=True)
    )


def test_the_walk_shows_what_happens(tmp_path: Path) -> None:
    with running(tmp_path / "walk", "dev", "--port", "0", "--fake-nodes", "20") as agent:
        agent.wait_ready()
        for step in walk():
            if not isinstance(step, Typed):
                (agent.folder / step[0]).write_text(step[1])
                continue
            nodes = type_in(agent, "wharf node status -t '{{range .}}{{.Name}} {{end}}'")[0].split()
            real = re.compile(rf"\b({'|'.join(map(re.escape, sorted(nodes, key=len, reverse=True)))})\b")
            shown = masked(step.shown, NODE_IN_PAGE)
            said: list[str] = []

            def is_so(step: Typed = step, shown: list[str] = shown, real: re.Pattern[str] = real) -> bool:
                said[:] = masked(type_in(agent, step.command), real)  # noqa: B023  # Of this step: it is waited for here.
                return fits(shown, said)  # noqa: B023

            if READS.match(step.command):
                wait_until(is_so, what=f"{step.command} shows\n{shown}\nand not", within_s=WITHIN_S)
            else:
                assert is_so(), f"{step.command}: {said}, and the page shows {shown}"

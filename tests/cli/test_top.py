"""`wharf top`: the snapshot, the live display at different sizes, and its keys."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file
from wharf.cli.common.rendering import render_usage_bar
from wharf.cli.common.server_commands import Session
from wharf.cli.common.terminal import style
from wharf.cli.top.command import run_live
from wharf.cli.top.keys import NO_KEYS, Key, TerminalKeys, parse_keys
from wharf.cli.top.measurements import MeasuredNodes
from wharf.cli.top.screen import Section, TopState, render_screen
from wharf.contract.client import ClientSettings
from wharf.contract.model.usage import ClusterUsage, JobUsage, NodeUsage, WaitingJob

TOO_LARGE = WEB.replace("ID: web", "ID: big").replace("CPU: 100", "CPU: 999999")


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=2) as opened:
        yield opened


class ScriptedKeys:
    """Keys that a test presses, one after the other; then the user quits."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = list(keys)

    def read_key(self, timeout_s: float) -> str:  # noqa: ARG002
        return self._keys.pop(0) if self._keys else "q"


class RecordedDisplay:
    """A display that keeps what was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, rendered: str) -> None:
        self.shown.append(click.unstyle(rendered))


def open_session(terminal: Terminal) -> Session:
    settings = ClientSettings(addresses=("http://127.0.0.1:4646",))
    return Session(terminal, settings, is_json=False, template="", is_verbose=False)


def show_live(terminal: Terminal, *keys: str) -> list[str]:
    """Return the displays that the keys lead to."""
    display: Any = RecordedDisplay()
    run_live(open_session(terminal), ScriptedKeys(keys), display, TopState(), interval_s=3)
    return display.shown  # type: ignore[no-any-return]


def get_selected(shown: str) -> str:
    """Return the name in the selected row of a display."""
    return next(line for line in shown.splitlines() if line.startswith("▸")).split()[1]


def submit_jobs(terminal: Terminal, folder: Path) -> None:
    terminal.run("job", "run", "--detach", write_file(folder, WEB))
    terminal.run("job", "run", "--detach", write_file(folder, TOO_LARGE))
    terminal.wait(10)


def test_without_a_terminal_one_snapshot_is_printed(terminal: Terminal, tmp_path: Path) -> None:
    submit_jobs(terminal, tmp_path)

    lines = terminal.run_ok("top").splitlines()

    assert lines[0] == "Nodes   2 of 2 ready"
    assert [line.split()[:2] for line in lines if line.startswith("node-")] == [
        ["node-1", "ready"],
        ["node-2", "ready"],
    ]
    assert ["web", "service", "2/2", "200", "64"] in [line.split() for line in lines]
    assert next(line for line in lines if line.startswith("big ")).endswith("too little cpu on 2 nodes")


def test_the_snapshot_is_printed_as_json_with_a_limit(terminal: Terminal, tmp_path: Path) -> None:
    submit_jobs(terminal, tmp_path)

    found = json.loads(terminal.run_ok("top", "--json", "--limit", "1", "--sort", "name"))

    assert (found["NodeCount"], [node["Name"] for node in found["Nodes"]]) == (2, ["node-1"])


def test_keys_select_open_and_sort(terminal: Terminal, tmp_path: Path) -> None:
    submit_jobs(terminal, tmp_path)

    shown = show_live(terminal, Key.DOWN, Key.ENTER, Key.ESCAPE, Key.TAB, "m", Key.TAB, Key.ENTER, "q")

    assert get_selected(shown[0]) == "node-1"
    assert get_selected(shown[1]) == "node-2"
    assert "Name         node-2" in shown[2]
    assert get_selected(shown[4]) == "web"
    assert any("Jobs, by memory" in each for each in shown[5:])
    assert "big waits for resources" in shown[-2]


def make_usage(count: int) -> ClusterUsage:
    return ClusterUsage(
        node_count=5_000, ready_count=4_999, cpu=8_000, cpu_capacity=10_000, memory_mb=95, memory_capacity_mb=100,
        nodes=tuple(
            NodeUsage(id=str(number), name=f"node-with-a-long-name-{number}", status="ready", cpu=3_900, cpu_capacity=4_000)
            for number in range(count)
        ),
        job_count=700, jobs=tuple(JobUsage(id=f"job-{number}", namespace="default") for number in range(count)),
        waiting_count=90,
        waiting=tuple(
            WaitingJob(job_id=f"big-{number}", namespace="default", eval_id="e", unplaced=3, reason="too little cpu on 9 nodes")
            for number in range(count)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("columns", "lines"), [(60, 20), (80, 24), (100, 30), (120, 50)])
@pytest.mark.parametrize("count", [0, 3, 100])
def test_the_display_fits_the_terminal(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int, lines: int, count: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    state = TopState(section=Section.WAITING, positions={Section.WAITING: max(0, count - 1)})

    shown = render_screen(make_usage(count), MeasuredNodes(open_session(terminal)), state, 0)

    found = click.unstyle(shown).splitlines()
    assert (len(found), max(map(len, found)) <= columns) == (lines, True)
    assert count == 0 or any(line.startswith(f"▸ big-{count - 1} ") for line in found)


def test_a_job_without_allocations_has_no_number_of_running_ones(terminal: Terminal) -> None:
    shown = render_screen(make_usage(1), MeasuredNodes(open_session(terminal)), TopState(section=Section.JOBS), 0)

    assert "0/0" not in click.unstyle(shown)


def test_a_section_says_which_of_its_rows_it_shows(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")

    shown = render_screen(make_usage(100), MeasuredNodes(open_session(terminal)), TopState(), 0)

    assert "Nodes 1-4 of 5,000, by cpu" in click.unstyle(shown)


def test_only_a_few_nodes_are_asked_for_what_is_in_use(terminal: Terminal) -> None:
    session = open_session(terminal)
    measured = MeasuredNodes(session)

    measured.measure(make_usage(100).nodes)

    assert len(measured.list_asked()) <= 12


@pytest.mark.parametrize(
    ("share", "colour"), [(0, "green"), (69, "green"), (70, "yellow"), (89, "yellow"), (90, "red"), (130, "red")]
)
def test_a_bar_of_use_has_the_colour_of_its_level(share: int, colour: str) -> None:
    filled = min(10, round(share / 10))

    assert render_usage_bar(share, 100, width=10).startswith(style("━" * filled, fg=colour))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("q", ["q"]), ("\x1b[A", [Key.UP]), ("\x1bOB", [Key.DOWN]), ("\t\x1b[B\r", [Key.TAB, Key.DOWN, Key.ENTER]),
        ("\x1b", [Key.ESCAPE]), ("\x1b[15~x", ["x"]), ("", []),
    ],
)  # fmt: skip
def test_what_a_terminal_sends_is_read_as_keys(text: str, keys: list[str]) -> None:
    assert parse_keys(text) == keys


def test_keys_of_a_terminal_are_read_until_it_is_closed() -> None:
    reading, writing = os.pipe()
    keys = TerminalKeys(reading)
    os.write(writing, b"jm")
    found = [keys.read_key(0), keys.read_key(0), keys.read_key(0)]
    os.close(writing)

    assert [*found, keys.read_key(0)] == [Key.DOWN, "m", "", NO_KEYS]
    os.close(reading)

"""Draws pictures of terminals from real runs, as SVG files beside this script.

    python docs/pictures/draw_terminals.py

It starts `wharf dev` with fake nodes in a temporary folder, runs the commands in a terminal of 80 columns, and ends everything. A
command with another exit code than expected stops the script.
"""

import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

FOLDER: Final = Path(__file__).parent
COLUMNS: Final = 80
START_WITHIN_S: Final = 60.0
SETTLE_WITHIN_S: Final = 30.0
WHARF: Final = (sys.executable, "-m", "wharf")
WEB: Final = """\
ID: web
TaskGroups:
  - Name: api
    Count: 4
    Update: {MinHealthyTime: 1s, HealthyDeadline: 20s, ProgressDeadline: 30s}
    Tasks:
      - {Name: main, Driver: mock, Resources: {CPU: 200, MemoryMB: 64}}
"""
LARGE: Final = WEB.replace("web", "large").replace("CPU: 200", "CPU: 64000")
BROKEN: Final = WEB.replace("CPU: 200", "CPU: fast")
FILES: Final = {
    "web.yaml": WEB,
    "bigger.yaml": WEB.replace("Count: 4", "Count: 6").replace("CPU: 200", "CPU: 300"),
    "large.yaml": LARGE,
    "broken.yaml": BROKEN,
}
CSS: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px;
line-height: {line_height}px }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
"""The form of a picture: that of Rich without its fonts, which a browser would load from another host."""
THEME: Final = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
    [
        (110, 118, 129),
        (255, 161, 152),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (240, 246, 252),
    ],
)


class Picture(NamedTuple):
    """A picture: its name, the commands that it shows, and the exit code of the last one."""

    name: str
    commands: tuple[str, ...]
    exit_code: int = 0


SETUP: Final = ("job run web.yaml", "job run --detach large.yaml")
PICTURES: Final = (
    Picture("status", ("status",)),
    Picture("plan", ("job plan bigger.yaml",), 1),
    Picture("explain", ("job explain large",)),
    Picture("error", ("job validate broken.yaml",), 1),
)


def run_in_terminal(command: str, environment: dict[str, str], folder: Path) -> tuple[str, int]:
    """Run a command of wharf in a terminal. Return what it prints, with its colors, and its exit code."""
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        [*WHARF, *command.split()], stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=environment
    )
    os.close(terminal)
    parts: list[bytes] = []
    while True:
        try:
            data = os.read(control, 65_536)
        except OSError:  # The other end was closed.
            break
        if not data:
            break
        parts.append(data)
    os.close(control)
    return b"".join(parts).decode().replace("\r\n", "\n"), process.wait()


def draw(picture: Picture, environment: dict[str, str], folder: Path) -> None:
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    for command in picture.commands:
        output, exit_code = run_in_terminal(command, environment, folder)
        console.print(Text.assemble(("$ ", "green"), (f"wharf {command}", "bold")))
        console.print(Text.from_ansi(output.rstrip("\n")))
    if exit_code != picture.exit_code:
        raise SystemExit(f"wharf {picture.commands[-1]} ended with {exit_code}: {output}")
    text = console.export_svg(title="", theme=THEME, code_format=CSS, unique_id=f"terminal-{picture.name}")
    get_file(picture).write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")
    print(f"wrote {get_file(picture)}")


def get_file(picture: Picture) -> Path:
    return FOLDER / f"terminal-{picture.name}.svg"


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(command: str, text: str, environment: dict[str, str], folder: Path, *, within_s: float) -> None:
    """Repeat a command until it prints the text."""
    deadline = time.monotonic() + within_s
    while text not in run_in_terminal(command, environment, folder)[0]:
        if time.monotonic() > deadline:
            raise SystemExit(f"wharf {command} has not printed {text} within {within_s:g} s")
        time.sleep(0.5)


def build_environment(port: int) -> dict[str, str]:
    """Return the environment of commands for a cluster at this port, without settings of the user."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WHARF_", "NO_COLOR"))}
    paths = ":".join(path for path in sys.path if path)
    return environment | {"WHARF_ADDR": f"http://127.0.0.1:{port}", "PYTHONPATH": paths}


@contextmanager
def running_cluster(folder: Path, environment: dict[str, str], *options: str) -> Iterator[None]:
    """Run `wharf dev` with these options, until its nodes are ready, and end it afterwards."""
    agent = subprocess.Popen(
        [*WHARF, "dev", *options], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        wait_for("node status", "ready", environment, folder, within_s=START_WITHIN_S)
        yield
    finally:
        agent.send_signal(signal.SIGINT)
        agent.wait()


def main() -> None:
    """Draw all pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        port = find_free_port()
        environment = build_environment(port) | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        with running_cluster(folder, environment, "--port", str(port), "--fake-nodes", "5"):
            for command in SETUP:
                run_in_terminal(command, environment, folder)
            wait_for("job status web", "running", environment, folder, within_s=SETTLE_WITHIN_S)
            for picture in PICTURES:
                draw(picture, environment, folder)


if __name__ == "__main__":
    main()

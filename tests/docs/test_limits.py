"""The files and commands of docs/limits.md work, and the commands print what the page shows."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.waiting import wait_until
from wharf.config.configuration import load_configuration
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config.reference import render_page
from wharf.limits.config.settings import StoreKind
from wharf.limits.rate_limiter import load_settings
from wharf.limits.rules import lint_rules, read_rules

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
REQUEST_ID = re.compile(r"\b[0-9A-F]{4}:[0-9A-F]{6}:[0-9A-F]{8}:[0-9A-F]{4,}:[0-9A-F]{8}\b")
MASKS = (
    (REQUEST_ID, "ID"),
    (re.compile(r"\w{3}, \d\d \w{3} \d{4} [\d:]+ GMT"), "DATE"),
    (re.compile(r"\b\d{10}\b"), "MOMENT"),
    (re.compile(r"Python/[\d.]+"), "PYTHON"),
    (re.compile(r"(?<=t=)\d+|(?<=retry-after: )\d+|(?<=Wait )\d+|(?<=wait )\d+|(?<=in_seconds\":)\d+"), "SECONDS"),
    (re.compile(r"(?<=code-host \(built in\):)\d+"), "LINE"),
    (re.compile(r"(?m)^(cpu|compute) +\d+ +\d+"), r"\1 SOME"),
    (re.compile(r"content-length: \d+"), "content-length: N"),
    (re.compile(r"in force \([0-9a-f]{16}\)"), "in force (HASH)"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r" {2,}"), " "),
)
LINE_OF_LOG = re.compile(
    r"(?m)^\d{4}-\d\d-\d\dT[\d:.]+Z warn +gateway +file rejected, previous version stays in use purpose=rules"
)
"""A log line of an agent."""
WITHIN_S = 60.0


def read_blocks(page: Path = PAGE) -> Iterator[tuple[str, str]]:
    """Yield the code blocks of the page: files with their name, commands with the name `$`, Python as `application`."""
    name, kind, lines = "", "", list[str]()
    for line in page.read_text().splitlines():
        if kind == "" and (found := re.match(r"(?:.*\. )?`(\w+\.toml)`, ", line)):
            name = found[1]
        if line.startswith("```") and not kind:
            kind, lines = line[3:], []
        elif line == "```":
            if kind == "toml":
                yield name, "\n".join(lines) + "\n"
            elif kind == "console":
                yield "$", "\n".join(lines)
            elif kind == "python":
                yield "application", "\n".join(lines)
            kind = ""
        else:
            lines.append(line)


def mask(text: str) -> list[str]:
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


class Terminal:
    """Runs commands like one shell in a folder, with the page's ports replaced by free ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service, self.gateway = free_ports(2)
        self.last_id = ""
        self.background: list[subprocess.Popen[bytes]] = []
        (folder / "bin").mkdir()
        wharf = folder / "bin" / "wharf"
        wharf.write_text(f'#!/bin/sh\nexec {sys.executable} -m wharf "$@"\n')
        wharf.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "COLUMNS": "200"}

    def replace_ports(self, text: str) -> str:
        text = text.replace("127.0.0.1:3000", f"127.0.0.1:{self.service}").replace(
            "server 3000", f"server {self.service}"
        )
        return text.replace("127.0.0.1:8080", f"127.0.0.1:{self.gateway}")

    def run_command(self, command: str) -> str:
        command = REQUEST_ID.sub(self.last_id, self.replace_ports(command))
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.environment[name] = value
            return ""
        if command.endswith(" &"):
            return self._start_in_background(command.removesuffix(" &"))
        process = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        found = REQUEST_ID.search(process.stdout)
        self.last_id = found[0] if found else self.last_id
        return process.stdout

    def _start_in_background(self, command: str) -> str:
        log = self.folder / f"log{len(self.background)}"
        with log.open("wb") as out, log.with_suffix(".errors").open("wb") as errors:
            started = subprocess.Popen(
                f"exec {command}",
                shell=True,
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=errors,
            )
        self.background.append(started)
        port = self.gateway if "gateway" in command else self.service
        path = "/healthz" if "gateway" in command else "/"

        def is_answering() -> bool:
            assert started.poll() is None, f"{command} has ended"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1):
                    return True
            except OSError:
                return False

        wait_until(is_answering, what=f"{command} accepts requests", within_s=WITHIN_S)
        if "gateway" not in command:
            return ""
        # The gateway answers before it prints its last line.
        wait_until(lambda: "Admin commands" in log.read_text(), what=f"{command} is ready", within_s=WITHIN_S)
        return log.read_text()

    def close(self) -> None:
        for process in self.background:
            process.send_signal(signal.SIGTERM)
        for process in self.background:
            process.wait(WITHIN_S)


def test_the_commands_of_the_page_print_what_the_page_shows(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    shown, expected = [], []
    try:
        for name, text in read_blocks():
            if name.endswith(".toml"):
                (tmp_path / name).write_text(terminal.replace_ports(text))
            if name != "$":
                continue
            for command, *lines in split_commands(text):
                expected.append((command, mask("\n".join(lines))))
                shown.append((command, mask(terminal.run_command(command))))
    finally:
        terminal.close()

    assert shown == expected
    assert [process.returncode for process in terminal.background[1:]] == [0]
    assert LINE_OF_LOG.search((tmp_path / "log1.errors").read_text())


def split_commands(text: str) -> Iterator[list[str]]:
    lines = text.splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield [lines[start][2:], *lines[start + 1 : end]]


def test_the_application_of_the_page_runs(tmp_path: Path) -> None:
    found = dict(read_blocks())
    for name in ("rules.toml", "people.toml", "limits.toml"):
        (tmp_path / name).write_text(found[name])
    names: dict[str, Any] = {}

    for text in (text for name, text in read_blocks() if name == "application"):
        exec(text.replace('Path("', f'Path("{tmp_path}/'), names)

    assert isinstance(names["application"], LimitsMiddleware)
    assert names["shared"].app is names["application"]


def test_the_tables_of_the_page_match_the_configuration_reader() -> None:
    page = PAGE.read_text()

    assert render_page(page) == page


def test_the_files_of_the_page_are_valid(tmp_path: Path) -> None:
    found = dict(read_blocks())
    for name in ("agent.toml", "cluster.toml"):
        (tmp_path / name).write_text(found[name])

    config_file = tmp_path / "whole.toml"
    config_file.write_text(f'data_dir = "{tmp_path}"\n{found["agent.toml"]}\n[server]\nenabled = true\n')
    agent = load_configuration([config_file], environment={}).settings
    limiter = load_settings(tmp_path / "cluster.toml")

    for name in ("streams.toml", "pages.toml"):
        assert [str(finding) for finding in lint_rules(read_rules(found[name], name)) if finding.file == name] == []
    assert agent.limits.enabled
    assert limiter.store.kind is StoreKind.REDIS

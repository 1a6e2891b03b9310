"""Large and unreadable files: refused early, with the line and the way out."""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.attempts import require_cpu
from tests.cli.terminal import WEB, open_terminal, write_file
from wharf.contract.model.body_limits import MAX_ITEMS
from wharf.languages.yaml_reader import MAX_COLLECTION_ITEMS

ENTRIES = "".join(f"          KEY{at}: {'x' * 40}\n" for at in range(15_000))


def run_file(file: str) -> tuple[str, float]:
    """Run a job file that is refused, in a process as users do. Return the error and the processor time of the process."""
    used_before_s = read_cpu_s_of_children()
    command = [sys.executable, "-m", "wharf", "job", "run", file]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    return result.stderr, read_cpu_s_of_children() - used_before_s


def read_cpu_s_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def make_large_job() -> str:
    return WEB.replace(
        "{Name: main, Driver: mock, Resources: {CPU: 100, MemoryMB: 32}}",
        f"Name: main\n        Driver: mock\n        Env:\n{ENTRIES}",
    )


def test_a_large_map_is_refused_while_it_is_parsed(tmp_path: Path) -> None:
    file = write_file(tmp_path, make_large_job())

    error, cpu_s = run_file(file)

    lines = error.splitlines()
    assert lines[0] == f"wharf: {file}:11:11: a list or map may hold at most 5,000 items, and this one holds more"
    assert lines[-1] == "   remove some, or store them in a file that the task reads"
    require_cpu(cpu_s, 4.0, "the command")


def test_a_large_map_of_a_json_file_is_refused_at_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    task = {"Name": "main", "Driver": "mock", "Env": {f"KEY{at}": "x" * 40 for at in range(60_000)}}
    document = {"ID": "web", "TaskGroups": [{"Name": "api", "Tasks": [task]}]}
    file = write_file(tmp_path, json.dumps(document), "job.json")

    with open_terminal(capsys) as terminal:  # A server knows the limit.
        start = time.process_time()
        result = terminal.run("job", "run", file)
        cpu_s = time.process_time() - start

    assert result.code == 1
    assert result.err.splitlines()[0] == (
        f"wharf: {file}:1:98: TaskGroups[0].Tasks[0].Env: holds 60000 items, more than the limit of 5000"
    )
    require_cpu(cpu_s, 4.0, "the command")


def test_a_map_at_the_limit_of_servers_is_parsed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = WEB.replace("Driver: mock", f"Driver: mock, Meta: {{{', '.join(f'k{at}: v' for at in range(MAX_ITEMS))}}}")
    with open_terminal(capsys) as terminal:
        result = terminal.run("job", "validate", write_file(tmp_path, text))

    assert MAX_COLLECTION_ITEMS == MAX_ITEMS
    assert (result.code, result.err) == (0, "")


def test_a_control_character_is_reported_with_its_line(tmp_path: Path) -> None:
    file = write_file(tmp_path, WEB.replace("Count: 2", "Count: 2\n    Meta: {a: x\x07y}"))

    error, _ = run_file(file)

    lines = error.splitlines()
    assert lines[0] == f"wharf: {file}:6:16: the control character #x0007 is not allowed in YAML"
    assert lines[-1] == '   remove it, or write it in a quoted text as "\\x07"'
    assert "\x07" not in error


def test_a_file_with_thousands_of_unknown_settings_is_refused_early_with_twenty_of_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write_file(tmp_path, "".join(f"setting_{number} = {number}\n" for number in range(20_000)), "wharf.toml")
    with open_terminal(capsys) as terminal:
        start = time.process_time()
        result = terminal.run("config", "check", file)
        cpu_s = time.process_time() - start

    lines = result.err.splitlines()
    assert (result.code, len(lines)) == (1, 21)
    assert lines[0].startswith(f"wharf: {file}:1: setting_0: there is no such setting; ")
    assert lines[20] == "wharf: 19,980 more problems: is this a configuration of Wharf?"
    require_cpu(cpu_s, 4.0, "the command")

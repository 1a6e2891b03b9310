"""The commands of docs/six-machines.md set up a cluster in six network namespaces, restore its state, and upgrade it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.every_command import list_commands
from tests.docs import six_machines

ROOT = Path(__file__).parents[2]
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.mark.faults
@pytest.mark.needs("bridges")
@pytest.mark.needs_program("etcd")
@pytest.mark.needs_program("iptables")
def test_the_commands_of_the_page_run_in_six_network_namespaces(tmp_path: Path) -> None:
    """The namespace of processes ends all that the machines started."""
    tests = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    process = subprocess.run(
        [*NAMESPACES, *tests, "-m", "", str(six_machines.__file__)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stdout[-20_000:] + process.stderr[-5_000:]
    assert "1 passed" in process.stdout


def test_each_block_of_commands_names_its_machines() -> None:
    blocks = list(six_machines.read_blocks())

    assert len(blocks) >= 20
    assert [block.text for block in blocks if not block.machines] == []


def test_each_command_of_the_page_exists() -> None:
    known = {" ".join(words) for words, _ in list_commands()}
    used = re.findall(r"(?:^|\$\(|until )(?:\$ )?wharf ((?:[a-z]+ ?)+)", six_machines.PAGE.read_text(), re.MULTILINE)

    assert len(used) >= 10
    assert [words for words in used if not any(f"{words} ".startswith(f"{name} ") for name in known)] == []

"""Servers whose packets a network drops, also on open connections. Nodes and callers use another server.

The tests of `test_frozen_servers` run again, in a network namespace of their own, where `iptables` drops the packets of a
server instead of a signal that freezes it.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.agent import dropped_etcd, test_frozen_servers

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.faults,
    pytest.mark.needs("bridges"),
    pytest.mark.needs_program("etcd"),
    pytest.mark.needs_program("iptables"),
]


def run_in_namespace(folder: Path, module: ModuleType) -> None:
    """Run the tests of a module in a network namespace of its own, and assert that each of them passes."""
    test_count = sum(name.startswith("test_") and callable(value) for name, value in vars(module).items())
    tests = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", f"--basetemp={folder / 'inner'}"]
    process = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.agent.loopback", *tests, "-m", "", str(module.__file__)],
        cwd=ROOT,
        env={**os.environ, test_frozen_servers.DROP_VARIABLE: "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    print(process.stdout)
    assert process.returncode == 0, process.stdout[-20_000:] + process.stderr[-5_000:]
    assert f"{test_count} passed" in process.stdout


def test_nodes_and_callers_leave_a_server_whose_packets_are_dropped(tmp_path: Path) -> None:
    """Also a leader that still reaches etcd: it gives up its leadership, because no other server reaches it."""
    run_in_namespace(tmp_path, test_frozen_servers)


def test_servers_notice_that_their_packets_to_etcd_are_dropped(tmp_path: Path) -> None:
    run_in_namespace(tmp_path, dropped_etcd)

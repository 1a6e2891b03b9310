"""Servers whose packets a network drops, also on open connections. Nodes and callers use another server.

The tests of `test_frozen_servers` run again, in a network namespace of their own, where `iptables` drops the packets of a
server instead of a signal that freezes it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent import test_frozen_servers

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.faults,
    pytest.mark.needs("bridges"),
    pytest.mark.needs_program("etcd"),
    pytest.mark.needs_program("iptables"),
]


def test_nodes_and_callers_leave_a_server_whose_packets_are_dropped(tmp_path: Path) -> None:
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    tests += [
        "-m",
        "not faults",
        str(test_frozen_servers.__file__),
    ]  # A leader that still reaches etcd stays the leader.
    process = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.agent.loopback", *tests],
        cwd=ROOT,
        env={**os.environ, test_frozen_servers.DROP_VARIABLE: "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stdout[-20_000:] + process.stderr[-5_000:]
    assert "3 passed" in process.stdout

"""Runs a server and a node as real processes, which tests kill one by one."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.agent.processes import READY_WITHIN_S, RunningAgent, is_alive, running
from tests.control_groups import remove_groups_below
from tests.mounts import unmount_below
from tests.waiting import wait_until
from wharf.agent.node_identities import read_own_node_id
from wharf.node.processes import is_session_leader, list_pids
from wharf.node.supervisor.process_tracker import RUN_MARK_VARIABLE

ROOT: Final = Path(__file__).parents[2]
CHANNEL_CLOSED_TEXTS: Final = ("its connection to the server was lost; retry", "was closed; retry")
"""The ends of texts for a request that was in flight when the node agent's channel broke."""
UNREACHABLE_TEXTS: Final = ("No path to node", *CHANNEL_CLOSED_TEXTS)
"""The ends of texts of requests that are repeated while the node agent restarts."""
SERVER_CONFIG: Final = """\
data_dir = "{folder}/data"
[server]
enabled = true
[ports]
http = 0
"""


class NodeProcess:
    """A node agent as a process, with its supervisor and tasks."""

    module = "tests.node.one_node"

    def __init__(self, server: RunningAgent, folder: Path, *, tracking_method: str = "auto", address: str = "") -> None:
        """`address` replaces the address of the server, for example by that of a relay.

        `tracking_method` selects how the supervisor finds processes of a task: `auto`, or `mark` for environment
        variables only.
        """
        self.server = server
        self._address = address or server.address
        self.folder = folder
        self._tracking_method = tracking_method
        self.max_open_files = 0
        """The limit of open files of the agent; 0: that of the test."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the node agent."""
        command = [sys.executable, "-m", self.module, self._address, str(self.folder), self._tracking_method]
        if self.max_open_files:
            command = ["prlimit", f"--nofile={self.max_open_files}:{self.max_open_files}", *command]
        # Plug-ins that a test installed for the node.
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "installed")}
        with open(self.folder / "node.txt", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=environment
            )

    def wait_ready(self) -> None:
        """Wait until servers place allocations on the node and requests reach it."""
        wait_until(
            lambda: self._is_ready() and self.supervisor() is not None,
            what="the node is ready",
            within_s=READY_WITHIN_S,
        )
        self.query("/v1/client/stats")

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the node agent has ended:\n{self.read_log()}"
        nodes: Any = self.server.get("/v1/nodes")
        return any((node["ID"], node["Status"]) == (read_own_node_id(self.folder / "node"), "ready") for node in nodes)

    def query(self, path: str) -> object:
        """Return the node's own reply to a request; repeated while the agent is restarting."""

        def send() -> object:
            try:
                return self.server.get(f"{path}?node_id={read_own_node_id(self.folder / 'node')}")
            except urllib.error.HTTPError as error:
                with error:
                    text = error.read().decode()
                assert text.endswith(UNREACHABLE_TEXTS), text
                return None

        return wait_until(send, what=f"the node replies to {path}")

    def agent(self) -> int:
        """Return the process id of the agent."""
        assert self._process is not None
        return self._process.pid

    def kill_agent(self) -> None:
        """Kill the agent and start it again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start()

    def replace_journal(self, journal: bytes) -> None:
        """Kill the agent and start it again with these bytes as its journal."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        (self.folder / "node" / "journal").write_bytes(journal)
        self.start()

    def supervisor(self) -> int | None:
        """Return the process id of the listening supervisor. Its parent and surplus supervisors end soon."""
        return next(
            (pid for pid in self.supervisors() if any(file.startswith("socket:") for file in list_open_files(pid))),
            None,
        )

    def supervisors(self) -> list[int]:
        """Return the process ids of all task supervisors."""
        return self._find_processes("wharf.node.supervisor", str(self.folder / "node"))

    def has_adopted_all_runs(self) -> bool:
        """Return whether a supervisor has taken over all runs: it holds their pipes."""
        pid = self.supervisor()
        if pid is None:
            return False
        open_files = list_open_files(pid)
        return all(str(run / "out") in open_files for run in (self.folder / "node" / "runs").iterdir())

    def shims(self) -> list[int]:
        """Return the shims, which lead a session.

        A fork of one has its command line for a moment, then becomes the task and leads a session of its own. So the
        command lines are read last.
        """
        leaders = [pid for pid in list_pids() if is_session_leader(pid)]
        return self._find_processes("shim.sh", str(self.folder / "node"), leaders)

    @staticmethod
    def _find_processes(program: str, folder: str, pids: Iterable[int] | None = None) -> list[int]:
        """Return the processes with an argument that ends with `program`, and one that begins with `folder`."""
        found = []
        for pid in list_pids() if pids is None else pids:
            with suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if any(a.endswith(program) for a in arguments) and any(a.startswith(folder) for a in arguments):
                    found.append(pid)
        return found

    def list_processes(self, allocations: list[str]) -> list[int]:
        """Return the processes that belong to these allocations."""
        marks = [f"{RUN_MARK_VARIABLE}={id}.".encode() for id in allocations]
        pids = []
        for pid in list_pids():
            with suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if any(variable.startswith(mark) for variable in environment for mark in marks) and is_alive(pid):
                    pids.append(pid)
        return pids

    def read_log(self) -> str:
        """Return the log of the node agent."""
        return (self.folder / "node.txt").read_text()

    def run(self, job: dict[str, Any]) -> None:
        self.server.put("/v1/jobs", {"Job": job})

    def allocations(self, job: str) -> list[dict[str, Any]]:
        allocations: Any = self.server.get(f"/v1/job/{job}/allocations")
        return list(allocations)

    def end(self) -> None:
        """Kill all processes of the node and clean up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        ids = [path.name for path in (self.folder / "alloc").glob("*")]
        # The supervisor first: it must not notice the end of the others.
        for pid in (*self.supervisors(), *self.shims(), *self.list_processes(ids)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.list_processes(ids), what="no process of the node is left")
        unmount_below(self.folder)
        remove_groups_below(self.folder)


def list_open_files(pid: int) -> set[str]:
    """Return the files that a process has open."""
    with suppress(OSError):
        return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return set()


@contextmanager
def run_server(folder: Path, further_config: str = "") -> Iterator[RunningAgent]:
    folder.mkdir()
    (folder / "wharf.toml").write_text(SERVER_CONFIG.format(folder=folder) + further_config)
    with running(folder, "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        yield server


@contextmanager
def run_node(
    server: RunningAgent, folder: Path, *, tracking_method: str = "auto", max_open_files: int = 0
) -> Iterator[NodeProcess]:
    """Run a node.

    Folders in `folder/static` are its host volumes; those whose name begins with `frozen` are read-only.
    """
    folder.mkdir(exist_ok=True)
    node = NodeProcess(server, folder, tracking_method=tracking_method)
    node.max_open_files = max_open_files
    try:
        node.start()
        node.wait_ready()
        yield node
    finally:
        node.end()


def build_raw_job(id: str, script: str, *, count: int = 1, kind: str = "batch", **task: Any) -> dict[str, Any]:
    """Return a job with one raw_exec task that is not restarted."""
    return {
        "ID": id,
        "Type": kind,
        "TaskGroups": [
            {
                "Name": "g",
                "Count": count,
                "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
                "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
                "EphemeralDisk": {"SizeMB": 30},
                "Tasks": [
                    {
                        "Name": "t",
                        "Driver": "raw_exec",
                        "Config": {"command": "/bin/sh", "args": ["-c", script]},
                        "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 5},
                        "Resources": {"CPU": 1, "MemoryMB": 10},
                        **task,
                    }
                ],
            }
        ],
    }


def find_termination(allocation: dict[str, Any]) -> dict[str, str]:
    """Return the details of the last `Terminated` event of the allocation's task."""
    events = allocation["TaskStates"]["t"]["Events"]
    details = [event["Details"] for event in events if event["Type"] == "Terminated"]
    assert details, json.dumps(events)
    return dict(details[-1])

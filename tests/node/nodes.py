"""A server and a node of real processes, of which each can be killed by itself."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.agent.processes import READY_WITHIN_S, RunningAgent, is_alive, running
from tests.control_groups import remove_groups_below
from tests.mounts import unmount_below
from tests.waiting import wait_until
from wharf.agent.node_identity import read_own_node_id
from wharf.node.supervisor.process_tracker import RUN_MARK_VARIABLE
from wharf.node.supervisor.processes import is_session_leader, list_pids

ROOT: Final = Path(__file__).parents[2]
BROKE_OFF: Final = "the node's connection broke off: ask again"
"""What is said to who asks in the moment in which the channel of a node's agent is lost."""
AWAY: Final = ("No path to node", BROKE_OFF)
SERVER_ALONE: Final = """\
data_dir = "{folder}/data"
[server]
enabled = true
[ports]
http = 0
"""


class ANode:
    module = "tests.node.one_node"

    def __init__(self, server: RunningAgent, folder: Path, *, way: str = "auto", address: str = "") -> None:
        """`address`: where the node finds its server, if not where that is."""
        self.server = server
        self._address = address or server.address
        self.folder = folder
        self._way = way
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        words = [sys.executable, "-m", self.module, self._address, str(self.folder), self._way]
        # What is installed there is installed for the node: its plugins.
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "installed")}
        with open(self.folder / "node.txt", "ab") as said:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=ROOT, env=environment
            )

    def wait_ready(self) -> None:
        """Until servers give it work, and it can be asked."""
        wait_until(
            lambda: self._is_ready() and self.supervisor() is not None,
            what="the node is ready",
            within_s=READY_WITHIN_S,
        )
        self.asked("/v1/client/stats")

    def _is_ready(self) -> bool:
        nodes: Any = self.server.get("/v1/nodes")
        return any((node["ID"], node["Status"]) == (read_own_node_id(self.folder / "node"), "ready") for node in nodes)

    def asked(self, path: str) -> object:
        """What the node itself answers, once it is there: its agent may have been killed a moment ago."""

        def answer() -> object:
            try:
                return self.server.get(f"{path}?node_id={read_own_node_id(self.folder / 'node')}")
            except urllib.error.HTTPError as refused:
                with refused:
                    said = refused.read().decode()
                assert said in AWAY, said
                return None

        return wait_until(answer, what=f"the node answers {path}")

    def agent(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill_agent(self) -> None:
        """And begin it anew."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.begin()

    def damage(self, journal: bytes) -> None:
        """Kill the agent, and begin it anew with this in its journal."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        (self.folder / "node" / "journal").write_bytes(journal)
        self.begin()

    def supervisor(self) -> int | None:
        """The one that looks after what runs: it listens. What began it, and one that came too late, end in a moment."""
        return next(
            (pid for pid in self._supervisors() if any(each.startswith("socket:") for each in open_by(pid))), None
        )

    def _supervisors(self) -> list[int]:
        return self._with_words("wharf.node.supervisor", str(self.folder / "node"))

    def keeps_all(self) -> bool:
        """Whether a supervisor has taken up all that runs: it holds their pipes."""
        pid = self.supervisor()
        if pid is None:
            return False
        held = open_by(pid)
        return all(str(run / "out") in held for run in (self.folder / "node" / "runs").iterdir())

    def shims(self) -> list[int]:
        """What forks away from a shim to become a task has its command line for a moment, but leads no session yet."""
        return [pid for pid in self._with_words("shim.sh", str(self.folder / "node")) if is_session_leader(pid)]

    @staticmethod
    def _with_words(word: str, start: str) -> list[int]:
        found = []
        for pid in list_pids():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if any(w.endswith(word) for w in words) and any(w.startswith(start) for w in words):
                    found.append(pid)
        return found

    def left(self, allocations: list[str]) -> list[int]:
        """Processes of these allocations."""
        marks = [f"{RUN_MARK_VARIABLE}={id}.".encode() for id in allocations]
        found = []
        for pid in list_pids():
            with suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if any(each.startswith(mark) for each in environment for mark in marks) and is_alive(pid):
                    found.append(pid)
        return found

    def said(self) -> str:
        return (self.folder / "node.txt").read_text()

    def run(self, job: dict[str, Any]) -> None:
        self.server.put("/v1/jobs", {"Job": job})

    def allocations(self, job: str) -> list[dict[str, Any]]:
        found: Any = self.server.get(f"/v1/job/{job}/allocations")
        return list(found)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        ids = [path.name for path in (self.folder / "alloc").glob("*")]
        # The supervisor first: it must not see the others end.
        for pid in (*self._supervisors(), *self.shims(), *self.left(ids)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.left(ids), what="nothing of the node is left")
        unmount_below(self.folder)
        remove_groups_below(self.folder)


def open_by(pid: int) -> set[str]:
    with suppress(OSError):
        return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return set()


@contextmanager
def a_server(folder: Path) -> Iterator[RunningAgent]:
    folder.mkdir()
    (folder / "wharf.toml").write_text(SERVER_ALONE.format(folder=folder))
    with running(folder, "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        yield server


@contextmanager
def a_node(server: RunningAgent, folder: Path, *, way: str = "auto") -> Iterator[ANode]:
    """Folders in `folder/static` are volumes of its configuration; those whose name begins with `frozen` only to be read."""
    folder.mkdir(exist_ok=True)
    node = ANode(server, folder, way=way)
    try:
        node.begin()
        node.wait_ready()
        yield node
    finally:
        node.end()


def a_raw_job(id: str, script: str, *, count: int = 1, kind: str = "batch", **task: Any) -> dict[str, Any]:
    """One that is tried once."""
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


def ended(allocation: dict[str, Any]) -> dict[str, str]:
    """How its task ended, as its last event of that kind tells."""
    events = allocation["TaskStates"]["t"]["Events"]
    found = [event["Details"] for event in events if event["Type"] == "Terminated"]
    assert found, json.dumps(events)
    return dict(found[-1])

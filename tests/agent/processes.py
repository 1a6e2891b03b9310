"""Real agents for tests. Each runs in a folder of the test on a free port, and is killed with everything that it started."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.control_groups import remove_groups_below
from tests.mounts import unmount_below
from tests.waiting import wait_until

READY_WITHIN_S = 120.0
"""Limit for a start. Only a hanging agent reaches it; `benchmarks/agent.py` measures how long a start takes."""
ANSWERED_WITHIN_S = 60.0
"""Limit for a request, and for the end of a process."""
MAX_PROCESS_FILE_BYTES = 4_000_000
"""Limit for a file of /proc. Command line and environment have at most 2 MB by default."""

_ADDRESS = re.compile(r"https?://[\d.]+:\d+")


class RunningAgent:
    """An agent process and its output files."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, out: Path, err: Path) -> None:
        self.process = process
        self.folder = folder
        self.known_children: set[int] = set()
        """All children found so far. After the parent is killed, its children can no longer be found in /proc."""
        self._out = out
        self._err = err

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8")

    @property
    def address(self) -> str:
        found = _ADDRESS.search(self.out)
        assert found is not None, self.out + self.err
        return found[0]

    def wait_ready(self) -> None:
        wait_until(
            lambda: self.is_ready() or self.process.poll() is not None,
            what="the agent is ready or has ended",
            within_s=READY_WITHIN_S,
        )
        assert self.is_ready(), self.out + self.err

    def is_ready(self) -> bool:
        return "ready" in self.out and "after" in self.out

    def children(self) -> list[int]:
        now = children_of(self.process.pid)
        self.known_children |= set(now)
        return now

    def child(self, role: str) -> int | None:
        """Return the process id of the child with this role."""
        return next((pid for pid in self.children() if role_of(pid) == role), None)

    def get(self, path: str) -> object:
        with urllib.request.urlopen(self.address + path, timeout=ANSWERED_WITHIN_S) as reply:
            return json.load(reply)

    def put(self, path: str, body: object) -> object:
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), method="PUT")
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
            return json.load(reply)

    def put_without_body(self, path: str) -> int:
        """Send a PUT without a body and return the status of the reply. An error shows the text of the reply."""
        request = urllib.request.Request(self.address + path, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            error.add_note(error.read(1_000).decode(errors="replace"))
            raise

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_end(self, within_s: float = ANSWERED_WITHIN_S) -> int:
        return self.process.wait(timeout=within_s)


def role_of(pid: int) -> str:
    """Return the role of an agent's child process, or "" for any other process."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return arguments[-1].decode() if len(arguments) > 1 and b"wharf.agent.child" in arguments else ""


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children of a process, without zombies.

    Tests call this many times while they wait, so it reads each process as cheaply as it can.
    """
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent, _ = read_process_file(name, "stat").rpartition(b") ")[2].split(maxsplit=2)
        except OSError:
            continue
        if int(parent) == pid and state != b"Z":
            found.append(int(name))
    return found


def read_process_file(process: str, name: str) -> bytes:
    """Return the start of a file of /proc/PROCESS. Raises `OSError` if the process has ended."""
    descriptor = os.open(f"/proc/{process}/{name}", os.O_RDONLY)
    try:
        return os.read(descriptor, MAX_PROCESS_FILE_BYTES)
    finally:
        os.close(descriptor)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sockets_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_socket())


@contextmanager
def running(
    folder: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    inherited_descriptors: Sequence[int] = (),
) -> Iterator[RunningAgent]:
    """Run `wharf ARGUMENTS` with `folder` as the current folder, and end everything that it started."""
    folder.mkdir(exist_ok=True)
    out, err = folder / "out.txt", folder / "err.txt"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "wharf", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=os.environ | (environment or {}),
            pass_fds=inherited_descriptors,
        )
    agent = RunningAgent(process, folder, out, err)
    try:
        yield agent
    finally:
        agent.children()
        if process.poll() is None:
            process.kill()
            process.wait()
        remaining = [pid for pid in agent.known_children if role_of(pid)]
        for pid in remaining:  # They end by themselves within seconds; this saves the next test that wait.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, remaining)), what="the children have ended")
        kill_remaining_processes(folder)
        unmount_below(folder)
        remove_groups_below(folder)


def kill_remaining_processes(folder: Path) -> None:
    """Kill all processes of this folder that survive a killed agent or container engine, and wait until they are gone.

    They are the node's supervisor, shims and tasks, and the monitors of containers with the programs that they start.
    """
    wait_until(lambda: not _kill_processes_of(folder), what=f"all processes of {folder} have ended")


def _kill_processes_of(folder: Path) -> list[int]:
    """Kill processes whose command line or environment contains the folder. Return their process ids."""
    name, found = os.fsencode(folder), []
    for process in filter(str.isdigit, os.listdir("/proc")):
        if int(process) == os.getpid():
            continue
        with suppress(OSError):
            is_ours = any(name in read_process_file(process, file) for file in ("cmdline", "environ"))
            if is_ours and os.getpgid(int(process)) != os.getpgid(0):
                os.kill(int(process), signal.SIGKILL)
                found.append(int(process))
    return found


def run(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a `wharf` command and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", "wharf", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
        check=False,
        env=os.environ | (environment or {}),
    )


def lines(text: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.strip()]

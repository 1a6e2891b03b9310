"""A real store process for tests.

`python -m tests.cluster.engines.store_process FOLDER TAIL_CHANGES PARENT` runs the process itself.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_until
from wharf.cluster.engines.port import LogUnavailable
from wharf.cluster.engines.store.server import StoreProcessSettings, run_store

ROOT = Path(__file__).parents[3]


class StoreProcess:
    """A running store process on a folder. The constructor starts it."""

    def __init__(self, folder: Path, *, tail_changes: int = 100_000) -> None:
        self.folder = folder
        self.socket_path = StoreProcessSettings(folder=str(folder)).get_socket_path()
        read_end, self._parent_pipe = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.cluster.engines.store_process",
                str(folder),
                str(tail_changes),
                str(read_end),
            ],
            cwd=ROOT,
            pass_fds=(read_end,),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(read_end)
        self.pid = self._process.pid

    def wait_until_listening(self) -> None:
        wait_until(lambda: self.socket_path.exists() or self._process.poll() is not None, what="the store listens")

    def end(self) -> None:
        """Send SIGTERM as a supervisor does, and wait for the end."""
        self.signal_end()
        self.wait()

    def signal_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    def close_parent_pipe(self) -> None:
        """Close the pipe to the process, as the death of its parent does."""
        os.close(self._parent_pipe)
        self._parent_pipe = -1

    def signal_kill(self) -> None:
        self._process.kill()

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> tuple[int, str]:
        """Wait for the end. Return the exit code and the error output."""
        _, errors = self._process.communicate(timeout=60)
        if self._parent_pipe >= 0:
            os.close(self._parent_pipe)
            self._parent_pipe = -1
        return self._process.returncode, errors


def main() -> None:
    folder, tail_changes, parent = sys.argv[1:]
    try:
        run_store(
            StoreProcessSettings(folder=folder, min_tail_changes=int(tail_changes), parent_descriptor=int(parent))
        )
    except LogUnavailable as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

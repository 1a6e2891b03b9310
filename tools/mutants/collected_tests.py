"""Runs chosen tests of a package again and again without starting pytest each time.

A pytest process collects the tests once (`tools.mutants.forking_plugin`). Each run is a process forked from it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.mutants.forking_plugin import Reply, Request, wait_for_group
from tools.mutants.mutations import Mutation

COLLECTION_SECONDS = 240.0  # For the collection of one package, on a busy machine.
REPLY_SECONDS = 60.0  # Added to the limit of a run: preparing a mistake and ending processes.


class CollectionLost(Exception):
    """The process with the collected tests did not start, or does not reply. The text says which."""


class CollectedTests:
    """The tests of a package, collected once in the copy of the project in `folder`."""

    def __init__(self, folder: Path, tests: Iterable[str], environment: Mapping[str, str]) -> None:
        """Start pytest and wait until it has collected the tests. Raises `CollectionLost`."""
        self._folder = folder
        self._sound_tests: dict[str, bool] = {}
        self._temporary = Path(tempfile.mkdtemp(prefix="mutant-"))  # Not in the copy: paths of sockets must be short.
        self._socket, theirs = socket.socketpair()
        command = (sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "--tb=no", "-p", "tools.mutants.forking_plugin")
        with theirs, (folder / "collection.txt").open("wb") as output:
            self._process = subprocess.Popen(
                (*command, *tests),
                cwd=folder,
                env={**environment, "MUTANT_SOCKET": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._replies = self._socket.makefile("r", encoding="utf-8")
        try:
            self._receive(COLLECTION_SECONDS)
        except CollectionLost:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self, test_seconds: Mapping[str, float], seconds: float, mutation: Mutation | None = None
    ) -> tuple[Reply, str]:
        """Run the tests until one fails, and return pytest's reply and output. No process of the tests remains.

        `test_seconds` are the tests in their order, each with its time limit. `seconds` limits all of them together.

        The file of the mutation contains the mistake already. Raises `CollectionLost`.
        """
        output, temporary = self._folder / "output.txt", self._temporary / "run"
        path, line = (mutation.path, mutation.line) if mutation else ("", 0)
        temporary.mkdir()
        output.write_text("")
        try:
            request = Request(path, line, {**test_seconds}, seconds, str(output), str(temporary))
            self._socket.sendall(json.dumps(asdict(request)).encode() + b"\n")
            reply = self._receive(seconds + REPLY_SECONDS)
        except OSError as error:
            raise CollectionLost(f"the process with the collected tests ended: {error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return reply, output.read_text(errors="replace")

    def is_sound(self, test: str, seconds: float) -> bool:
        """Return whether the test passes in a forked process as long as no file has a mistake."""
        if test not in self._sound_tests:
            reply, _ = self.run({test: seconds}, seconds)
            self._sound_tests[test] = reply.code == 0
        return self._sound_tests[test]

    def close(self) -> None:
        self._replies.close()
        self._socket.close()  # The process ends after its current run.
        wait_for_group(self._process.pid, 5.0)
        self._process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _receive(self, seconds: float) -> Reply:
        self._socket.settimeout(seconds)
        try:
            line = self._replies.readline()
        except OSError as error:
            raise CollectionLost(f"the process with the collected tests does not reply: {error}") from error
        if not line:
            output = (self._folder / "collection.txt").read_text(errors="replace")
            raise CollectionLost(f"the process with the collected tests ended: {output[-500:]}")
        return Reply(**json.loads(line))


def get_test_environment(folder: Path) -> dict[str, str]:
    """Return the environment in which the tests of a copy run, however pytest is started."""
    return {**os.environ, "PYTHONPATH": str(folder / "src"), "HYPOTHESIS_PROFILE": "ci"}

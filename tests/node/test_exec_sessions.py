"""Commands whose input or output nobody reads: what they cost, and that they end with their caller."""

import base64
import json
import os
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from websockets.frames import Frame, Opcode

from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until
from wharf.agent.node_identities import read_own_node_id
from wharf.node.channel.exec import MAX_COMMANDS_PER_TASK
from wharf.node.open_files import MAX_COMMANDS
from wharf.node.processes import list_pids

SESSION_COUNT = 8
MAX_SESSION_BYTES = 4_000_000
STALLED_POLLS = 30
"""Unsuccessful attempts to send, 10 ms apart, after which the server does not read."""


class ExecCaller:
    """A websocket of a command, whose frames the test sends and reads itself."""

    def __init__(self, node: NodeProcess, alloc: str, command: list[str]) -> None:
        address = urlsplit(node.server.address)
        path = f"/v1/client/allocation/{alloc}/exec?task=t&command={quote(json.dumps(command))}"
        self.connection = socket.create_connection((address.hostname or "", address.port or 0))
        self.connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        reply = b""
        while b"\r\n\r\n" not in reply:
            reply += self.connection.recv(1)  # Nothing after the handshake is read.
        assert reply.startswith(b"HTTP/1.1 101")
        self._frames = self._rest = b""
        self._failed_count = 0

    def start_flood(self, frames: bytes) -> None:
        """Send these frames again and again, in each later call of `is_stalled`."""
        self.connection.setblocking(False)
        self._frames = self._rest = frames

    def is_stalled(self) -> bool:
        """Send as much as possible. Return whether the server has read nothing for `STALLED_POLLS` calls."""
        try:
            while True:
                count = self.connection.send(self._rest)
                self._rest, self._failed_count = self._rest[count:] or self._frames, 0
        except BlockingIOError:
            self._failed_count += 1
        return self._failed_count >= STALLED_POLLS

    def read_until(self, expected: bytes) -> bytes:
        """Return what the server sends up to the bytes `expected`."""
        received = b""
        while expected not in received:
            part = self.connection.recv(65_536)
            assert part, f"the connection has ended after {received[-500:]!r}"
            received += part
        return received

    def close(self) -> None:
        self.connection.close()


def build_frame(message: bytes, opcode: Opcode = Opcode.TEXT) -> bytes:
    return Frame(opcode, message).serialize(mask=True)


def build_stdin(data: bytes) -> bytes:
    return build_frame(json.dumps({"stdin": {"data": base64.b64encode(data).decode()}}).encode())


FLOODS = {
    "messages as our client sends them": build_stdin(b"x" * 2_048) * 50,
    "the shortest input": build_stdin(b"x") * 1_000,
    "heartbeats": build_frame(b"{}") * 1_000,
    "empty messages": build_frame(b"") * 1_000,
    "the longest messages": build_stdin(b"x" * 190_000),
    "pings": build_frame(b"", Opcode.PING) * 1_000,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("sessions")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


@pytest.fixture(scope="module")
def alloc(node: NodeProcess) -> str:
    """Return the id of a running allocation."""
    node.run(build_raw_job("main", "exec sleep 600", kind="service"))
    wait_until(
        lambda: any(a["ClientStatus"] == "running" for a in node.allocations("main")), what="the allocation runs"
    )
    return str(node.allocations("main")[0]["ID"])


def read_memory(node: NodeProcess) -> int:
    """Return the resident bytes of all processes of the server and of the node agent."""
    pids = [*node.server.children(), node.agent()]
    status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(int(text.partition("VmRSS:")[2].split()[0]) * 1_024 for text in status)


def build_mark(number: int) -> str:
    """Return a duration for `sleep` that no process of another test has as its argument."""
    return f"{600 + number}.{os.getpid()}"


def list_commands(mark: str) -> list[int]:
    """Return the processes that have this argument."""
    pids = []
    for pid in list_pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                pids.append(pid)
    return pids


def count_commands(mark: str) -> int:
    return len(list_commands(mark))


def read_received_bytes(node: NodeProcess) -> int:
    """Return how many bytes the node agent has read, from commands and from servers."""
    return int(Path(f"/proc/{node.agent()}/io").read_text().partition("rchar: ")[2].split()[0])


@contextmanager
def open_callers(node: NodeProcess, alloc: str, command: list[str], count: int) -> Iterator[list[ExecCaller]]:
    with ExitStack() as stack:
        callers = [ExecCaller(node, alloc, command) for _ in range(count)]
        for caller in callers:
            stack.callback(caller.close)
        yield callers


def flood_sessions(node: NodeProcess, alloc: str, mark: str, floods: Sequence[str]) -> float:
    """Send endless floods of these names to commands that read nothing, and return the growth in bytes for each command.

    Waits until the commands have ended with their callers.
    """
    with open_callers(node, alloc, ["sleep", mark], len(floods)) as callers:
        wait_until(lambda: count_commands(mark) == len(floods), what="all commands run")
        before = read_memory(node)
        for caller, flood in zip(callers, floods, strict=True):
            # Input beside them blocks also those messages that are no input.
            caller.start_flood(FLOODS[flood] + build_stdin(b"x" * 2_048))
        wait_until(
            lambda: sum(caller.is_stalled() for caller in callers) == len(floods), what="the server reads no more"
        )
        growth = (read_memory(node) - before) / len(floods)
    wait_until(lambda: count_commands(mark) == 0, what="all commands have ended with their callers")
    return growth


def test_input_that_commands_do_not_read_takes_little_memory(node: NodeProcess, alloc: str) -> None:
    assert flood_sessions(node, alloc, build_mark(0), [*FLOODS]) < MAX_SESSION_BYTES / 2


@pytest.mark.faults
@pytest.mark.parametrize("flood", FLOODS)
def test_input_of_each_kind_that_commands_do_not_read_takes_little_memory(
    node: NodeProcess, alloc: str, flood: str
) -> None:
    growth = flood_sessions(node, alloc, build_mark(1 + list(FLOODS).index(flood)), [flood] * 30)
    print(f"{flood}: {growth / 1e6:.2f} MB for each session")

    assert growth < MAX_SESSION_BYTES


@pytest.mark.parametrize("program", ["yes", "yes >&2"])
def test_output_that_a_caller_does_not_read_takes_little_memory(node: NodeProcess, alloc: str, program: str) -> None:
    mark = f"output of {program}"
    before = read_memory(node)
    with open_callers(node, alloc, ["sh", "-c", f"while :; do {program}; done", mark], SESSION_COUNT):
        wait_until(lambda: count_commands(mark) == SESSION_COUNT, what="all commands run")
        last_count, stalled_polls = -1, 0

        def are_stalled() -> bool:
            nonlocal last_count, stalled_polls
            previous, last_count = last_count, read_received_bytes(node)
            stalled_polls = stalled_polls + 1 if last_count == previous else 0
            return stalled_polls >= STALLED_POLLS

        wait_until(are_stalled, what="the commands wait")
        growth = (read_memory(node) - before) / SESSION_COUNT
    print(f"{program}: {growth / 1e6:.2f} MB for each session")
    wait_until(lambda: count_commands(mark) == 0, what="all commands have ended with their callers")

    assert growth < MAX_SESSION_BYTES


def test_a_task_has_a_limited_number_of_commands(node: NodeProcess, alloc: str) -> None:
    mark = build_mark(20)
    with open_callers(node, alloc, ["sleep", mark], MAX_COMMANDS_PER_TASK):
        wait_until(lambda: count_commands(mark) == MAX_COMMANDS_PER_TASK, what="all commands run")
        refused = ExecCaller(node, alloc, ["sleep", mark])
        reply = refused.read_until(b"later")
        refused.close()
    wait_until(lambda: count_commands(mark) == 0, what="all commands have ended with their callers")

    assert reply.endswith(b"\x03\xf364 commands run in this task already: end some, or retry later")
    with open_callers(node, alloc, ["echo", "hello"], 1) as (caller,):
        assert base64.b64encode(b"hello\n") in caller.read_until(b"exit")


def create_other_namespace(node: NodeProcess) -> None:
    request = urllib.request.Request(
        f"{node.server.address}/v1/namespace", json.dumps({"Name": "other"}).encode(), method="PUT"
    )
    urllib.request.urlopen(request).close()


def test_one_namespace_cannot_use_up_the_commands_of_a_node(node: NodeProcess) -> None:
    create_other_namespace(node)
    jobs = [build_raw_job(f"share-{number}", "exec sleep 600", kind="service") for number in range(4)]
    jobs[3] |= {"Namespace": "other"}
    for job in jobs:
        node.run(job)

    def list_running() -> list[str]:
        allocations: Any = node.server.get("/v1/allocations?namespace=*")
        by_job = {each["JobID"]: each["ID"] for each in allocations if each["ClientStatus"] == "running"}
        return [by_job[job["ID"]] for job in jobs if job["ID"] in by_job]

    wait_until(lambda: len(list_running()) == 4, what="the tasks run")
    first, second, third, other = list_running()
    mark = build_mark(40)
    command, limit = ["sleep", mark], MAX_COMMANDS // 2 - MAX_COMMANDS_PER_TASK
    with open_callers(node, first, command, MAX_COMMANDS_PER_TASK), open_callers(node, second, command, limit):
        wait_until(lambda: count_commands(mark) == MAX_COMMANDS // 2, what="the share of the namespace is used up")
        refused = ExecCaller(node, third, command)
        reply = refused.read_until(b"later")
        refused.close()
        with open_callers(node, other, ["echo", "hello"], 1) as (caller,):
            assert base64.b64encode(b"hello\n") in caller.read_until(b"exit")
    wait_until(lambda: count_commands(mark) == 0, what="all commands have ended with their callers")

    assert reply.endswith(
        b"128 of the node's 256 commands are of this namespace, the rest is for others: end some, or retry later"
    )


def test_a_command_ends_with_the_allocation_beside_which_it_runs(node: NodeProcess) -> None:
    node.run(build_raw_job("short", "exec sleep 600", kind="service"))
    wait_until(
        lambda: any(a["ClientStatus"] == "running" for a in node.allocations("short")), what="the allocation runs"
    )
    alloc, mark = str(node.allocations("short")[0]["ID"]), build_mark(30)
    with open_callers(node, alloc, ["sleep", mark], 1) as (caller,):
        wait_until(lambda: count_commands(mark) == 1, what="the command runs")
        request = urllib.request.Request(f"{node.server.address}/v1/job/short", method="DELETE")
        urllib.request.urlopen(request).close()

        end = caller.read_until(b"\x88")  # The first byte of a close frame.
        wait_until(lambda: count_commands(mark) == 0, what="the command has ended with the allocation")

    # Whichever notices the end first tells the caller: the node, or the server that watches the allocation.
    assert b'"exited":true' in end or f"allocation {alloc} has ended".encode() in end


def build_job_on(node: NodeProcess, id: str, **fields: str) -> dict[str, Any]:
    """Return a job whose task runs on this node and prints a line."""
    own = {"LTarget": "${node.unique.id}", "RTarget": read_own_node_id(node.folder / "node"), "Operand": "="}
    return {**build_raw_job(id, "echo hello; exec sleep 600", kind="service"), "Constraints": [own], **fields}


def wait_until_running(node: NodeProcess, job: str, namespace: str = "default") -> str:
    """Return the id of the job's allocation once it runs."""

    def find() -> str:
        allocations: Any = node.server.get(f"/v1/job/{job}/allocations?namespace={namespace}")
        return next((str(each["ID"]) for each in allocations if each["ClientStatus"] == "running"), "")

    return wait_until(find, what=f"the task of {job} runs")


def follow_log(node: NodeProcess, alloc: str, namespace: str = "default") -> tuple[socket.socket, bytes]:
    """Follow the log of an allocation. Return the connection, and the reply up to the first line or the refusal."""
    address = urlsplit(node.server.address)
    connection = socket.create_connection((address.hostname or "", address.port or 0))
    query = f"task=t&type=stdout&plain=true&follow=true&namespace={namespace}"
    connection.sendall(f"GET /v1/client/fs/logs/{alloc}?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    reply = b""
    while b"hello" not in reply and b"later" not in reply:
        part = connection.recv(65_536)
        assert part, reply
        reply += part
    return connection, reply


def test_one_namespace_cannot_use_up_the_open_files_of_a_node(node: NodeProcess, tmp_path: Path) -> None:
    create_other_namespace(node)
    mark = build_mark(50)
    with run_node(node.server, tmp_path / "small", max_open_files=300) as small, ExitStack() as stack:
        small.run(build_job_on(small, "hog"))
        hog = wait_until_running(small, "hog")
        refusals: list[bytes] = []
        while not refusals:
            (caller,) = stack.enter_context(
                open_callers(node, hog, ["/bin/sh", "-c", f"echo started; exec sleep {mark}"], 1)
            )
            received = b""
            while STARTED not in received and b"later" not in received:
                received += caller.connection.recv(65_536)
            refusals += [received] if STARTED not in received else []
        while len(refusals) == 1:
            connection, reply = follow_log(node, hog)
            stack.enter_context(connection)
            refusals += [reply] if b"hello" not in reply else []

        small.run(build_job_on(small, "late", Namespace="other"))
        late = wait_until_running(small, "late", "other")
        with open_callers(node, late, ["echo", "hello"], 1) as (caller,):
            assert base64.b64encode(b"hello\n") in caller.read_until(b"exit")
        connection, reply = follow_log(node, late, "other")
        connection.close()

        assert b"hello" in reply
        assert b"of the node's 12 commands are of this namespace" in refusals[0]
        assert refusals[1].startswith(b"HTTP/1.1 503")
        assert b"of the node's 12 files and logs are of this namespace" in refusals[1]


STARTED = base64.b64encode(b"started\n")

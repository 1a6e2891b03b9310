"""`wharf job logs` with nodes that do not reply, servers that end, and servers of an older version."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.http_servers import QuietHandler, serving

COUNT = 30
Reply = tuple[int, bytes] | None
"""Status and body; `None`: the connection is closed without a reply."""


class StandIn:
    """A server of a job with many ended allocations. `reply` decides about each request for a log."""

    def __init__(self) -> None:
        self.address = ""
        self.reply: Callable[[int, str], Reply] = lambda index, log_type: build_log(index, log_type)
        """It gets the index of the allocation and the type of the log."""
        self.failed: tuple[int, ...] = ()
        """The indexes of the allocations that failed before their program began."""


def build_log(index: int, *streams: str) -> Reply:
    frames = [
        {"Offset": 9, "Data": base64.b64encode(f"{each} {index}\n".encode()).decode(), "File": f"alloc/logs/t.{each}.0"}
        for each in streams
    ]
    return 200, "".join(map(json.dumps, frames)).encode()


def build_handler(stand_in: StandIn) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/v1/jobs":
                job = {"ID": "job", "Name": "job", "Namespace": "default", "Type": "batch", "Status": "dead"}
                self.reply(200, json.dumps([job]).encode())
            elif url.path == "/v1/job/job/allocations":
                self.reply(
                    200,
                    json.dumps([build_allocation(index, index in stand_in.failed) for index in range(COUNT)]).encode(),
                )
            elif url.path.startswith("/v1/client/fs/logs/"):
                index, log_type = int(url.path.rpartition("/")[2][:8]), parse_qs(url.query)["type"][0]
                if (reply := stand_in.reply(index, log_type)) is not None:
                    self.reply(*reply)
                self.close_connection = reply is None
            else:
                self.reply(200, b'"127.0.0.1:1"')

    return Handler


def build_allocation(index: int, has_failed: bool) -> dict[str, Any]:
    event = {"Type": "Driver Failure", "Time": 1, "DisplayMessage": "no such program", "FailsTask": True}
    return {
        "ID": f"{index:08}-0000-4000-8000-000000000000",
        "Name": f"job.g[{index}]",
        "Namespace": "default",
        "NodeName": f"node-{index}",
        "JobID": "job",
        "JobType": "batch",
        "TaskGroup": "g",
        "TaskStates": {"t": {"State": "dead", "Failed": has_failed, "Events": [event] if has_failed else []}},
        "DesiredStatus": "run",
        "ClientStatus": "failed" if has_failed else "complete",
        "CreateIndex": index,
    }


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    stand_in = StandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), build_handler(stand_in))
    with serving(server):
        stand_in.address = f"http://127.0.0.1:{server.server_port}"
        yield stand_in


def print_logs(stand_in: StandIn) -> tuple[int, list[str], list[str]]:
    """Return the exit code, the printed lines without ids, and the errors without notices of a slow machine."""
    process = subprocess.run(
        [sys.executable, "-m", "wharf", "job", "logs", "job"],
        env={**os.environ, "WHARF_ADDR": stand_in.address, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWERED_WITHIN_S,
        check=False,
    )
    errors = [line for line in process.stderr.splitlines() if not line.startswith("waiting for ")]
    return process.returncode, [line[9:] for line in process.stdout.splitlines()], errors


def build_lines(index: int) -> list[str]:
    name = f"g[{index}]".ljust(5)
    return [f"{name} t  stdout {index}", f"{name} t! stderr {index}"]


def test_servers_of_an_older_version_are_asked_for_each_output(stand_in: StandIn) -> None:
    def reply(index: int, log_type: str) -> Reply:
        if log_type == "all":
            return 400, b'log type must be "stdout" or "stderr"'
        return build_log(index, log_type)

    stand_in.reply = reply

    assert (0, [line for index in range(COUNT) for line in build_lines(index)], []) == print_logs(stand_in)


def test_nodes_that_do_not_reply_do_not_hide_the_logs_of_others(stand_in: StandIn) -> None:
    def reply(index: int, _log_type: str) -> Reply:
        return (503, b"No path to node") if index in (3, 5) else build_log(index, "stdout", "stderr")

    stand_in.reply = reply

    code, lines, errors = print_logs(stand_in)

    assert (1, [line for index in range(COUNT) if index not in (3, 5) for line in build_lines(index)]) == (code, lines)
    expected = "node node-3 did not send the log of job.g[3]: No path to node; the logs of 1 more tasks are missing"
    assert [f"wharf: {expected}"] == errors


def test_a_server_that_ends_causes_one_error(stand_in: StandIn) -> None:
    stand_in.reply = lambda index, _: build_log(index, "stdout", "stderr") if index < 2 else None

    code, lines, errors = print_logs(stand_in)

    assert (1, [*build_lines(0), *build_lines(1)], 1) == (code, lines, len(errors))
    assert errors[0].startswith("wharf: ")


def test_the_reason_is_named_if_failed_tasks_printed_nothing(stand_in: StandIn) -> None:
    stand_in.failed = (3, 5, 7)
    stand_in.reply = lambda index, _: (404, b"no log") if index in (3, 5) else build_log(index, "stdout", "stderr")

    code, lines, errors = print_logs(stand_in)

    assert (0, [line for index in range(COUNT) if index not in (3, 5) for line in build_lines(index)]) == (code, lines)
    reason = "job.g[3] (00000003) failed and printed nothing: t: no such program; 1 more printed nothing"
    assert [f"note: {reason}"] == errors


def test_a_job_whose_tasks_printed_nothing_has_a_note(stand_in: StandIn) -> None:
    stand_in.reply = lambda _index, _log_type: (404, b"no log")

    assert print_logs(stand_in) == (
        0,
        [],
        ["note: no task printed anything; `wharf job fetch` brings files that tasks wrote"],
    )

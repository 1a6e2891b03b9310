"""The reader of the storms notices a time without replies."""

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import ThreadingHTTPServer

import pytest

from tests.faults.reader import Reader, compute_p99
from tests.http_servers import QuietHandler, serving
from tests.waiting import wait_until

READS_PER_S = 50.0
STALL_S = 1.5


class StallingServer(ThreadingHTTPServer):
    """A server that answers each request at once, or not before the end of a stall."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.is_answering = threading.Event()
        self.is_answering.set()
        self.answered = 0


class Handler(QuietHandler):
    server: StallingServer

    def do_GET(self) -> None:
        self.server.is_answering.wait()
        self.server.answered += 1
        self.reply(200, b"{}")


@pytest.fixture
def server() -> Iterator[StallingServer]:
    with serving(StallingServer()) as server:
        yield server
        server.is_answering.set()


def read_beside_a_stall(server: StallingServer, *, is_excused: bool) -> list[float]:
    """Return the times of reads of which half were due while the server did not answer."""
    reader = Reader([f"http://127.0.0.1:{server.server_port}"], "/", reads_per_s=READS_PER_S)
    wait_until(lambda: server.answered >= 10, what="reads before the stall")
    server.is_answering.clear()
    ends_s = time.monotonic() + STALL_S
    with reader.cannot_be_answered() if is_excused else nullcontext():
        wait_until(lambda: time.monotonic() >= ends_s, what="the stall ends")
        server.is_answering.set()
    answered = server.answered
    wait_until(lambda: server.answered >= answered + 10 + STALL_S * READS_PER_S, what="reads after the stall")
    took_s = reader.stop()
    assert reader.errors == []
    return took_s


def test_each_read_that_was_due_during_a_stall_counts_with_the_time_since_then(server: StallingServer) -> None:
    took_s = read_beside_a_stall(server, is_excused=False)

    slow = [each for each in took_s if each > STALL_S / 2]
    assert len(slow) >= STALL_S / 2 * READS_PER_S * 0.9
    assert compute_p99(took_s) > STALL_S * 0.8


def test_reads_that_nobody_can_answer_count_from_the_end_of_that_time(server: StallingServer) -> None:
    took_s = read_beside_a_stall(server, is_excused=True)

    assert compute_p99(took_s) < STALL_S / 2

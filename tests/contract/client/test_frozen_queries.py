"""Blocking queries of the synchronous client whose server freezes: the client leaves it, although silence is normal."""

import threading

import pytest

from wharf.contract.client import RetryPolicy, SyncClient, Unreachable
from wharf.contract.client.liveness import MAX_WAITING_THREADS, PROBE_PATH, send_until_silent
from wharf.contract.client.transport import ClientReply, ClientRequest, SyncStreamedReply
from wharf.world import RealWorld

MAX_WAIT_S = 60.0


class BlockingServer:
    """The transport to a server that answers a blocking query once it is released. A frozen one answers no probe."""

    def __init__(self, *, is_frozen: bool = False) -> None:
        self._is_frozen = is_frozen
        self.released = threading.Event()
        self.probed = threading.Event()
        self.requests: list[ClientRequest] = []

    def send(self, request: ClientRequest) -> ClientReply:
        self.requests.append(request)
        if request.path == PROBE_PATH:
            self.probed.set()
            if self._is_frozen:
                raise Unreachable("no reply", is_sent=True)
        elif not self.released.wait(MAX_WAIT_S):
            raise Unreachable("no reply", is_sent=True)
        return ClientReply(200, {"x-cluster-index": "9"}, b'"10.0.0.1:4646"' if request.path == PROBE_PATH else b"[]")

    def open(self, _: ClientRequest) -> SyncStreamedReply:
        raise Unreachable("no reply", is_sent=True)

    def close(self) -> None:
        self.released.set()


def make_client(*servers: BlockingServer, attempts: int = 3) -> SyncClient:
    retries = RetryPolicy(max_attempts=attempts, max_pause_s=0.01)
    return SyncClient(RealWorld(), servers, retry_policy=retries, sends_probes=True)


def test_a_blocking_query_leaves_a_frozen_server() -> None:
    frozen, well = BlockingServer(is_frozen=True), BlockingServer()
    well.released.set()

    with make_client(frozen, well) as client:
        assert client.jobs.list(index=8, wait_s=300.0).index == 9

    assert [request.path for request in frozen.requests] == ["/v1/jobs", PROBE_PATH]


def test_a_blocking_query_fails_if_every_server_is_frozen() -> None:
    with make_client(BlockingServer(is_frozen=True), attempts=1) as client, pytest.raises(Unreachable, match="probe"):
        client.jobs.list(index=8, wait_s=300.0)


def test_a_blocking_query_waits_for_a_server_that_answers_probes() -> None:
    server = BlockingServer()

    def release() -> None:
        assert server.probed.wait(MAX_WAIT_S)
        server.released.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    with make_client(server) as client:
        assert client.jobs.list(index=8, wait_s=300.0).index == 9
    releasing.join(MAX_WAIT_S)

    assert [request.path for request in server.requests] == ["/v1/jobs", PROBE_PATH]


def test_an_ordinary_read_sends_no_probe_and_waits_in_the_calling_thread() -> None:
    server = BlockingServer()
    server.released.set()

    with make_client(server) as client:
        client.jobs.list()

    assert [request.path for request in server.requests] == ["/v1/jobs"]


def test_an_error_of_a_blocking_query_reaches_the_caller() -> None:
    def refuse() -> int:
        raise Unreachable("connection reset", is_sent=True)

    with pytest.raises(Unreachable, match="connection reset"):
        send_until_silent(refuse, lambda: None, "the server")


def test_beyond_the_limit_of_threads_a_query_waits_in_the_calling_thread() -> None:
    released, left = threading.Event(), threading.Semaphore(0)

    def wait() -> str:
        released.wait(MAX_WAIT_S)
        left.release()
        return threading.current_thread().name

    def refuse_probe() -> None:
        raise Unreachable("no reply", is_sent=True)

    callers = [threading.Thread(target=lambda: leave_server(wait, refuse_probe)) for _ in range(MAX_WAITING_THREADS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(MAX_WAIT_S)

    name = send_until_silent(threading.current_thread, refuse_probe, "the server").name
    released.set()
    for _ in callers:
        assert left.acquire(timeout=MAX_WAIT_S)

    assert name == threading.current_thread().name


def leave_server(send: object, send_probe: object) -> None:
    with pytest.raises(Unreachable):
        send_until_silent(send, send_probe, "the server")  # type: ignore[arg-type]

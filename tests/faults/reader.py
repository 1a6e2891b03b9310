"""A user who reads at a constant rate during a fault, and what the user notices of it."""

import contextlib
import http.client
import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

READS_PER_S: Final = 10.0
MAX_OPEN_READS: Final = 64
"""Reads of one reader that wait for a reply at a time; limits the threads of the test. Six seconds without a reply."""
REFUSALS: Final = (429, 503)
"""Statuses with which a server may refuse a read, if it says with `Retry-After` when to repeat it."""


class Reader:
    """A user who reads at a constant rate from all servers in turn, whether or not earlier reads are answered.

    A read counts from the time at which it was due. So a time without replies counts for each read that was due in it. If
    `MAX_OPEN_READS` wait, the next ones are sent later, but also count from when they were due.

    A read without a reply, or with a status other than 200, is an error. There are two exceptions: a refusal with `Retry-After`,
    which says when to repeat the read, and `refusal_text` with status 500, which no server can avoid while the log is away.
    """

    def __init__(
        self, addresses: Sequence[str], path: str, *, refusal_text: str = "", reads_per_s: float = READS_PER_S
    ) -> None:
        self._refusal_text = refusal_text
        self._hosts = [address.removeprefix("http://") for address in addresses]
        self._path = path
        self._reads_per_s = reads_per_s
        self._is_stopping = threading.Event()
        self._answered: list[tuple[float, float]] = []
        """When each answered read was due, and when it was answered."""
        self._stopped_s = float("inf")
        self._away_since_s = self._away_until_s = 0.0
        self.refused_count = 0
        self.errors: list[str] = []
        """The failed reads as their user sees them."""
        self._began_s = time.monotonic()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(MAX_OPEN_READS)]
        for thread in self._threads:
            thread.start()

    @contextlib.contextmanager
    def cannot_be_answered(self) -> Iterator[None]:
        """Return a context manager for a time in which no server can answer. Reads that are due in it count from its end."""
        self._away_since_s, self._away_until_s = time.monotonic(), float("inf")
        yield
        self._away_until_s = time.monotonic()

    def _run(self) -> None:
        """Send each read that no other thread has taken, when it is due."""
        while True:
            number = next(self._numbers)
            due_s = self._began_s + number / self._reads_per_s
            if self._is_stopping.wait(max(0.0, due_s - time.monotonic())) and due_s > self._stopped_s:
                return
            self._read(self._hosts[number % len(self._hosts)], due_s)

    def _read(self, host: str, due_s: float) -> None:
        try:
            connection = http.client.HTTPConnection(host, timeout=30)
            with contextlib.closing(connection):
                connection.request("GET", self._path)
                reply = connection.getresponse()
                text = reply.read().decode(errors="replace")
                if reply.status == 200:
                    self._answered.append((due_s, time.monotonic()))
                elif self._is_permitted_refusal(reply, text):
                    self.refused_count += 1
                else:
                    self.errors.append(f"{host}: {reply.status} {text}")
        except (OSError, http.client.HTTPException) as error:
            self.errors.append(f"{host}: {error!r}")

    def _is_permitted_refusal(self, reply: http.client.HTTPResponse, text: str) -> bool:
        if self._refusal_text and reply.status == 500:
            return text.startswith(self._refusal_text)
        return reply.status in REFUSALS and reply.headers["Retry-After"] is not None

    def stop(self) -> list[float]:
        """Return how long each answered read took, after all that were due are answered or have failed."""
        self._stopped_s = time.monotonic()
        self._is_stopping.set()
        for thread in self._threads:
            thread.join()
        return [max(0.0, answered_s - self._get_start_s(due_s)) for due_s, answered_s in self._answered]

    def _get_start_s(self, due_s: float) -> float:
        """Return the time from which a read counts."""
        return self._away_until_s if self._away_since_s <= due_s < self._away_until_s else due_s


def compute_p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[-1] if len(values) > 1 else 0.0

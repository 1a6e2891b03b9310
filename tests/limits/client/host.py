"""A host with limits, in memory and on a given clock. It holds against a client what a real one would ban it for."""

import json
from dataclasses import dataclass, field

import httpx2

from wharf.world.simulated import START_TIME_NS

SECOND_NS = 1_000_000_000
EPOCH_S = START_TIME_NS // SECOND_NS


class Clock:
    """A world whose time passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._ids = 0

    def now_ns(self) -> int:
        return START_TIME_NS + round(self.elapsed_s * SECOND_NS)

    def new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    def sleep(self, wait_s: float) -> None:
        self.elapsed_s += wait_s


@dataclass
class Host(httpx2.BaseTransport):
    """Primary: `limit` in windows of `window_s`. Secondary: a second refusal by hand, for `secondary_s`."""

    clock: Clock
    limit: int = 60
    window_s: int = 3_600
    skew_s: float = 0.0
    tells_retry_after: bool = True
    etag: str = ""
    secondary_until_s: float = -1.0
    used: int = 0
    reset_s: float = -1.0
    primary_refused: bool = False
    requests: list[httpx2.Request] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    refusals: int = 0
    asked_while_limited: int = 0

    def limit_for(self, seconds: float) -> None:
        """The next request meets a secondary limit, and so do all for that long."""
        self.secondary_until_s = self.clock.elapsed_s + seconds
        self._told = False

    _told: bool = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.answer(request)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        now_s = self.clock.elapsed_s
        self.times_s.append(now_s)
        if now_s >= self.reset_s:
            self.reset_s, self.used, self.primary_refused = now_s + self.window_s, 0, False
        if now_s < self.secondary_until_s:
            self.asked_while_limited += self._told
            self._told = True
            self.refusals += 1
            retry = {"retry-after": str(int(self.secondary_until_s - now_s) + 1)} if self.tells_retry_after else {}
            return self._response(403, "You have exceeded a secondary rate limit. Please wait.", retry)
        if self.used >= self.limit:
            self.asked_while_limited += self.primary_refused
            self.primary_refused = True
            self.refusals += 1
            return self._response(403, "API rate limit exceeded for you.", {})
        if self.etag and request.headers.get("if-none-match") == self.etag:
            return self._response(304, "", {"etag": self.etag})
        self.used += 1
        return self._response(200, f"answer {len(self.requests)}", {"etag": self.etag} if self.etag else {})

    def _response(self, status: int, message: str, more: dict[str, str]) -> httpx2.Response:
        there_s = EPOCH_S + self.clock.elapsed_s + self.skew_s
        reset_s = int(EPOCH_S + self.reset_s + self.skew_s)
        reset_s += reset_s < EPOCH_S + self.reset_s + self.skew_s  # Rounded up, as a host should.
        headers = {
            "x-ratelimit-limit": str(self.limit),
            "x-ratelimit-used": str(self.used),
            "x-ratelimit-remaining": str(self.limit - self.used),
            "x-ratelimit-reset": str(reset_s),
            "x-ratelimit-resource": "core",
            "date": _http_date(there_s),
            **more,
        }
        body = b"" if status == 304 else json.dumps({"message": message}).encode()
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))


def _http_date(moment_s: float) -> str:
    from email.utils import formatdate

    return formatdate(int(moment_s), usegmt=True)

"""A simulated host with limits, for tests of clients. It counts the requests for which a real host would ban a client."""

import json
from dataclasses import dataclass, field

import httpx2

from wharf.world.simulated import START_TIME_NS

SECOND_NS = 1_000_000_000
EPOCH_S = START_TIME_NS // SECOND_NS


class Clock:
    """A world whose time passes only in `sleep`."""

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
    """A host with a primary limit per window, and a secondary limit that tests switch on with `limit_for`."""

    clock: Clock
    limit: int = 60
    window_s: int = 3_600
    skew_s: float = 0.0
    sends_retry_after: bool = True
    etag: str = ""
    secondary_until_s: float = -1.0
    used: int = 0
    reset_s: float = -1.0
    has_refused_primary: bool = False
    requests: list[httpx2.Request] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    refusals: int = 0
    requests_while_limited: int = 0
    """Requests after a refusal, while that limit was still exceeded."""

    def limit_for(self, seconds: float) -> None:
        """Refuse all requests of this time by a secondary limit."""
        self.secondary_until_s = self.clock.elapsed_s + seconds
        self._has_refused = False

    _has_refused: bool = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self.reply(request)

    def reply(self, request: httpx2.Request) -> httpx2.Response:
        """Count a request and return the reply, which is a refusal while a limit is exceeded."""
        self.requests.append(request)
        now_s = self.clock.elapsed_s
        self.times_s.append(now_s)
        if now_s >= self.reset_s:
            self.reset_s, self.used, self.has_refused_primary = now_s + self.window_s, 0, False
        if now_s < self.secondary_until_s:
            self.requests_while_limited += self._has_refused
            self._has_refused = True
            self.refusals += 1
            retry_headers = (
                {"retry-after": str(int(self.secondary_until_s - now_s) + 1)} if self.sends_retry_after else {}
            )
            return self._build_response(403, "You have exceeded a secondary rate limit. Please wait.", retry_headers)
        if self.used >= self.limit:
            self.requests_while_limited += self.has_refused_primary
            self.has_refused_primary = True
            self.refusals += 1
            return self._build_response(403, "API rate limit exceeded for you.", {})
        if self.etag and request.headers.get("if-none-match") == self.etag:
            return self._build_response(304, "", {"etag": self.etag})
        self.used += 1
        return self._build_response(200, f"reply {len(self.requests)}", {"etag": self.etag} if self.etag else {})

    def _build_response(self, status: int, message: str, extra_headers: dict[str, str]) -> httpx2.Response:
        host_now_s = EPOCH_S + self.clock.elapsed_s + self.skew_s
        reset_s = int(EPOCH_S + self.reset_s + self.skew_s)
        reset_s += reset_s < EPOCH_S + self.reset_s + self.skew_s  # Rounded up, so that no client sends too early.
        headers = {
            "x-ratelimit-limit": str(self.limit),
            "x-ratelimit-used": str(self.used),
            "x-ratelimit-remaining": str(self.limit - self.used),
            "x-ratelimit-reset": str(reset_s),
            "x-ratelimit-resource": "core",
            "date": _format_http_date(host_now_s),
            **extra_headers,
        }
        body = b"" if status == 304 else json.dumps({"message": message}).encode()
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))


def _format_http_date(time_s: float) -> str:
    from email.utils import formatdate

    return formatdate(int(time_s), usegmt=True)

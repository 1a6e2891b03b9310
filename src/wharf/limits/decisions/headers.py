"""The headers of replies to admitted requests: renders the limiter's own, and filters those of the service.

`HeaderWriter` is the fast way to render rate limit headers: from one template for each bucket. Its result is the same, byte
for byte, as that of `core.responses.build_headers`, which it calls only if secondary limits are disclosed too.
"""

import datetime
import http
from collections.abc import Iterable
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.plans import Charge
from wharf.limits.core.responses import Headers, build_headers
from wharf.limits.core.rule import RuleSet

HeaderPair = tuple[bytes, bytes]
MAX_HEADER_TEMPLATES: Final = 4_096
"""Header templates in the cache of one `HeaderWriter`; limits memory."""
EXPOSED_HEADERS: Final = (
    "ETag, Link, Location, Retry-After, X-GitHub-OTP, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Used, "
    "X-RateLimit-Resource, X-RateLimit-Reset, X-OAuth-Scopes, X-Accepted-OAuth-Scopes, X-Poll-Interval, "
    "X-GitHub-Media-Type, X-GitHub-SSO, X-GitHub-Request-Id, Deprecation, Sunset, "
    "GitHub-Authentication-Token-Expiration, RateLimit, RateLimit-Policy"
)
"""Headers that scripts of other origins may read: without this list browsers hide the limits from them."""

REPLACED_HEADERS: Final = frozenset(
    {
        *(f"x-ratelimit-{name}".encode() for name in ("limit", "remaining", "used", "reset", "resource")),
        *(b"ratelimit", b"ratelimit-policy"),
    }
)
"""Headers of the application that the limiter replaces by its own."""
SCOPES_HEADER: Final = "x-oauth-scopes"
EXPIRY_HEADER: Final = "github-authentication-token-expiration"
MARK_PREFIX: Final = b"x-wharf-"
"""A mark is a reply header with this prefix, by which the service reports usage to the limiter; it is never forwarded."""
CPU_MARK_HEADER: Final = b"x-wharf-cpu-ms"
CONTENT_MARK_HEADER: Final = b"x-wharf-content"
MAX_ROUTE_BYTES: Final = 512
"""A longer route is ignored; limits memory. The mark counts."""
MAX_PLAIN_NAMES: Final = 1_024
"""Names of reply headers that are remembered as plain; limits memory."""
MAX_PLAIN_NAME_BYTES: Final = 64
"""Longer names are not remembered; limits memory."""
_PLAIN_NAMES: Final[set[bytes]] = set()
"""Names of reply headers, as services write them, that are always passed on. To look one up is faster than to compare it."""
MAX_CPU_DIGITS: Final = 9
"""Longer numbers of milliseconds are malformed; a request does not run for weeks."""


class _HeaderTemplate(msgspec.Struct, frozen=True, gc=False):
    """The rate limit headers of one bucket with placeholders for the numbers that change with each request."""

    block: bytes
    """All headers as lines, with `%d` for each number."""
    limit: HeaderPair
    resource: HeaderPair
    policy: HeaderPair
    remaining: bytes
    """The value of the `ratelimit` header, with `%d` for each number."""


class HeaderWriter:
    """Renders the rate limit headers of admitted requests under one set of rules, from cached templates."""

    def __init__(self, rules: RuleSet, id_header: str) -> None:
        self.rules: Final = rules
        self._id_name = id_header.encode()
        self._has_secondary = rules.disclose_secondary
        self._templates: dict[tuple[str, int], _HeaderTemplate] = {}

    def _get_template(self, charge: Charge) -> _HeaderTemplate:
        """Return the template of a bucket from the cache; build it if it is missing."""
        key = (charge.name, charge.ceiling)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_HEADER_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = _build_template(charge, self._id_name)
        return template

    def render_block(self, request_id: str, decision: LimitDecision) -> bytes:
        """Return the rate limit headers and the request id of an admitted request, as lines of an HTTP/1.1 head."""
        if self._has_secondary:
            return encode_headers([*build_headers(decision, self.rules), (self._id_name.decode(), request_id)])
        charge = decision.plan.bucket_charge if decision.plan.is_free else decision.charges[0]
        if not charge.is_enforced:  # A bucket in shadow mode is not reported.
            return b"%s: %s\r\n" % (self._id_name, request_id.encode())
        used, remaining, reset_s, wait_s = _compute_numbers(decision)
        template = self._templates.get((charge.name, charge.ceiling)) or self._get_template(charge)
        return template.block % (
            remaining,
            used,
            reset_s,
            remaining,
            wait_s,
            request_id.encode(),
        )

    def render_pairs(self, request_id: str, decision: LimitDecision) -> list[HeaderPair]:
        """Return the rate limit headers and the request id of an admitted request, as pairs of name and value."""
        if self._has_secondary:
            headers = [(name.encode(), value.encode()) for name, value in build_headers(decision, self.rules)]
            return [*headers, (self._id_name, request_id.encode())]
        charge = decision.plan.bucket_charge if decision.plan.is_free else decision.charges[0]
        if not charge.is_enforced:
            return [(self._id_name, request_id.encode())]
        used, remaining, reset_s, wait_s = _compute_numbers(decision)
        template = self._templates.get((charge.name, charge.ceiling)) or self._get_template(charge)
        return [
            template.limit,
            (b"x-ratelimit-remaining", b"%d" % remaining),
            (b"x-ratelimit-used", b"%d" % used),
            (b"x-ratelimit-reset", b"%d" % reset_s),
            template.resource,
            template.policy,
            (b"ratelimit", template.remaining % (remaining, wait_s)),
            (self._id_name, request_id.encode()),
        ]


def _compute_numbers(decision: LimitDecision) -> tuple[int, int, int, int]:
    """Return four numbers of the primary bucket: used, remaining, its end in Unix seconds, and the seconds until then."""
    plan, result = decision.plan, decision.result
    used, end_ms = result.bucket_count_before, result.bucket_end_ms
    if plan.is_free:
        charge = plan.bucket_charge
    else:
        charge = decision.charges[0]
        used += charge.cost
    ceiling = charge.ceiling
    if used > ceiling:
        used = ceiling
    wait_s = (end_ms - result.now_ms + 999) // 1_000
    return used, ceiling - used, (end_ms + 999) // 1_000, wait_s if wait_s > 0 else 0


def _build_template(charge: Charge, id_name: bytes) -> _HeaderTemplate:
    """Return the header template of the bucket of this charge. `id_name` is the name of the request id header."""
    name, limit = charge.name.encode(), charge.ceiling
    unit = b"" if charge.rule.counts.value == "requests" else b';qu="%s"' % charge.rule.counts.value.encode()
    resource = (charge.rule.resource or "").encode()
    policy = b'"%s";q=%d%s;w=%d' % (name, limit, unit, max(1, charge.rule.window_ms // 1_000))
    remaining = b'"%s";r=%%d;t=%%d' % name
    block = (
        b"x-ratelimit-limit: %d\r\nx-ratelimit-remaining: %%d\r\nx-ratelimit-used: %%d\r\nx-ratelimit-reset: %%d\r\n"
        b"x-ratelimit-resource: %s\r\nratelimit-policy: %s\r\nratelimit: %s\r\n%s: %%s\r\n"
        % (limit, resource, policy, remaining, id_name)
    )
    return _HeaderTemplate(
        block,
        (b"x-ratelimit-limit", b"%d" % limit),
        (b"x-ratelimit-resource", resource),
        (b"ratelimit-policy", policy),
        remaining,
    )


def build_token_headers(caller: Caller) -> Headers:
    """Return the headers that describe the caller's token: its scopes and its expiry, if it has them."""
    headers: Headers = ()
    if caller.scopes:
        # Clients split the value at ", ". Operators write scopes; those with characters not allowed in headers are left out.
        scopes = ", ".join(scope for scope in caller.scopes if scope.isascii() and scope.isprintable())
        headers = ((SCOPES_HEADER, scopes),)
    if caller.expires_ms is not None:
        expiry = datetime.datetime.fromtimestamp(caller.expires_ms / 1_000, tz=datetime.UTC)
        headers = (*headers, (EXPIRY_HEADER, expiry.strftime("%Y-%m-%d %H:%M:%S UTC")))
    return headers


def build_challenge(authorization: str | None) -> str:
    """Return the `WWW-Authenticate` header of a reply with status 401 to a request with this `Authorization` header.

    It names the scheme that the caller used. A browser opens a dialog only after `Basic`, so callers of other schemes get none.
    """
    if authorization is not None and authorization[:6].lower() == "basic ":
        return 'Basic realm="api", charset="UTF-8"'
    return 'Bearer realm="api", error="invalid_token"'


def encode_headers(headers: Headers | list[tuple[str, str]]) -> bytes:
    """Return headers as lines of an HTTP/1.1 head."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")


class ReplyMarks(msgspec.Struct, frozen=True, gc=False):
    """What the service reports to the limiter, in headers of its reply that begin with MARK_PREFIX."""

    measured_ms: int | None = None
    """The CPU time of the request."""
    is_content: bool = False
    """Whether the request created content."""
    content_route: str = ""
    """The route of the request, if the service names it: requests of the same route create content too."""


NO_MARKS: Final = ReplyMarks()


def read_mark(marks: ReplyMarks, name: bytes, value: bytes) -> ReplyMarks:
    """Return `marks`, what the service has reported so far, with one more `x-wharf-*` header of its reply applied.

    `name` is in lower case. Unknown and malformed headers are ignored.
    """
    if name == CPU_MARK_HEADER and value.isdigit() and len(value) <= MAX_CPU_DIGITS:
        return msgspec.structs.replace(marks, measured_ms=int(value))
    if name == CONTENT_MARK_HEADER:
        is_route = value.startswith(b"/")
        route = value.decode() if is_route and len(value) <= MAX_ROUTE_BYTES and value.isascii() else ""
        return msgspec.structs.replace(marks, is_content=is_route or value == b"1", content_route=route)
    return marks


def filter_reply_headers(
    headers: Iterable[HeaderPair], *, replaces_limits: bool, status: int = 200
) -> tuple[list[HeaderPair], ReplyMarks]:
    """Return a pair: the headers of the service's reply that are passed on to the caller, and the marks in the others.

    A mark is an `x-wharf-*` header by which the service reports CPU time or created content.

    With `replaces_limits`, the limiter adds its own headers, so those in REPLACED_HEADERS are left out. A reply with `status` 204
    has no body, so its `Content-Length` is left out: a caller that believed it would wait for a body.
    """
    passed: list[HeaderPair] = []
    marks = NO_MARKS
    for pair in headers:
        name = pair[0]
        if name in _PLAIN_NAMES or (name == b"content-length" and status != 204):
            passed.append(pair)  # The usual case.
            continue
        lower = name.lower()
        if lower in REPLACED_HEADERS and replaces_limits:
            continue
        if lower == b"content-length" and status == 204:
            continue
        if lower.startswith(MARK_PREFIX):
            marks = read_mark(marks, lower, pair[1])
            continue
        passed.append(pair)
        is_plain = lower not in REPLACED_HEADERS and lower != b"content-length"
        if is_plain and len(name) <= MAX_PLAIN_NAME_BYTES and len(_PLAIN_NAMES) < MAX_PLAIN_NAMES:
            _PLAIN_NAMES.add(name)
    return passed, marks


def get_reason_phrase(status: int) -> str:
    """Return the reason phrase of a status; "Unknown" for a status that HTTP does not define."""
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"

"""Renders the rate limit headers of replies to admitted requests, quickly: from one template for each bucket.

The result is the same, byte for byte, as that of `core.responses.build_headers`. That function is called instead if
secondary limits are disclosed too.
"""

import datetime
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.plans import Charge
from wharf.limits.core.responses import Headers, build_headers
from wharf.limits.core.rule import RuleSet

HeaderPair = tuple[bytes, bytes]
MAX_HEADER_TEMPLATES: Final = 4_096
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
CPU_MARK_HEADER: Final = b"x-wharf-cpu-ms"
CONTENT_MARK_HEADER: Final = b"x-wharf-content"


class _HeaderTemplate(msgspec.Struct, frozen=True, gc=False):
    """The constant parts of the headers of one bucket; `block` and `left` are formats for the numbers."""

    block: bytes
    limit: HeaderPair
    resource: HeaderPair
    policy: HeaderPair
    left: bytes


class HeaderWriter:
    """Renders headers under one set of rules."""

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
        """Return the headers of a reply to an admitted request as lines of an HTTP/1.1 head."""
        if self._has_secondary:
            return encode_headers([*build_headers(decision, self.rules), (self._id_name.decode(), request_id)])
        used, left, reset_s, left_s = _compute_numbers(decision)
        return self._get_template(decision.bucket_charge).block % (
            left,
            used,
            reset_s,
            left,
            left_s,
            request_id.encode(),
        )

    def render_pairs(self, request_id: str, decision: LimitDecision) -> list[HeaderPair]:
        """Return the headers of a reply to an admitted request as pairs of name and value."""
        if self._has_secondary:
            headers = [(name.encode(), value.encode()) for name, value in build_headers(decision, self.rules)]
            return [*headers, (self._id_name, request_id.encode())]
        used, left, reset_s, left_s = _compute_numbers(decision)
        charge = decision.plan.bucket_charge if decision.plan.is_free else decision.charges[0]
        template = self._templates.get((charge.name, charge.ceiling)) or self._get_template(charge)
        return [
            template.limit,
            (b"x-ratelimit-remaining", b"%d" % left),
            (b"x-ratelimit-used", b"%d" % used),
            (b"x-ratelimit-reset", b"%d" % reset_s),
            template.resource,
            template.policy,
            (b"ratelimit", template.left % (left, left_s)),
            (self._id_name, request_id.encode()),
        ]


def _compute_numbers(decision: LimitDecision) -> tuple[int, int, int, int]:
    """Return the used and remaining requests, the reset as epoch second, and the seconds until the reset."""
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
    left_s = (end_ms - result.now_ms + 999) // 1_000
    return used, ceiling - used, (end_ms + 999) // 1_000, left_s if left_s > 0 else 0


def _build_template(charge: Charge, id_name: bytes) -> _HeaderTemplate:
    """Return the header template of the bucket of this charge."""
    name, limit = charge.name.encode(), charge.ceiling
    unit = b"" if charge.rule.counts.value == "requests" else b';qu="%s"' % charge.rule.counts.value.encode()
    resource = (charge.rule.resource or "").encode()
    policy = b'"%s";q=%d%s;w=%d' % (name, limit, unit, max(1, charge.rule.window_ms // 1_000))
    left = b'"%s";r=%%d;t=%%d' % name
    block = (
        b"x-ratelimit-limit: %d\r\nx-ratelimit-remaining: %%d\r\nx-ratelimit-used: %%d\r\nx-ratelimit-reset: %%d\r\n"
        b"x-ratelimit-resource: %s\r\nratelimit-policy: %s\r\nratelimit: %s\r\n%s: %%s\r\n"
        % (limit, resource, policy, left, id_name)
    )
    return _HeaderTemplate(
        block,
        (b"x-ratelimit-limit", b"%d" % limit),
        (b"x-ratelimit-resource", resource),
        (b"ratelimit-policy", policy),
        left,
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


def encode_headers(headers: Headers | list[tuple[str, str]]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")


def read_milliseconds(value: bytes) -> int | None:
    """Return the value of a header as a number of milliseconds, or `None` if it is not one of up to 9 digits."""
    return int(value) if value.isdigit() and len(value) <= 9 else None

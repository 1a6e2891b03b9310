"""The headers of replies, written quickly: of a bucket all that stays the same is made once.

They are those of `core.answer.headers_of`, byte for byte (tested). Where secondary limits are told too, that is asked.
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
"""What pages of other origins may read: without it browsers hide the limits from scripts."""

REPLACED_HEADERS: Final = frozenset(
    {
        *(f"x-ratelimit-{name}".encode() for name in ("limit", "remaining", "used", "reset", "resource")),
        *(b"ratelimit", b"ratelimit-policy"),
    }
)
"""Headers of the application that the limiter's own take the place of."""
SCOPES_HEADER: Final = "x-oauth-scopes"
EXPIRY_HEADER: Final = "github-authentication-token-expiration"
MARK_PREFIX: Final = b"x-wharf-"
CPU_MARK_HEADER: Final = b"x-wharf-cpu-ms"
CONTENT_MARK_HEADER: Final = b"x-wharf-content"


class _Form(msgspec.Struct, frozen=True, gc=False):
    block: bytes
    limit: HeaderPair
    resource: HeaderPair
    policy: HeaderPair
    left: bytes


class HeaderWriter:
    def __init__(self, rules: RuleSet, id_header: str) -> None:
        self.rules: Final = rules
        self._id_name = id_header.encode()
        self._tells_all = rules.disclose_secondary
        self._forms: dict[tuple[str, int], _Form] = {}

    def _form(self, charge: Charge) -> _Form:
        key = (charge.name, charge.ceiling)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= MAX_HEADER_TEMPLATES:
                self._forms.clear()
            form = self._forms[key] = _form_of(charge, self._id_name)
        return form

    def render_block(self, request_id: str, decision: LimitDecision) -> bytes:
        """All headers of a reply to an admitted request, as they stand in its head."""
        if self._tells_all:
            return encode_headers([*build_headers(decision, self.rules), (self._id_name.decode(), request_id)])
        used, left, reset_s, left_s = _numbers(decision)
        return self._form(decision.bucket_charge).block % (left, used, reset_s, left, left_s, request_id.encode())

    def render_pairs(self, request_id: str, decision: LimitDecision) -> list[HeaderPair]:
        """The same as pairs."""
        if self._tells_all:
            told = [(name.encode(), value.encode()) for name, value in build_headers(decision, self.rules)]
            return [*told, (self._id_name, request_id.encode())]
        used, left, reset_s, left_s = _numbers(decision)
        shown = decision.plan.bucket_charge if decision.plan.is_free else decision.charges[0]
        form = self._forms.get((shown.name, shown.ceiling)) or self._form(shown)
        return [
            form.limit,
            (b"x-ratelimit-remaining", b"%d" % left),
            (b"x-ratelimit-used", b"%d" % used),
            (b"x-ratelimit-reset", b"%d" % reset_s),
            form.resource,
            form.policy,
            (b"ratelimit", form.left % (left, left_s)),
            (self._id_name, request_id.encode()),
        ]


def _numbers(decision: LimitDecision) -> tuple[int, int, int, int]:
    plan, taken = decision.plan, decision.result
    used, end_ms = taken.bucket_count_before, taken.bucket_end_ms
    if plan.is_free:
        shown = plan.bucket_charge
    else:
        shown = decision.charges[0]
        used += shown.cost
    ceiling = shown.ceiling
    if used > ceiling:
        used = ceiling
    left_s = (end_ms - taken.now_ms + 999) // 1_000
    return used, ceiling - used, (end_ms + 999) // 1_000, left_s if left_s > 0 else 0


def _form_of(charge: Charge, id_name: bytes) -> _Form:
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
    return _Form(
        block,
        (b"x-ratelimit-limit", b"%d" % limit),
        (b"x-ratelimit-resource", resource),
        (b"ratelimit-policy", policy),
        left,
    )


def build_token_headers(caller: Caller) -> Headers:
    """What replies tell of the token that was shown: what it may be used for, and until when."""
    told: Headers = ()
    if caller.scopes:
        # As clients take it apart. What no header may hold was written by an operator, and is left out.
        scopes = ", ".join(scope for scope in caller.scopes if scope.isascii() and scope.isprintable())
        told = ((SCOPES_HEADER, scopes),)
    if caller.expires_ms is not None:
        moment = datetime.datetime.fromtimestamp(caller.expires_ms / 1_000, tz=datetime.UTC)
        told = (*told, (EXPIRY_HEADER, moment.strftime("%Y-%m-%d %H:%M:%S UTC")))
    return told


def encode_headers(headers: Headers | list[tuple[str, str]]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")


def read_milliseconds(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) <= 9 else None

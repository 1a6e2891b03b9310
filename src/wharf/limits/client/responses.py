"""What an answer says about limits: a reading of status, headers and, where the status asks for it, the body."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final, NamedTuple

import msgspec

LIMITED_STATUSES: Final = (403, 429)
MAX_BODY_BYTES: Final = 1 << 20
SECOND_NS: Final = 1_000_000_000


class LimitKind(Enum):
    PRIMARY = "primary"
    SECONDARY = "secondary"


class ResponseLimits(NamedTuple):
    status: int
    exceeded_kind: LimitKind | None
    resource: str  # Empty where the answer does not say.
    limit: int | None
    used: int | None
    remaining: int | None
    reset_ns: int | None  # On this machine's clock: a host whose clock is off is not asked too early.
    retry_after_ns: int | None  # A length of time.


class _Error(msgspec.Struct):
    type: str = ""


class _Body(msgspec.Struct):
    message: str = ""
    documentation_url: str = ""
    errors: list[_Error] = []


def needs_body(status: int, *, is_graphql: bool) -> bool:
    """Whether one must look into the body to know if this is a limit."""
    return status in LIMITED_STATUSES or (is_graphql and status == 200)


def read_response_limits(
    status: int, headers: Mapping[str, str], body: bytes, now_ns: int, *, is_graphql: bool
) -> ResponseLimits:
    """`headers` by lower-case names. What is no number counts as not said."""
    remaining, limit = _count(headers, "x-ratelimit-remaining"), _count(headers, "x-ratelimit-limit")
    used = _count(headers, "x-ratelimit-used")
    if used is None and limit is not None and remaining is not None:
        used = max(limit - remaining, 0)
    said = _body(body) if needs_body(status, is_graphql=is_graphql) else _Body()
    retry_after_ns = _retry_after_ns(headers.get("retry-after", ""), _date_ns(headers.get("date", "")) or now_ns)
    return ResponseLimits(
        status,
        _limited(status, said, remaining, has_retry_after=retry_after_ns is not None, is_graphql=is_graphql),
        headers.get("x-ratelimit-resource", "")[:100],
        limit,
        used,
        remaining,
        _reset_ns(headers, now_ns),
        retry_after_ns,
    )


def _limited(
    status: int, said: _Body, remaining: int | None, *, has_retry_after: bool, is_graphql: bool
) -> LimitKind | None:
    if is_graphql and status == 200:
        return LimitKind.PRIMARY if any(error.type == "RATE_LIMITED" for error in said.errors) else None
    if status not in LIMITED_STATUSES:
        return None
    message = said.message.lower()
    if "secondary rate" in message or said.documentation_url.endswith("secondary-rate-limits"):
        return LimitKind.SECONDARY
    if remaining == 0 or "rate limit exceeded" in message:
        return LimitKind.PRIMARY
    # A 403 without any of the signs is about rights, and waiting does not help.
    return LimitKind.SECONDARY if status == 429 or has_retry_after else None


def _body(body: bytes) -> _Body:
    try:
        return msgspec.json.decode(body[:MAX_BODY_BYTES], type=_Body)
    except (msgspec.MsgspecError, RecursionError):
        return _Body()


def _count(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _reset_ns(headers: Mapping[str, str], now_ns: int) -> int | None:
    reset_s = _count(headers, "x-ratelimit-reset")
    if reset_s is None or reset_s > 1 << 40:
        return None
    there_ns = _date_ns(headers.get("date", ""))
    # The host's date is cut to seconds, so its moment may be up to a second later than it says.
    skew_ns = 0 if there_ns is None else now_ns - there_ns
    return reset_s * SECOND_NS + skew_ns + (SECOND_NS if there_ns is not None else 0)


def _retry_after_ns(text: str, there_ns: int) -> int | None:
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return int(text) * SECOND_NS
    until_ns = _date_ns(text)
    return None if until_ns is None else max(until_ns - there_ns, 0) + SECOND_NS


def _date_ns(text: str) -> int | None:
    if not text:
        return None
    try:
        moment: datetime = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * SECOND_NS

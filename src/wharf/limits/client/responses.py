"""Reads what a response reports about limits: from its status, its headers and, for some statuses, its body."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final, NamedTuple

import msgspec

LIMITED_STATUSES: Final = (403, 429)
MAX_BODY_BYTES: Final = 1 << 20
"""At most this much of a body is parsed; limits processor time."""
SECOND_NS: Final = 1_000_000_000


class LimitKind(Enum):
    """The kind of limit that refused a request."""

    PRIMARY = "primary"
    SECONDARY = "secondary"


class ResponseLimits(NamedTuple):
    """What a response reports about limits. Values that it does not report, or not as a number, are `None`."""

    status: int
    exceeded_kind: LimitKind | None
    """`None` if no limit refused the request."""
    resource: str
    """Empty if the response does not name it."""
    limit: int | None
    used: int | None
    remaining: int | None
    reset_ns: int | None
    """By the clock of this machine, so that a host whose clock is wrong does not get requests too early."""
    retry_after_ns: int | None
    """How long to wait before the request is sent again."""


class _ErrorEntry(msgspec.Struct):
    """An entry of `errors` in a GraphQL response."""

    type: str = ""


class _ResponseBody(msgspec.Struct):
    """The fields of an error body of GitHub that show which limit refused a request."""

    message: str = ""
    documentation_url: str = ""
    errors: list[_ErrorEntry] = []


def needs_body(status: int, *, is_graphql: bool) -> bool:
    """Return whether the body is needed to find out if a limit refused the request."""
    return status in LIMITED_STATUSES or (is_graphql and status == 200)


def read_response_limits(
    status: int, headers: Mapping[str, str], body: bytes, now_ns: int, *, is_graphql: bool
) -> ResponseLimits:
    """Return what a response reports about limits. The names of `headers` are in lower case."""
    remaining, limit = _read_number(headers, "x-ratelimit-remaining"), _read_number(headers, "x-ratelimit-limit")
    used = _read_number(headers, "x-ratelimit-used")
    if used is None and limit is not None and remaining is not None:
        used = max(limit - remaining, 0)
    parsed_body = _parse_body(body) if needs_body(status, is_graphql=is_graphql) else _ResponseBody()
    retry_after_ns = _read_retry_after_ns(
        headers.get("retry-after", ""), _read_date_ns(headers.get("date", "")) or now_ns
    )
    return ResponseLimits(
        status,
        _find_exceeded_kind(
            status, parsed_body, remaining, has_retry_after=retry_after_ns is not None, is_graphql=is_graphql
        ),
        headers.get("x-ratelimit-resource", "")[:100],
        limit,
        used,
        remaining,
        _read_reset_ns(headers, now_ns),
        retry_after_ns,
    )


def _find_exceeded_kind(
    status: int, body: _ResponseBody, remaining: int | None, *, has_retry_after: bool, is_graphql: bool
) -> LimitKind | None:
    """Return the kind of limit that refused the request; `None` if no limit did."""
    if is_graphql and status == 200:
        return LimitKind.PRIMARY if any(error.type == "RATE_LIMITED" for error in body.errors) else None
    if status not in LIMITED_STATUSES:
        return None
    message = body.message.lower()
    if "secondary rate" in message or body.documentation_url.endswith("secondary-rate-limits"):
        return LimitKind.SECONDARY
    if remaining == 0 or "rate limit exceeded" in message:
        return LimitKind.PRIMARY
    # A 403 without any of these signs is about missing permissions; waiting does not help.
    return LimitKind.SECONDARY if status == 429 or has_retry_after else None


def _parse_body(body: bytes) -> _ResponseBody:
    """Return the parsed body; all fields are empty if it is not JSON of this form."""
    try:
        return msgspec.json.decode(body[:MAX_BODY_BYTES], type=_ResponseBody)
    except (msgspec.MsgspecError, RecursionError):
        return _ResponseBody()


def _read_number(headers: Mapping[str, str], name: str) -> int | None:
    """Return the value of a header as a number; `None` if it is missing or not a number."""
    text = headers.get(name, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _read_reset_ns(headers: Mapping[str, str], now_ns: int) -> int | None:
    """Return when the limit is reset, by the clock of this machine; `None` if the host does not report it.

    The difference between both clocks is computed from the `date` header.
    """
    reset_s = _read_number(headers, "x-ratelimit-reset")
    if reset_s is None or reset_s > 1 << 40:
        return None
    host_now_ns = _read_date_ns(headers.get("date", ""))
    if host_now_ns is None:
        return reset_s * SECOND_NS
    # The host cuts its date to seconds, so its clock can be up to a second ahead of it.
    return reset_s * SECOND_NS + now_ns - host_now_ns + SECOND_NS


def _read_retry_after_ns(text: str, host_now_ns: int) -> int | None:
    """Return the duration in a `retry-after` header, which holds seconds or a date; `None` for anything else."""
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return int(text) * SECOND_NS
    until_ns = _read_date_ns(text)
    return None if until_ns is None else max(until_ns - host_now_ns, 0) + SECOND_NS


def _read_date_ns(text: str) -> int | None:
    """Return an HTTP date in Unix nanoseconds; `None` if the text is not a date."""
    if not text:
        return None
    try:
        date: datetime = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return int(date.timestamp()) * SECOND_NS

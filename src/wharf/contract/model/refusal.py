"""Saying no: a code for machines and a sentence for people.

A `Refusal` is an expected answer, not a fault: the caller asked for something that is not to be had. Which HTTP status
a code becomes, and back, is told by one table in `wire.errors`.
"""

import enum


class RefusalCode(enum.StrEnum):
    INVALID = "invalid"  # The request itself is wrong; asking again will not help.
    FORBIDDEN = "forbidden"
    UNAUTHENTICATED = "unproven"  # A login that proves nothing.
    NOT_FOUND = "unknown"  # The thing named does not exist.
    CONFLICT = "conflict"  # True a moment ago, no longer: read again and decide again.
    TOO_LARGE = "too-large"
    RATE_LIMITED = "limited"
    UNSUPPORTED = "unsupported"  # A form of the answer that is not to be had.
    NOT_IMPLEMENTED = "not-ours"  # A part of the peer's interface that this product leaves out.
    NO_LEADER = "no-leader"
    UNAVAILABLE = "unavailable"  # The log takes no writes just now.
    OUTCOME_UNKNOWN = "undecided"  # Nobody can tell whether the write happened.


class Refusal(Exception):
    def __init__(self, code: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def invalid_request(text: str) -> Refusal:
    return Refusal(RefusalCode.INVALID, text)


def not_found(text: str) -> Refusal:
    return Refusal(RefusalCode.NOT_FOUND, text)


def no_leader() -> Refusal:
    return Refusal(RefusalCode.NO_LEADER, "No cluster leader")

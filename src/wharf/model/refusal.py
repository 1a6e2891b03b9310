"""Saying no: a code for machines and a sentence for people.

A `Refusal` is an expected answer, not a fault: the caller asked for something that is not to be had. Which HTTP status
a code becomes, and back, is told by one table in `wire.errors`.
"""

import enum


class Code(enum.StrEnum):
    INVALID = "invalid"  # The request itself is wrong; asking again will not help.
    FORBIDDEN = "forbidden"
    UNPROVEN = "unproven"  # A login that proves nothing.
    UNKNOWN = "unknown"  # The thing named does not exist.
    CONFLICT = "conflict"  # True a moment ago, no longer: read again and decide again.
    TOO_LARGE = "too-large"
    LIMITED = "limited"
    UNSUPPORTED = "unsupported"  # A form of the answer that is not to be had.
    NOT_OURS = "not-ours"  # A part of the peer's interface that this product leaves out.
    NO_LEADER = "no-leader"
    UNAVAILABLE = "unavailable"  # The log takes no writes just now.
    UNDECIDED = "undecided"  # Nobody can tell whether the write happened.


class Refusal(Exception):
    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def invalid(text: str) -> Refusal:
    return Refusal(Code.INVALID, text)


def unknown(text: str) -> Refusal:
    return Refusal(Code.UNKNOWN, text)


def no_leader() -> Refusal:
    return Refusal(Code.NO_LEADER, "No cluster leader")

"""What neighbours say to each other: frames of a length and a message. Both are the same program, so the form has no age.

A plan is packed once and known again by its bytes, on both sides. Nothing of a rule is sent but its name.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from wharf.limits.core.call import Call, Taken
from wharf.limits.core.plan import Charge
from wharf.limits.core.rule import BanRules

LENGTH_BYTES: Final = 4
FRAME_BYTES_MOST: Final = 1 << 24


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A charge, with its rule by name."""

    name: str
    key: str
    ceiling: int
    cost: int
    needs: int
    is_enforced: bool
    spare_key: str
    owner: str


class ToldPlan(msgspec.Struct, frozen=True, array_like=True):
    charges: tuple[Told, ...]
    shown: Told | None
    """Where it is none of the charges."""
    leases: tuple[int, ...]
    bounded: tuple[int, ...]
    ban_subject: str
    ban_is_shadow: bool
    ban: BanRules


class Take(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    number: int
    id: str
    plan: bytes


class Release(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    number: int
    id: str
    slots: list[tuple[str, str]]
    """Rule and key of each, for a counting process that began after the request."""


class Renew(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    number: int
    held: list[tuple[str, list[tuple[str, str]]]]


class GiveBackAsked(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    number: int
    id: str
    is_fault: bool


class Undo(msgspec.Struct, frozen=True, array_like=True, tag="u", gc=False):
    number: int
    id: str


class Spend(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    number: int
    charges: list[Told]
    amount: int


class Peek(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    number: int
    charges: list[Told]


class Reset(msgspec.Struct, frozen=True, array_like=True, tag="z"):
    number: int
    charges: list[Told]


class Ban(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    number: int
    subject: str
    until_ms: int


class BannedUntil(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    number: int
    subject: str


class ReadBoard(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    number: int
    known: int


class WriteBoard(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    number: int
    name: str
    value: bytes | None


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="h", gc=False):
    """Whether somebody is there."""

    number: int


Message = (
    Take
    | Release
    | Renew
    | GiveBackAsked
    | Undo
    | Spend
    | Peek
    | Reset
    | Ban
    | BannedUntil
    | ReadBoard
    | WriteBoard
    | Hello
)


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    value: Any  # What was asked for says which kind it is.
    problem: str = ""
    """Why there is no value."""


_encode: Final = msgspec.msgpack.Encoder().encode
read_message: Final = msgspec.msgpack.Decoder(Message).decode
read_answer: Final = msgspec.msgpack.Decoder(Answer).decode
read_plan: Final = msgspec.msgpack.Decoder(ToldPlan).decode


def frame_of(value: Message | Answer) -> bytes:
    data = _encode(value)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class FrameTooLong(Exception):
    """These are no frames of ours."""


def take_frames(buffer: bytearray) -> Iterator[bytes]:
    """The frames that are whole; they are taken out of the buffer. Raises FrameTooLong."""
    at, end = 0, len(buffer)
    while end - at >= LENGTH_BYTES:
        size = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
        if size > FRAME_BYTES_MOST:
            raise FrameTooLong
        if end - at - LENGTH_BYTES < size:
            break
        yield bytes(buffer[at + LENGTH_BYTES : at + LENGTH_BYTES + size])
        at += LENGTH_BYTES + size
    del buffer[:at]


def told(charge: Charge) -> Told:
    return Told(
        charge.name,
        charge.key,
        charge.ceiling,
        charge.cost,
        charge.needs,
        charge.is_enforced,
        charge.spare_key,
        charge.owner,
    )


def told_all(charges: Iterable[Charge]) -> list[Told]:
    return [told(charge) for charge in charges]


def pack_plan(call: Call) -> bytes:
    plan = call.plan
    shown = told(plan.shown) if plan.is_free else None
    charges = tuple(told(charge) for charge in call.charges)
    return _encode(ToldPlan(charges, shown, plan.leases, plan.bounded, plan.ban_subject, plan.ban_is_shadow, call.ban))


def taken_told(taken: Taken) -> list[Any]:
    return [
        taken.admitted,
        taken.now_ms,
        taken.befores,
        taken.hits,
        taken.free_at_ms,
        taken.keys,
        taken.shown_before,
        taken.shown_end_ms,
        taken.banned_until_ms,
        taken.is_repeated,
    ]


def taken_of(value: list[Any]) -> Taken:
    admitted, now_ms, befores, hits, free_at_ms, keys, *rest = value
    return Taken(admitted, now_ms, tuple(befores), tuple(hits), tuple(free_at_ms), tuple(keys), *rest)

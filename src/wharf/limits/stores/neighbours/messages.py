"""What neighbours say to each other: frames of a length and a message. Both are the same program, so the form has no age.

A plan is packed once and known again by its bytes, on both sides. Nothing of a rule is sent but its name.

The names of Unix sockets, which must be short though their folders may lie deep.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import BanRules
from wharf.limits.core.store_calls import StoreCall, TakeResult

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 1 << 24


class WireCharge(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A charge, with its rule by name."""

    name: str
    key: str
    ceiling: int
    cost: int
    required: int
    is_enforced: bool
    overflow_key: str
    owner: str


class WirePlan(msgspec.Struct, frozen=True, array_like=True):
    charges: tuple[WireCharge, ...]
    bucket_charge: WireCharge | None
    """Where it is none of the charges."""
    lease_indexes: tuple[int, ...]
    bounded_indexes: tuple[int, ...]
    ban_subject: str
    is_ban_shadow: bool
    ban_rules: BanRules


class TakeRequest(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    number: int
    id: str
    plan: bytes


class ReleaseRequest(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    number: int
    id: str
    slots: list[tuple[str, str]]
    """Rule and key of each, for a counting process that began after the request."""


class RenewRequest(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    number: int
    held: list[tuple[str, list[tuple[str, str]]]]


class RefundRequest(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    number: int
    id: str
    is_fault: bool


class UndoRequest(msgspec.Struct, frozen=True, array_like=True, tag="u", gc=False):
    number: int
    id: str


class AddUsageRequest(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    number: int
    charges: list[WireCharge]
    amount: int


class PeekRequest(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    number: int
    charges: list[WireCharge]


class ResetRequest(msgspec.Struct, frozen=True, array_like=True, tag="z"):
    number: int
    charges: list[WireCharge]


class BanRequest(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    number: int
    subject: str
    until_ms: int


class BanEndRequest(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    number: int
    subject: str


class ReadOverridesRequest(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    number: int
    known_version: int


class WriteOverrideRequest(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    number: int
    name: str
    value: bytes | None


class HelloRequest(msgspec.Struct, frozen=True, array_like=True, tag="h", gc=False):
    """Whether somebody is there."""

    number: int


CounterRequest = (
    TakeRequest
    | ReleaseRequest
    | RenewRequest
    | RefundRequest
    | UndoRequest
    | AddUsageRequest
    | PeekRequest
    | ResetRequest
    | BanRequest
    | BanEndRequest
    | ReadOverridesRequest
    | WriteOverrideRequest
    | HelloRequest
)


class CounterReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    value: Any  # What was asked for says which kind it is.
    error: str = ""
    """Why there is no value."""


_encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(CounterRequest).decode
decode_reply: Final = msgspec.msgpack.Decoder(CounterReply).decode
decode_plan: Final = msgspec.msgpack.Decoder(WirePlan).decode


def encode_frame(value: CounterRequest | CounterReply) -> bytes:
    data = _encode(value)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


class FrameTooLong(Exception):
    """These are no frames of ours."""


def split_frames(buffer: bytearray) -> Iterator[bytes]:
    """The frames that are whole; they are taken out of the buffer. Raises FrameTooLong."""
    at, end = 0, len(buffer)
    while end - at >= LENGTH_BYTES:
        size = int.from_bytes(buffer[at : at + LENGTH_BYTES], "big")
        if size > MAX_FRAME_BYTES:
            raise FrameTooLong
        if end - at - LENGTH_BYTES < size:
            break
        yield bytes(buffer[at + LENGTH_BYTES : at + LENGTH_BYTES + size])
        at += LENGTH_BYTES + size
    del buffer[:at]


def encode_charge(charge: Charge) -> WireCharge:
    return WireCharge(
        charge.name,
        charge.key,
        charge.ceiling,
        charge.cost,
        charge.required,
        charge.is_enforced,
        charge.overflow_key,
        charge.owner,
    )


def encode_charges(charges: Iterable[Charge]) -> list[WireCharge]:
    return [encode_charge(charge) for charge in charges]


def encode_plan(call: StoreCall) -> bytes:
    plan = call.plan
    shown = encode_charge(plan.bucket_charge) if plan.is_free else None
    charges = tuple(encode_charge(charge) for charge in call.charges)
    return _encode(
        WirePlan(
            charges,
            shown,
            plan.lease_indexes,
            plan.bounded_indexes,
            plan.ban_subject,
            plan.is_ban_shadow,
            call.ban_rules,
        )
    )


def encode_result(result: TakeResult) -> list[Any]:
    return [
        result.is_admitted,
        result.now_ms,
        result.counts_before,
        result.hit_indexes,
        result.free_at_ms,
        result.keys,
        result.bucket_count_before,
        result.bucket_end_ms,
        result.banned_until_ms,
        result.is_repeated,
    ]


def decode_result(value: list[Any]) -> TakeResult:
    admitted, now_ms, befores, hits, free_at_ms, keys, *rest = value
    return TakeResult(admitted, now_ms, tuple(befores), tuple(hits), tuple(free_at_ms), tuple(keys), *rest)


@contextlib.contextmanager
def open_socket_path(path: Path) -> Iterator[str]:
    """A name for this socket by way of its open folder, good while this lasts."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

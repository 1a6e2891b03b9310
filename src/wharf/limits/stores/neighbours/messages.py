"""The messages between neighbour processes and the counter server: frames of a length and a msgpack value.

Both sides run the same version, so the format has no version number. A plan is encoded once and recognized by its
bytes on both sides. Rules are sent by name only.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import BanRules
from wharf.limits.core.store_calls import StoreCall, TakeResult

MAX_FRAME_BYTES: Final = 1 << 24
"""Longer frames are treated as an error of the sender, so that they cannot fill the memory."""


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
    """A charge plan, with what a store needs of it."""

    charges: tuple[WireCharge, ...]
    bucket_charge: WireCharge | None
    """Set only if it is not one of the charges."""
    lease_indexes: tuple[int, ...]
    bounded_indexes: tuple[int, ...]
    ban_subject: str
    is_ban_shadow: bool
    ban_rules: BanRules


class TakeRequest(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    """Check and charge."""

    number: int
    id: str
    plan: bytes


class ReleaseRequest(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """End a request."""

    number: int
    id: str
    slots: list[tuple[str, str]]
    """Rule and key of each slot, for a server that was restarted after the request began."""


class RenewRequest(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """Extend the leases of requests."""

    number: int
    held: list[tuple[str, list[tuple[str, str]]]]


class RefundRequest(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """Return the primary charge of a request."""

    number: int
    id: str
    is_fault: bool


class UndoRequest(msgspec.Struct, frozen=True, array_like=True, tag="u", gc=False):
    """Undo the charges of a request."""

    number: int
    id: str


class AddUsageRequest(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Charge usage that is known only after the request."""

    number: int
    charges: list[WireCharge]
    amount: int


class PeekRequest(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Read counters."""

    number: int
    charges: list[WireCharge]


class ResetRequest(msgspec.Struct, frozen=True, array_like=True, tag="z"):
    """Set counters to 0."""

    number: int
    charges: list[WireCharge]


class BanRequest(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """Ban a subject."""

    number: int
    subject: str
    until_ms: int


class BanEndRequest(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    """Read when a ban ends."""

    number: int
    subject: str


class ReadOverridesRequest(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """Read the overrides of operators."""

    number: int
    known_version: int


class WriteOverrideRequest(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """Store or delete an override."""

    number: int
    name: str
    value: bytes | None


class HelloRequest(msgspec.Struct, frozen=True, array_like=True, tag="h", gc=False):
    """Check whether the server replies."""

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
    """The reply to a request."""

    number: int
    value: Any  # Its type depends on the request.
    error: str = ""
    """Why there is no value."""


decode_request: Final = msgspec.msgpack.Decoder(CounterRequest).decode
decode_reply: Final = msgspec.msgpack.Decoder(CounterReply).decode
decode_plan: Final = msgspec.msgpack.Decoder(WirePlan).decode


def encode_charge(charge: Charge) -> WireCharge:
    """Return a charge in the form of the wire."""
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
    """Return the encoded plan of a call, with the call's ceilings."""
    plan = call.plan
    bucket_charge = encode_charge(plan.bucket_charge) if plan.is_free else None
    charges = tuple(encode_charge(charge) for charge in call.charges)
    return msgspec.msgpack.encode(
        WirePlan(
            charges,
            bucket_charge,
            plan.lease_indexes,
            plan.bounded_indexes,
            plan.ban_subject,
            plan.is_ban_shadow,
            call.ban_rules,
        )
    )


def encode_result(result: TakeResult) -> list[Any]:
    """Return a result as a list, which `decode_result` reads."""
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
    """Return the result that `encode_result` encoded."""
    is_admitted, now_ms, counts_before, hit_indexes, free_at_ms, keys, *rest = value
    return TakeResult(
        is_admitted, now_ms, tuple(counts_before), tuple(hit_indexes), tuple(free_at_ms), tuple(keys), *rest
    )

"""The messages between neighbour processes and the counter server: frames of a length and a msgpack value.

Both sides run the same version, so the format has no version number. A charge plan is encoded once and recognized by its
bytes on both sides. Rules are sent by name only. The first field of each request, `number`, is its number on its
connection; the reply repeats it. `id` is the id of the HTTP request that the limits apply to.
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
    """A charge as it is sent: one limit that applies to a request, with its counter and cost."""

    name: str
    """The name of the rule."""
    key: str
    ceiling: int
    cost: int
    required: int
    is_enforced: bool
    overflow_key: str
    owner: str


class WirePlan(msgspec.Struct, frozen=True, array_like=True):
    """A charge plan as it is sent: every limit that applies to a request, with what the counter server needs of it."""

    charges: tuple[WireCharge, ...]
    """The charges to check; a request is charged for all of them or for none."""
    bucket_charge: WireCharge | None
    """The primary bucket that headers report; set only if it is not one of the charges, for a request free of charge."""
    lease_indexes: tuple[int, ...]
    """Indexes of the charges that hold a concurrency slot."""
    overflow_key_indexes: tuple[int, ...]
    """Indexes of the charges that have an overflow key."""
    ban_subject: str
    """What a ban applies to: an app, a token or an address."""
    is_ban_shadow: bool
    """Whether a ban is only recorded, not enforced."""
    ban_rules: BanRules


class TakeRequest(msgspec.Struct, frozen=True, array_like=True, tag="t", gc=False):
    """A request to check all limits of a charge plan, and to charge all of them or none."""

    number: int  # The number of this message; the reply repeats it.
    id: str  # The id of the HTTP request.
    plan: bytes
    """An encoded `WirePlan`."""


class ReleaseRequest(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """A request to end an HTTP request and free its concurrency slots."""

    number: int  # The number of this message; the reply repeats it.
    id: str  # The id of the HTTP request.
    slots: list[tuple[str, str]]
    """Rule and key of each slot, for a server that was restarted after the request began."""


class RenewRequest(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """A request to extend the concurrency leases of HTTP requests."""

    number: int  # The number of this message; the reply repeats it.
    held: list[tuple[str, list[tuple[str, str]]]]
    """For each HTTP request, its id and the rule name and counter key of each slot that it holds."""


class RefundRequest(msgspec.Struct, frozen=True, array_like=True, tag="g", gc=False):
    """A request to refund the primary charge of an HTTP request."""

    number: int  # The number of this message; the reply repeats it.
    id: str  # The id of the HTTP request.
    is_fault: bool
    """Whether the reason is a 5xx reply; such refunds are limited to a share of the ceiling."""


class UndoRequest(msgspec.Struct, frozen=True, array_like=True, tag="u", gc=False):
    """A request to undo the primary charge and the concurrency slots of an HTTP request."""

    number: int  # The number of this message; the reply repeats it.
    id: str  # The id of the HTTP request.


class AddUsageRequest(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A request to charge an amount that is known only after the HTTP request, such as CPU time."""

    number: int  # The number of this message; the reply repeats it.
    charges: list[WireCharge]
    amount: int
    """What is added to each counter, instead of the cost of its charge."""


class PeekRequest(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """A request for the current values of counters."""

    number: int  # The number of this message; the reply repeats it.
    charges: list[WireCharge]


class ResetRequest(msgspec.Struct, frozen=True, array_like=True, tag="z"):
    """A request to set counters to 0."""

    number: int  # The number of this message; the reply repeats it.
    charges: list[WireCharge]


class BanRequest(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """A request to ban an app, a token or an address until a time."""

    number: int  # The number of this message; the reply repeats it.
    subject: str  # What is banned, such as `app:7`.
    until_ms: int


class BanEndRequest(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    """A request for the time at which a ban ends."""

    number: int  # The number of this message; the reply repeats it.
    subject: str  # What is banned, such as `app:7`.


class ReadOverridesRequest(msgspec.Struct, frozen=True, array_like=True, tag="o", gc=False):
    """A request for the overrides of operators: grants, and limits that are off."""

    number: int  # The number of this message; the reply repeats it.
    known_version: int
    """The version that the client has; the reply is empty if it is the current one."""


class WriteOverrideRequest(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """A request to store or delete an override of operators."""

    number: int  # The number of this message; the reply repeats it.
    name: str
    value: bytes | None
    """`None` deletes the override."""


class HelloRequest(msgspec.Struct, frozen=True, array_like=True, tag="h", gc=False):
    """A request for an empty reply, which shows that the server is available."""

    number: int  # The number of this message; the reply repeats it.


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
    """The reply of the counter server to one message."""

    number: int  # The number of the message that it answers.
    value: Any  # Its type depends on the request.
    error: str = ""
    """Why there is no value."""


decode_request: Final = msgspec.msgpack.Decoder(CounterRequest).decode
decode_reply: Final = msgspec.msgpack.Decoder(CounterReply).decode
decode_plan: Final = msgspec.msgpack.Decoder(WirePlan).decode


def encode_charge(charge: Charge) -> WireCharge:
    """Return a charge as it is sent to the counter server, with its rule by name."""
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
    """Return the encoded charge plan of a call, with the ceilings of the call, which grants may have raised."""
    plan = call.plan
    bucket_charge = encode_charge(plan.bucket_charge) if plan.is_free else None
    charges = tuple(encode_charge(charge) for charge in call.charges)
    return msgspec.msgpack.encode(
        WirePlan(
            charges,
            bucket_charge,
            plan.lease_indexes,
            plan.overflow_key_indexes,
            plan.ban_subject,
            plan.is_ban_shadow,
            call.ban_rules,
        )
    )


def encode_result(result: TakeResult) -> list[Any]:
    """Return the result of a store call as a list for a reply; `decode_result` is the inverse."""
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
    """Return the result of a store call from the list in a reply; `encode_result` is the inverse."""
    is_admitted, now_ms, counts_before, hit_indexes, free_at_ms, keys, *rest = value
    return TakeResult(
        is_admitted, now_ms, tuple(counts_before), tuple(hit_indexes), tuple(free_at_ms), tuple(keys), *rest
    )

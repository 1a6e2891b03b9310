"""The messages of Envoy's rate limit protocol, version 3: the fields that the limiter reads and writes.

The numbers and types of the fields are those of the published definitions `envoy/service/ratelimit/v3/rls.proto` and
`envoy/extensions/common/ratelimit/v3/ratelimit.proto`. Decision record 0225 explains why the fields are listed here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

SERVICE: Final = "envoy.service.ratelimit.v3.RateLimitService"
"""The full name of the service, which is part of the path of each call."""
OK: Final = 1
OVER_LIMIT: Final = 2
UNIT_NUMBERS_MS: Final[Mapping[int, int]] = {
    1_000: 1,
    60_000: 2,
    3_600_000: 3,
    86_400_000: 4,
    30 * 86_400_000: 5,
    365 * 86_400_000: 6,
    7 * 86_400_000: 7,
}
"""The number of each unit of time in replies, by its length in milliseconds. Other windows have the unit 0, unknown."""
OVERRIDE_UNIT_NAMES: Final[Mapping[int, str]] = {
    1: "second",
    2: "minute",
    3: "hour",
    4: "day",
    5: "month",
    6: "year",
    7: "week",
}
"""The name of each unit of a limit that Envoy sends with a descriptor, by its number."""

_PACKAGE: Final = "wharf.limits.serving"
_MESSAGES: Final[Mapping[str, Sequence[tuple[int, str, str]]]] = {
    # Requests.
    "RateLimitRequest": (
        (1, "domain", "string"),
        (2, "descriptors", "repeated RateLimitDescriptor"),
        (3, "hits_addend", "uint32"),
    ),
    "RateLimitDescriptor": (
        (1, "entries", "repeated Entry"),
        (2, "limit", "RateLimitOverride"),
        (3, "hits_addend", "UInt64Value"),
        (4, "is_negative_hits", "bool"),
    ),
    "Entry": ((1, "key", "string"), (2, "value", "string")),
    "RateLimitOverride": ((1, "requests_per_unit", "uint32"), (2, "unit", "uint32")),
    "UInt64Value": ((1, "value", "uint64"),),
    # Replies.
    "RateLimitResponse": (
        (1, "overall_code", "uint32"),
        (2, "statuses", "repeated DescriptorStatus"),
        (3, "response_headers_to_add", "repeated HeaderValue"),
        (5, "raw_body", "bytes"),
    ),
    "DescriptorStatus": (
        (1, "code", "uint32"),
        (2, "current_limit", "RateLimit"),
        (3, "limit_remaining", "uint32"),
        (4, "duration_until_reset", "Duration"),
    ),
    "RateLimit": ((1, "requests_per_unit", "uint32"), (2, "unit", "uint32"), (3, "name", "string")),
    "Duration": ((1, "seconds", "int64"), (2, "nanos", "int32")),
    "HeaderValue": ((1, "key", "string"), (2, "value", "string")),
}
"""For each message, its fields: number, name and type. An enum is listed as `uint32`, which is encoded in the same way."""


def _build_classes() -> Mapping[str, Any]:
    """Return the class of each message, in a pool of its own, so that programs may also load the published definitions."""
    types = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "string": types.TYPE_STRING,
        "bytes": types.TYPE_BYTES,
        "bool": types.TYPE_BOOL,
        "uint32": types.TYPE_UINT32,
        "uint64": types.TYPE_UINT64,
        "int32": types.TYPE_INT32,
        "int64": types.TYPE_INT64,
    }
    file = descriptor_pb2.FileDescriptorProto(name="ratelimit.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field_name, text in fields:
            type_name = text.removeprefix("repeated ")
            field = message.field.add(
                name=field_name,
                number=number,
                label=types.LABEL_REPEATED if text != type_name else types.LABEL_OPTIONAL,
                type=scalars.get(type_name, types.TYPE_MESSAGE),
            )
            if type_name not in scalars:
                field.type_name = f".{_PACKAGE}.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES: Final = _build_classes()
RateLimitRequest: Final[Any] = _CLASSES["RateLimitRequest"]  # The library makes these classes at run time: no types.
RateLimitResponse: Final[Any] = _CLASSES["RateLimitResponse"]

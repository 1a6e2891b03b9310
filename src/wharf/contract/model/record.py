"""The base classes of all records, and the content hash of a record.

A record is an immutable value with Python names for its attributes and Nomad's names on the wire (`job_id` <-> `JobID`);
only this module converts between the two. Records hold no reference cycles, so they are hidden from the garbage collector:
scanning a million of them would take seconds.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, dataclass_transform

import msgspec

# Words that wire names spell in capitals or in another irregular way.
WIRE_SPELLINGS: Final[Mapping[str, str]] = {
    "acl": "ACL", "cidr": "CIDR", "cni": "CNI", "cpu": "CPU", "csi": "CSI", "dns": "DNS", "grpc": "GRPC", "http": "HTTP",
    "id": "ID", "ids": "IDs", "ip": "IP", "jwks": "JWKS", "jwt": "JWT", "mb": "MB", "numa": "NUMA", "oidc": "OIDC",
    "tls": "TLS", "ttl": "TTL", "ui": "UI", "url": "URL", "iops": "IOPS", "mbits": "MBits", "selinux": "SELinux",
    "tg": "TG",
}  # fmt: skip


def to_wire_name(attribute: str) -> str:
    """Return the name of a field in the API from its Python name, such as `MemoryMaxMB` for `memory_max_mb`."""
    return "".join(WIRE_SPELLINGS.get(word, word.capitalize()) for word in attribute.split("_"))


class RecordMeta(msgspec.StructMeta):
    """The metaclass of records. It makes the fields of every record class keyword-only.

    msgspec does not inherit this option. The `dataclass_transform` decorators of the base classes declare it to type
    checkers.
    """

    # Any, because a class statement may pass options of any type.
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "RecordMeta":
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, metaclass=RecordMeta, frozen=True, gc=False, rename=to_wire_name):
    """The base class of immutable values with Nomad's names in the API.

    Every field is encoded, even an empty one, because clients rely on it.
    """


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class SparseRecord(
    msgspec.Struct, metaclass=RecordMeta, frozen=True, gc=False, omit_defaults=True, rename=to_wire_name
):
    """The base class of immutable values whose empty fields are not encoded, such as allocations and ports."""


# Fields that servers add to a record. They do not belong to the content that a caller wrote. The digest of a token's secret is
# not among them: a token that was created again has another hash, so other regions replace their copy.
_NOT_WRITTEN: Final = frozenset(
    {
        "hash",
        "create_index",
        "modify_index",
        "create_time",
        "modify_time",
        "secret_sealed",
        "secrets_sealed",
        "sealed_with",
    }
)


def hash_content(record: msgspec.Struct) -> bytes:
    """Return a SHA-256 digest of the fields of a record that a caller wrote.

    Equal content has the same digest on every server.
    """
    written = {name: getattr(record, name) for name in record.__struct_fields__ if name not in _NOT_WRITTEN}
    return hashlib.sha256(msgspec.json.encode(written, order="deterministic")).digest()

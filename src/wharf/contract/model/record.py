"""The base of every record: frozen, compact, with the wire's names.

A record is a value: it is never changed in place. Attributes carry Python names, the wire carries the reference's
(`job_id` <-> `JobID`), and both forms are told apart only here. Records hold no cycles, so the collector need not
look at them (a million of them would cost it seconds).

The digest of what somebody wrote into a record, for the wire's `Hash` and to tell a real change from none.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, dataclass_transform

import msgspec

# Words that the wire writes in capitals or in a spelling of its own.
WIRE_SPELLINGS: Final[Mapping[str, str]] = {
    "acl": "ACL", "cidr": "CIDR", "cni": "CNI", "cpu": "CPU", "csi": "CSI", "dns": "DNS", "grpc": "GRPC", "http": "HTTP",
    "id": "ID", "ids": "IDs", "ip": "IP", "jwks": "JWKS", "jwt": "JWT", "mb": "MB", "numa": "NUMA", "oidc": "OIDC",
    "tls": "TLS", "ttl": "TTL", "ui": "UI", "url": "URL", "iops": "IOPS", "mbits": "MBits", "selinux": "SELinux",
    "tg": "TG",
}  # fmt: skip


def to_wire_name(attribute: str) -> str:
    """The wire's name of an attribute: `memory_max_mb` -> `MemoryMaxMB`, `job_id` -> `JobID`."""
    return "".join(WIRE_SPELLINGS.get(word, word.capitalize()) for word in attribute.split("_"))


class RecordMeta(msgspec.StructMeta):
    """Makes every class below the two bases take its fields by name only; msgspec inherits all options but this one.

    The decorators below tell type checkers the same, and that records are frozen.
    """

    # A metaclass passes on what class statements hand it: names, bases and options of any kind.
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "RecordMeta":
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, metaclass=RecordMeta, frozen=True, gc=False, rename=to_wire_name):
    """A value with the wire's names. Every field is written, also when empty: readers of the wire rely on it."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class SparseRecord(
    msgspec.Struct, metaclass=RecordMeta, frozen=True, gc=False, omit_defaults=True, rename=to_wire_name
):
    """A value that drops its empty fields on the wire, as allocations, evaluations, networks and ports do."""


# What servers add to a record, and the digest itself: none of it is what somebody wrote.
_NOT_WRITTEN: Final = frozenset(
    {
        "hash",
        "create_index",
        "modify_index",
        "create_time",
        "modify_time",
        "secret_digest",
        "secret_sealed",
        "secrets_sealed",
        "sealed_with",
    }
)


def hash_content(record: msgspec.Struct) -> bytes:
    """The same for two records with the same content, whenever and wherever they were written."""
    written = {name: getattr(record, name) for name in record.__struct_fields__ if name not in _NOT_WRITTEN}
    return hashlib.sha256(msgspec.json.encode(written, order="deterministic")).digest()

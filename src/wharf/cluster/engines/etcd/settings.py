"""How to reach etcd, and the limits that etcd was configured with (`[state.etcd]`)."""

from pathlib import Path

import msgspec


class EtcdTls(msgspec.Struct, frozen=True):
    """TLS files. `ca_file` verifies etcd's certificate; `cert_file` and `key_file` identify us, if etcd requires it."""

    ca_file: Path
    cert_file: Path | None = None
    key_file: Path | None = None


class EtcdSettings(msgspec.Struct, frozen=True):
    """Addresses, limits and timeouts for one etcd.

    `max_txn_ops`, `max_request_bytes` and `quota_bytes` must equal etcd's `--max-txn-ops`, `--max-request-bytes` and
    `--quota-backend-bytes`: etcd does not report them.
    """

    endpoints: tuple[str, ...]
    prefix: str = "/wharf"
    tls: EtcdTls | None = None
    user: str = ""
    password: str = ""
    max_txn_ops: int = 128
    max_request_bytes: int = 1_572_864
    quota_bytes: int = 2 * 1024**3
    dial_timeout_s: float = 2.0
    request_timeout_s: float = 5.0
    page_rows: int = 10_000

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError('state.etcd.endpoints is empty; name at least one, such as ["127.0.0.1:2379"]')
        if self.max_txn_ops < 32:
            raise ValueError(f"state.etcd.max_txn_ops is {self.max_txn_ops}; the smallest that works is 32")
        if not self.prefix.strip("/"):
            raise ValueError(
                'state.etcd.prefix is empty; set one that no other program on the same etcd uses, such as "/wharf"'
            )

    def describe(self) -> str:
        """Return which etcd it is, for use in sentences."""
        return "etcd at " + ", ".join(self.endpoints)

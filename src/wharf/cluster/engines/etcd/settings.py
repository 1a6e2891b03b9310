"""How to reach an etcd and what may be asked of it, as configuration tells it (`[state.etcd]`)."""

from pathlib import Path

import msgspec


class EtcdTls(msgspec.Struct, frozen=True):
    """`ca_file` proves etcd to us; `cert_file` and `key_file` prove us to an etcd that asks for it."""

    ca_file: Path
    cert_file: Path | None = None
    key_file: Path | None = None


class EtcdSettings(msgspec.Struct, frozen=True):
    """`max_txn_ops` and `max_request_bytes` follow the server's `--max-txn-ops` and `--max-request-bytes`, `quota_bytes`
    its `--quota-backend-bytes`: etcd does not tell them, so raise them together."""

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
            raise ValueError('state.etcd.prefix is empty; other keys on the same etcd need to be told apart ("/wharf")')

    def describe(self) -> str:
        """For sentences: which etcd."""
        return "etcd at " + ", ".join(self.endpoints)

"""Settings that say where the log is stored and how to reach it."""

import enum
from typing import Annotated

import msgspec

from wharf.contract.model.settings import Duration, SecretText, SettingInfo, Size
from wharf.contract.model.times import SECOND


class EngineKind(enum.StrEnum):
    """Where the cluster state is stored."""

    SQLITE = "sqlite"
    ETCD = "etcd"
    MEMORY = "memory"


class EtcdTlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS files for connections to etcd."""

    ca_file: Annotated[
        str, SettingInfo("Certificates of the authorities that etcd's certificate is checked against.")
    ] = ""
    cert_file: Annotated[str, SettingInfo("The client certificate, if etcd requires one.")] = ""
    key_file: Annotated[str, SettingInfo("The private key of the client certificate.")] = ""


class EtcdStateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach etcd, and the limits that etcd was configured with."""

    endpoints: Annotated[tuple[str, ...], SettingInfo("Addresses of the etcd members, each as `host:port`.")] = (
        "127.0.0.1:2379",
    )
    prefix: Annotated[str, SettingInfo("All keys begin with this, so that several clusters can share one etcd.")] = (
        "/wharf"
    )
    user: Annotated[str, SettingInfo("The etcd user to log in as, if etcd's own access control is on.")] = ""
    password: Annotated[SecretText, SettingInfo("The password of that user.")] = SecretText()
    max_txn_ops: Annotated[
        int,
        SettingInfo(
            "How many changes one transaction may hold: etcd's `--max-txn-ops`, which must be as large.", min_value=32
        ),
    ] = 128
    max_request_size: Annotated[
        Size, SettingInfo("How large one transaction may be: etcd's `--max-request-bytes`, which must be as large.")
    ] = Size(1_572_864)
    quota: Annotated[
        Size, SettingInfo("Maximum size of the etcd database: its `--quota-backend-bytes`, which etcd does not report.")
    ] = Size(2 * 1024**3)
    dial_timeout: Annotated[Duration, SettingInfo("Timeout for connecting to an etcd member.")] = Duration(2 * SECOND)
    request_timeout: Annotated[
        Duration, SettingInfo("How long one call to etcd may take before its outcome counts as unknown.")
    ] = Duration(5 * SECOND)
    tls: Annotated[EtcdTlsSettings, SettingInfo("TLS to etcd; on when `ca_file` is named.")] = EtcdTlsSettings()


class StateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the `state` section."""

    engine: Annotated[
        EngineKind,
        SettingInfo(
            "Where the cluster's state is stored: `sqlite`, one machine and no other service; `etcd`, several servers; "
            "`memory`, nothing outlives the agent."
        ),
    ] = EngineKind.SQLITE
    etcd: Annotated[EtcdStateSettings, SettingInfo('How to reach etcd; used with `engine = "etcd"` only.')] = (
        EtcdStateSettings()
    )

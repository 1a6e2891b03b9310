"""The settings of where the log is kept."""

import enum
from typing import Annotated

import msgspec

from wharf.contract.model.settings import Duration, SecretText, SettingInfo, Size
from wharf.contract.model.times import SECOND


class EngineKind(enum.StrEnum):
    SQLITE = "sqlite"
    ETCD = "etcd"
    MEMORY = "memory"


class EtcdTlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    ca_file: Annotated[
        str, SettingInfo("Certificates of the authorities that etcd's certificate is checked against.")
    ] = ""
    cert_file: Annotated[str, SettingInfo("Our certificate, where etcd asks clients for one.")] = ""
    key_file: Annotated[str, SettingInfo("The key of that certificate.")] = ""


class EtcdStateSettings(msgspec.Struct, frozen=True, kw_only=True):
    endpoints: Annotated[tuple[str, ...], SettingInfo("etcd's members, each as `host:port`.")] = ("127.0.0.1:2379",)
    prefix: Annotated[str, SettingInfo("All keys begin with this, so that several clusters can share one etcd.")] = (
        "/wharf"
    )
    user: Annotated[str, SettingInfo("The etcd user to log in as, where etcd's own access control is on.")] = ""
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
        Size, SettingInfo("How large etcd may grow: its `--quota-backend-bytes`, which it does not tell.")
    ] = Size(2 * 1024**3)
    dial_timeout: Annotated[Duration, SettingInfo("How long reaching a member may take.")] = Duration(2 * SECOND)
    request_timeout: Annotated[
        Duration, SettingInfo("How long one call to etcd may take before its outcome counts as unknown.")
    ] = Duration(5 * SECOND)
    tls: Annotated[EtcdTlsSettings, SettingInfo("TLS to etcd; on when `ca_file` is named.")] = EtcdTlsSettings()


class StateSettings(msgspec.Struct, frozen=True, kw_only=True):
    engine: Annotated[
        EngineKind,
        SettingInfo(
            "Where the cluster's state is kept: `sqlite`, one machine and no other service; `etcd`, several servers; "
            "`memory`, nothing outlives the agent."
        ),
    ] = EngineKind.SQLITE
    etcd: Annotated[EtcdStateSettings, SettingInfo('How to reach etcd; used with `engine = "etcd"` only.')] = (
        EtcdStateSettings()
    )

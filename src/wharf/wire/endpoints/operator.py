"""Endpoints for those who run the cluster."""

from typing import Final

from wharf.model import need
from wharf.model.rebalancing import Rebalancing
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.wire import operator_shapes, shapes
from wharf.wire.endpoints.endpoint import Endpoint, Kind, asks, flag, reads, tells, text, writes

_CONFIGURATION: Final = "/v1/operator/scheduler/configuration"
_AUTOPILOT: Final = "/v1/operator/autopilot/configuration"
_VERSION: Final = text("cas", "Write only if the stored document still has this ModifyIndex.")

ROWS: Final[tuple[Endpoint, ...]] = (
    tells(
        "operator.state", "/v1/operator/state", need=need.READ_OPERATOR,
        summary="How many records each table holds, and how the log is.", returns=shapes.StateSizes,
    ),
    reads(
        "operator.scheduler", _CONFIGURATION, need=need.READ_OPERATOR, summary="How the cluster is scheduled.",
        returns=operator_shapes.SchedulerConfigurationRead,
    ),
    writes(
        "operator.set_scheduler", _CONFIGURATION, need=need.WRITE_OPERATOR, body=SchedulerConfiguration,
        summary="Replace the whole document of how the cluster is scheduled. NodeLimitForFeasibilityChecks is kept and "
        "not followed: all nodes are looked at.",
        returns=operator_shapes.SchedulerConfigurationWritten, parameters=(_VERSION,),
    ),
    asks(
        "operator.rebalance", "/v1/operator/rebalance", need=need.WRITE_OPERATOR,
        summary="Move what would stand better on another node, as many of each group at a time as its migrate block allows.",
        returns=Rebalancing, parameters=(flag("plan", "Only tell what would be moved, and what is gained."),),
    ),
    reads(
        "operator.raft", "/v1/operator/raft/configuration", need=need.MANAGEMENT,
        summary="The servers of the region, and which of them leads.", returns=operator_shapes.RaftConfiguration,
    ),
    writes(
        "operator.remove_peer", "/v1/operator/raft/peer", method="DELETE", need=need.MANAGEMENT,
        summary="Forget a server that is gone. One that lives writes its record again.",
        parameters=(text("id", "The server's id."), text("address", "Not supported: use the id.")),
    ),
    asks(
        "operator.transfer", "/v1/operator/raft/transfer-leadership", need=need.MANAGEMENT,
        summary="Make another server the leader; answered when it leads.",
        parameters=(text("id", "The server's id."), text("address", "Or its address, as IP:port.")),
    ),
    reads(
        "operator.autopilot", _AUTOPILOT, need=need.READ_OPERATOR, summary="When a server counts as healthy.",
        returns=operator_shapes.AutopilotDocument,
    ),
    writes(
        "operator.set_autopilot", _AUTOPILOT, need=need.WRITE_OPERATOR, body=operator_shapes.AutopilotDocument,
        summary="Replace the whole document. Followed are LastContactThreshold and MaxTrailingLogs; the rest is kept.",
        returns=bool, parameters=(_VERSION,),
    ),
    tells(
        "operator.health", "/v1/operator/autopilot/health", need=need.READ_OPERATOR,
        summary="The health of all servers; 429 where one is not healthy.", returns=operator_shapes.AutopilotHealth,
        answers=(200, 429),
    ),
    tells(
        "operator.save_snapshot", "/v1/operator/snapshot", need=need.SAVE_SNAPSHOT, returns=bytes,
        media="application/x-gzip",
        summary="The whole state as one gzipped archive. Secrets in it need the keyring's key.",
    ),
    Endpoint(
        name="operator.restore_snapshot", method="PUT", path="/v1/operator/snapshot", kind=Kind.LOCAL,
        need=need.MANAGEMENT, streams_body=True, body=bytes, audited=True,
        summary="Replace the whole state by that of a snapshot. One that is damaged changes nothing.",
    ),
    tells(
        "operator.license", "/v1/operator/license", need=need.READ_OPERATOR,
        summary="There is no licence to ask for: 204.", answers=(204,),
    ),
    writes(
        "operator.set_license", "/v1/operator/license", need=need.WRITE_OPERATOR, summary="Licensing: left out.",
        left_out="every feature is free: there is no licence",
    ),
    writes(
        "operator.utilization", "/v1/operator/utilization", need=need.WRITE_OPERATOR,
        summary="Reports of utilization for licensing: left out.", left_out="every feature is free: nothing is reported",
    ),
    tells(
        "operator.vault_check", "/v1/operator/upgrade-check/vault-workload-identity", need=need.READ_OPERATOR,
        summary="Vault: left out.", left_out="secrets are built in: nothing here uses Vault",
    ),
)  # fmt: skip

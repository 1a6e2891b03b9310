"""Client methods for operators: scheduler configuration, rebalancing, autopilot, snapshots and garbage collection."""

from typing import Unpack

from wharf.contract.client.calls import CallOptions, CallSpec, ReadOptions, ReadSpec, StreamSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, read_method, stream_method
from wharf.contract.model.operator.rebalancing import Rebalancing
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.wire import operator


class OperatorMethods(MethodGroup[M]):
    """The methods of `client.operator`. Each describes a call, which the client then sends."""

    @call_method("operator.state")
    def read_state(self, **options: Unpack[CallOptions]) -> CallSpec[operator.StateSizes]:
        """Read the number of records in each table and the state of the log."""
        return CallSpec(options)

    @read_method("operator.scheduler")
    def scheduler_configuration(self, **options: Unpack[ReadOptions]) -> ReadSpec[operator.SchedulerConfigurationReply]:
        """Read the scheduler configuration."""
        return ReadSpec(options)

    @call_method("operator.set_scheduler")
    def set_scheduler_configuration(
        self, configuration: SchedulerConfiguration, *, cas: int | None = None, **options: Unpack[WriteOptions]
    ) -> CallSpec[operator.SchedulerConfigurationWriteReply]:
        """Replace the scheduler configuration.

        `cas`: write only if the stored configuration has this ModifyIndex. `updated` in the reply shows whether it was
        written.
        """
        return CallSpec(options, body=configuration, cas=cas)

    @call_method("operator.rebalance")
    def rebalance(self, *, plan: bool = False, **options: Unpack[WriteOptions]) -> CallSpec[Rebalancing]:
        """Move allocations to nodes where they score higher, within the limits of each group's migrate block.

        `plan`: only report the moves.
        """
        return CallSpec(options, plan=plan)

    @read_method("operator.raft")
    def servers(self, **options: Unpack[ReadOptions]) -> ReadSpec[operator.RaftConfiguration]:
        """List the servers of the region and mark the leader."""
        return ReadSpec(options)

    @call_method("operator.remove_peer")
    def remove_server(self, id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Remove the failed server with this ID from the list of servers. A running server returns to it."""
        return CallSpec(options, id=id)

    @call_method("operator.transfer")
    def transfer_leadership(
        self, *, id: str = "", address: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[None]:
        """Transfer leadership to the server with this ID or address. The reply is sent when that server leads."""
        return CallSpec(options, id=id, address=address)

    @read_method("operator.autopilot")
    def autopilot(self, **options: Unpack[ReadOptions]) -> ReadSpec[operator.AutopilotConfigurationView]:
        """Read the autopilot configuration, which defines when a server is healthy."""
        return ReadSpec(options)

    @call_method("operator.set_autopilot")
    def set_autopilot(
        self,
        document: operator.AutopilotConfigurationView,
        *,
        cas: int | None = None,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[bool]:
        """Replace the autopilot configuration. Only LastContactThreshold and MaxTrailingLogs have an effect.

        `cas`: write only if the stored configuration has this ModifyIndex. The result shows whether it was written.
        """
        return CallSpec(options, body=document, cas=cas)

    @call_method("operator.health")
    def health(self, **options: Unpack[CallOptions]) -> CallSpec[operator.AutopilotHealth]:
        """Read the health of all servers. Does not raise an error if one is unhealthy."""
        return CallSpec(options)

    @call_method("operator.snapshots")
    def snapshots(
        self, *, server_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[operator.ScheduledSnapshots]:
        """List the snapshots that a server has saved on schedule, the newest first. `server_id`: another server than this one."""
        return CallSpec(options, server_id=server_id)

    @call_method("operator.audit")
    def audit(
        self,
        *,
        search: str = "",
        failed: bool = False,
        limit: int | None = None,
        next_token: str = "",
        server_id: str = "",
        **options: Unpack[CallOptions],
    ) -> CallSpec[operator.AuditEntries]:
        """Read the audit log of a server, the newest entries first.

        `search`: words that an entry must have. `failed`: only requests that were refused or failed. `next_token` of a reply
        selects older entries. `server_id`: another server than this one.
        """
        return CallSpec(options, search=search, failed=failed, limit=limit, next_token=next_token, server_id=server_id)

    @stream_method("operator.save_snapshot")
    def save_snapshot(self, **options: Unpack[CallOptions]) -> StreamSpec[bytes]:
        """Download a snapshot of the whole state."""
        return StreamSpec(options)

    @call_method("operator.restore_snapshot")
    def restore_snapshot(self, snapshot: bytes, **options: Unpack[CallOptions]) -> CallSpec[None]:
        """Replace the whole state with a snapshot. A damaged snapshot changes nothing."""
        return CallSpec(options, body=snapshot)


class SystemMethods(MethodGroup[M]):
    """The methods of `client.system`. Each describes a call, which the client then sends."""

    @call_method("system.gc")
    def collect(self, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete finished jobs, evaluations, allocations and nodes that are no longer needed (garbage collection)."""
        return CallSpec(options)

    @call_method("system.reconcile")
    def reconcile_summaries(self, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Recompute the summaries of all jobs: the numbers of allocations by group and state."""
        return CallSpec(options)

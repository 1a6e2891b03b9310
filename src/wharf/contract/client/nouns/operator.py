"""."""

from typing import Unpack

from wharf.contract.client.calls import CallOptions, CallSpec, ReadOptions, ReadSpec, StreamSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, read_method, stream_method
from wharf.contract.model.operator.rebalancing import Rebalancing
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.wire import operator


class OperatorMethods(MethodGroup[M]):
    @call_method("operator.state")
    def read_state(self, **options: Unpack[CallOptions]) -> CallSpec[operator.StateSizes]:
        return CallSpec(options)

    @read_method("operator.scheduler")
    def scheduler_configuration(self, **options: Unpack[ReadOptions]) -> ReadSpec[operator.SchedulerConfigurationReply]:
        return ReadSpec(options)

    @call_method("operator.set_scheduler")
    def set_scheduler_configuration(
        self, configuration: SchedulerConfiguration, *, cas: int | None = None, **options: Unpack[WriteOptions]
    ) -> CallSpec[operator.SchedulerConfigurationWriteReply]:
        """The whole document. `cas`: only if the stored one has this ModifyIndex; `updated` tells."""
        return CallSpec(options, body=configuration, cas=cas)

    @call_method("operator.rebalance")
    def rebalance(self, *, plan: bool = False, **options: Unpack[WriteOptions]) -> CallSpec[Rebalancing]:
        """Move what would stand better elsewhere, a few of each group at a time. `plan`: only tell of it."""
        return CallSpec(options, plan=plan)

    @read_method("operator.raft")
    def servers(self, **options: Unpack[ReadOptions]) -> ReadSpec[operator.RaftConfiguration]:
        """The servers of the region, and which of them leads."""
        return ReadSpec(options)

    @call_method("operator.remove_peer")
    def remove_server(self, id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, id=id)

    @call_method("operator.transfer")
    def transfer_leadership(
        self, *, id: str = "", address: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[None]:
        return CallSpec(options, id=id, address=address)

    @read_method("operator.autopilot")
    def autopilot(self, **options: Unpack[ReadOptions]) -> ReadSpec[operator.AutopilotConfigurationView]:
        return ReadSpec(options)

    @call_method("operator.set_autopilot")
    def set_autopilot(
        self,
        document: operator.AutopilotConfigurationView,
        *,
        cas: int | None = None,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[bool]:
        return CallSpec(options, body=document, cas=cas)

    @call_method("operator.health")
    def health(self, **options: Unpack[CallOptions]) -> CallSpec[operator.AutopilotHealth]:
        """Of all servers, also where one of them is not well."""
        return CallSpec(options)

    @stream_method("operator.save_snapshot")
    def save_snapshot(self, **options: Unpack[CallOptions]) -> StreamSpec[bytes]:
        """The whole state, piece by piece."""
        return StreamSpec(options)

    @call_method("operator.restore_snapshot")
    def restore_snapshot(self, snapshot: bytes, **options: Unpack[CallOptions]) -> CallSpec[None]:
        return CallSpec(options, body=snapshot)


class SystemMethods(MethodGroup[M]):
    @call_method("system.gc")
    def collect(self, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Have everything forgotten that nobody needs any more."""
        return CallSpec(options)

    @call_method("system.reconcile")
    def reconcile_summaries(self, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options)

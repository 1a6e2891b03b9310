"""What can be asked about the servers themselves: agents, the cluster's configuration, its events and figures."""

from collections.abc import Sequence
from typing import Any, Unpack

from wharf.contract.client.calls import CallOptions, CallSpec, StreamSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, stream_method
from wharf.contract.wire import agents


class AgentMethods(MethodGroup[M]):
    @call_method("agent.self")
    def read_self(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSelf]:
        return CallSpec(options)

    @call_method("agent.members")
    def members(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentMembers]:
        return CallSpec(options)

    @call_method("agent.health")
    def health(self, *, types: Sequence[str] = (), **options: Unpack[CallOptions]) -> CallSpec[agents.AgentHealth]:
        return CallSpec(options, type=tuple(types))

    @call_method("agent.servers")
    def servers(self, **options: Unpack[CallOptions]) -> CallSpec[list[str]]:
        return CallSpec(options)

    @call_method("agent.set_servers")
    def set_servers(self, addresses: Sequence[str], **options: Unpack[CallOptions]) -> CallSpec[None]:
        return CallSpec(options, address=tuple(addresses))

    @call_method("agent.join")
    def join(self, addresses: Sequence[str], **options: Unpack[CallOptions]) -> CallSpec[agents.JoinResult]:
        return CallSpec(options, address=tuple(addresses))

    @call_method("agent.force_leave")
    def force_leave(self, node: str, *, prune: bool = False, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, node=node, prune=prune)

    @call_method("agent.host")
    def host(
        self, *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[agents.HostReport]:
        return CallSpec(options, server_id=server_id, node_id=node_id)

    @call_method("agent.reload")
    def reload(self, **options: Unpack[CallOptions]) -> CallSpec[None]:
        return CallSpec(options)

    @stream_method("agent.monitor")
    def monitor(
        self,
        *,
        log_level: str = "",
        log_json: bool = False,
        log_include_location: bool = False,
        server_id: str = "",
        node_id: str = "",
        **options: Unpack[CallOptions],
    ) -> StreamSpec[bytes]:
        """Its log, from now on, in pieces of whole lines. What is logged during an outage is not in it."""
        return StreamSpec(
            options,
            log_level=log_level,
            log_json=log_json,
            log_include_location=log_include_location,
            server_id=server_id,
            node_id=node_id,
        )

    @stream_method("agent.monitor_export")
    def export_log(
        self,
        *,
        on_disk: bool = True,
        service_name: str = "",
        logs_since: str = "",
        server_id: str = "",
        node_id: str = "",
        **options: Unpack[CallOptions],
    ) -> StreamSpec[bytes]:
        """Its log so far."""
        return StreamSpec(
            options,
            on_disk=on_disk,
            service_name=service_name,
            logs_since=logs_since,
            server_id=server_id,
            node_id=node_id,
        )

    @call_method("agent.pprof.cmdline")
    def read_command_line(
        self, *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[str]:
        return CallSpec(options, server_id=server_id, node_id=node_id)

    @call_method("agent.pprof.profile")
    def profile(
        self, *, seconds: int = 1, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[str]:
        return CallSpec(options, seconds=seconds, server_id=server_id, node_id=node_id)

    @call_method("agent.pprof.named")
    def read_stacks(
        self, profile: str = "goroutine", *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[str]:
        """Where each of its processes stands."""
        return CallSpec(options, profile, server_id=server_id, node_id=node_id)

    @call_method("agent.schedulers")
    def schedulers(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSchedulers]:
        return CallSpec(options)

    @call_method("agent.schedulers_config")
    def schedulers_configuration(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSchedulersConfig]:
        return CallSpec(options)


class StatusMethods(MethodGroup[M]):
    @call_method("status.leader")
    def leader(self, **options: Unpack[CallOptions]) -> CallSpec[str]:
        """Its address; empty where there is none."""
        return CallSpec(options)

    @call_method("status.peers")
    def peers(self, **options: Unpack[CallOptions]) -> CallSpec[list[str]]:
        return CallSpec(options)


class MetricMethods(MethodGroup[M]):
    @call_method("metrics.read")
    def read(self, **options: Unpack[CallOptions]) -> CallSpec[agents.Metrics]:
        return CallSpec(options)


class RegionMethods(MethodGroup[M]):
    @call_method("region.list")
    def list(self, **options: Unpack[CallOptions]) -> CallSpec["tuple[str, ...]"]:
        return CallSpec(options)


class DocumentMethods(MethodGroup[M]):
    @call_method("document.openapi")
    def read_openapi(self, **options: Unpack[CallOptions]) -> CallSpec[dict[str, Any]]:
        """All endpoints, in the form of OpenAPI."""
        return CallSpec(options)

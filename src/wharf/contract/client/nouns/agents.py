"""Client methods for agents, leader status, metrics, regions and API documents."""

from collections.abc import Sequence
from typing import Any, Unpack

from wharf.contract.client.calls import CallOptions, CallSpec, StreamSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, stream_method
from wharf.contract.wire import agents


class AgentMethods(MethodGroup[M]):
    """Methods of `client.agent`."""

    @call_method("agent.self")
    def read_self(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSelf]:
        """Read this agent's configuration without secrets, its member record and its metrics."""
        return CallSpec(options)

    @call_method("agent.members")
    def members(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentMembers]:
        """List the servers of this region."""
        return CallSpec(options)

    @call_method("agent.health")
    def health(self, *, types: Sequence[str] = (), **options: Unpack[CallOptions]) -> CallSpec[agents.AgentHealth]:
        """Check the health of this agent; the status is 500 if it is not healthy."""
        return CallSpec(options, type=tuple(types))

    @call_method("agent.servers")
    def servers(self, **options: Unpack[CallOptions]) -> CallSpec[list[str]]:
        """List the servers that this agent's node uses."""
        return CallSpec(options)

    @call_method("agent.set_servers")
    def set_servers(self, addresses: Sequence[str], **options: Unpack[CallOptions]) -> CallSpec[None]:
        """Set the servers that this agent's node uses."""
        return CallSpec(options, address=tuple(addresses))

    @call_method("agent.join")
    def join(self, addresses: Sequence[str], **options: Unpack[CallOptions]) -> CallSpec[agents.JoinResult]:
        """Check whether servers are members. Servers join automatically through their shared log."""
        return CallSpec(options, address=tuple(addresses))

    @call_method("agent.force_leave")
    def force_leave(self, node: str, *, prune: bool = False, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the member record of a failed server. A running server writes its record again."""
        return CallSpec(options, node=node, prune=prune)

    @call_method("agent.host")
    def host(
        self, *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[agents.HostReport]:
        """Describe the machine of this agent. Needs `enable_debug` if access control is off."""
        return CallSpec(options, server_id=server_id, node_id=node_id)

    @call_method("agent.reload")
    def reload(self, **options: Unpack[CallOptions]) -> CallSpec[None]:
        """Reload the configuration."""
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
        """Stream new log lines of an agent, in chunks of whole lines. Lines logged during an outage are missing."""
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
        """Download the log file of an agent."""
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
        """Show the command line of the replying process."""
        return CallSpec(options, server_id=server_id, node_id=node_id)

    @call_method("agent.pprof.profile")
    def profile(
        self, *, seconds: int = 1, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[str]:
        """Profile the replying process: folded stacks with sample counts."""
        return CallSpec(options, seconds=seconds, server_id=server_id, node_id=node_id)

    @call_method("agent.pprof.named")
    def read_stacks(
        self, profile: str = "goroutine", *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[str]:
        """Read the stacks of all asyncio tasks and threads of the server's processes."""
        return CallSpec(options, profile, server_id=server_id, node_id=node_id)

    @call_method("agent.schedulers")
    def schedulers(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSchedulers]:
        """Describe the scheduler of this server."""
        return CallSpec(options)

    @call_method("agent.schedulers_config")
    def schedulers_configuration(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSchedulersConfig]:
        """Read the settings of this server's scheduler."""
        return CallSpec(options)


class StatusMethods(MethodGroup[M]):
    """Methods of `client.status`."""

    @call_method("status.leader")
    def leader(self, **options: Unpack[CallOptions]) -> CallSpec[str]:
        """Return the address of the leader; empty if there is none."""
        return CallSpec(options)

    @call_method("status.peers")
    def peers(self, **options: Unpack[CallOptions]) -> CallSpec[list[str]]:
        """Return the addresses of all servers."""
        return CallSpec(options)


class MetricMethods(MethodGroup[M]):
    """Methods of `client.metrics`."""

    @call_method("metrics.read")
    def read(self, **options: Unpack[CallOptions]) -> CallSpec[agents.Metrics]:
        """Read metrics of the replying process and its server: the last finished interval, or totals since the start for Prometheus."""
        return CallSpec(options)


class RegionMethods(MethodGroup[M]):
    """Methods of `client.regions`."""

    @call_method("region.list")
    def list(self, **options: Unpack[CallOptions]) -> CallSpec["tuple[str, ...]"]:
        """List the regions to which this server forwards requests, including its own."""
        return CallSpec(options)


class DocumentMethods(MethodGroup[M]):
    """Methods of `client.documents`."""

    @call_method("document.openapi")
    def read_openapi(self, **options: Unpack[CallOptions]) -> CallSpec[dict[str, Any]]:
        """Read the OpenAPI document of all endpoints."""
        return CallSpec(options)

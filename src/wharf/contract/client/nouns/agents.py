"""Client methods for agents, leader status, metrics, regions and API documents."""

from collections.abc import Sequence
from typing import Any, Unpack

from wharf.contract.client.calls import CallOptions, CallSpec, StreamSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, stream_method
from wharf.contract.wire import agents


class AgentMethods(MethodGroup[M]):
    """The methods of `client.agent`. Each describes a call, which the client then sends."""

    @call_method("agent.self")
    def read_self(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSelf]:
        """Read the configuration without secrets, the member record and the metrics of the replying agent."""
        return CallSpec(options)

    @call_method("agent.members")
    def members(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentMembers]:
        """List the servers of this region, with their state."""
        return CallSpec(options)

    @call_method("agent.health")
    def health(self, *, types: Sequence[str] = (), **options: Unpack[CallOptions]) -> CallSpec[agents.AgentHealth]:
        """Check the health of the replying agent. Raises an error if it is not healthy (status 500).

        `types`: `server` or `client` (its node); both by default.
        """
        return CallSpec(options, type=tuple(types))

    @call_method("agent.servers")
    def servers(self, **options: Unpack[CallOptions]) -> CallSpec[list[str]]:
        """List the addresses of the servers that the replying agent's node uses."""
        return CallSpec(options)

    @call_method("agent.set_servers")
    def set_servers(self, addresses: Sequence[str], **options: Unpack[CallOptions]) -> CallSpec[None]:
        """Set the servers that the replying agent's node uses. Always refused: change its configuration instead."""
        return CallSpec(options, address=tuple(addresses))

    @call_method("agent.join")
    def join(self, addresses: Sequence[str], **options: Unpack[CallOptions]) -> CallSpec[agents.JoinResult]:
        """Check whether the servers at these addresses are members. Servers join by using the same log."""
        return CallSpec(options, address=tuple(addresses))

    @call_method("agent.force_leave")
    def force_leave(self, node: str, *, prune: bool = False, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Remove the failed server with this name or ID from the list of servers. `prune` has no effect.

        A server that still runs writes its record again.
        """
        return CallSpec(options, node=node, prune=prune)

    @call_method("agent.host")
    def host(
        self, *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[agents.HostReport]:
        """Describe the machine of an agent. Needs `enable_debug` if access control is off.

        `server_id` or `node_id` select another agent.
        """
        return CallSpec(options, server_id=server_id, node_id=node_id)

    @call_method("agent.reload")
    def reload(self, **options: Unpack[CallOptions]) -> CallSpec[None]:
        """Make the replying agent reload its configuration."""
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
        """Stream new log lines of an agent, in chunks of whole lines. Lines logged during an outage are missing.

        `log_level` is the minimum level. `log_json`: each line is a JSON object. `log_include_location` has no effect.
        `server_id` or `node_id` select another agent.
        """
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
        """Download the log file of an agent.

        `service_name` and `logs_since` select a system journal, which is not supported. `server_id` or `node_id` select
        another agent.
        """
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
        """Read the command line of the process that replies. `server_id` or `node_id` select another agent."""
        return CallSpec(options, server_id=server_id, node_id=node_id)

    @call_method("agent.pprof.profile")
    def profile(
        self, *, seconds: int = 1, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[str]:
        """Profile the process that replies. The result is text: one line for each stack, with its sample count.

        `server_id` or `node_id` select another agent.
        """
        return CallSpec(options, seconds=seconds, server_id=server_id, node_id=node_id)

    @call_method("agent.pprof.named")
    def read_stacks(
        self, profile: str = "goroutine", *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[str]:
        """Read the stacks of all asyncio tasks and threads of the server's processes (`goroutine`).

        The profiles `heap` and `allocs` show what the replying process allocates in a second and still uses. `server_id`
        or `node_id` select another agent.
        """
        return CallSpec(options, profile, server_id=server_id, node_id=node_id)

    @call_method("agent.schedulers")
    def schedulers(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSchedulers]:
        """Describe the scheduler process of the replying server."""
        return CallSpec(options)

    @call_method("agent.schedulers_config")
    def schedulers_configuration(self, **options: Unpack[CallOptions]) -> CallSpec[agents.AgentSchedulersConfig]:
        """Read the scheduler settings of the replying server."""
        return CallSpec(options)

    @call_method("agent.set_schedulers_config")
    def set_schedulers_configuration(
        self, request: agents.AgentSchedulersRequest, **options: Unpack[CallOptions]
    ) -> CallSpec[agents.AgentSchedulersConfig]:
        """Check that the replying server has these scheduler settings. Others are refused: they are configured there."""
        return CallSpec(options, body=request)


class StatusMethods(MethodGroup[M]):
    """The methods of `client.status`. Each describes a call, which the client then sends."""

    @call_method("status.leader")
    def leader(self, **options: Unpack[CallOptions]) -> CallSpec[str]:
        """Read the address of the leader; empty if there is no leader."""
        return CallSpec(options)

    @call_method("status.peers")
    def peers(self, **options: Unpack[CallOptions]) -> CallSpec[list[str]]:
        """Read the addresses of all servers."""
        return CallSpec(options)


class MetricMethods(MethodGroup[M]):
    """The methods of `client.metrics`. Each describes a call, which the client then sends."""

    @call_method("metrics.read")
    def read(self, **options: Unpack[CallOptions]) -> CallSpec[agents.Metrics]:
        """Read the metrics of the process that replies and of its server, for the last finished interval."""
        return CallSpec(options)


class RegionMethods(MethodGroup[M]):
    """The methods of `client.regions`. Each describes a call, which the client then sends."""

    @call_method("region.list")
    def list(self, **options: Unpack[CallOptions]) -> CallSpec["tuple[str, ...]"]:
        """List the regions to which this server forwards requests, including its own."""
        return CallSpec(options)


class DocumentMethods(MethodGroup[M]):
    """The methods of `client.documents`. Each describes a call, which the client then sends."""

    @call_method("document.openapi")
    def read_openapi(self, **options: Unpack[CallOptions]) -> CallSpec[dict[str, Any]]:
        """Read the OpenAPI document of all endpoints."""
        return CallSpec(options)

    @call_method("document.job_schema")
    def read_job_schema(self, **options: Unpack[CallOptions]) -> CallSpec[dict[str, Any]]:
        """Read the JSON Schema of job files."""
        return CallSpec(options)

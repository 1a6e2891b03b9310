"""What can be asked about the servers themselves: agents, the cluster's configuration, its events and figures."""

from collections.abc import Sequence
from typing import Any, Unpack

from wharf.client.calls import Call, CallOptions, Read, ReadOptions, Stream, WriteOptions
from wharf.client.methods import M, Noun, calls, reads, streams
from wharf.model.rebalancing import Rebalancing
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.wire import agent_shapes, operator_shapes, shapes
from wharf.wire.event_shapes import EventLine


class Agent(Noun[M]):
    @calls("agent.self")
    def self(self, **options: Unpack[CallOptions]) -> Call[agent_shapes.AgentSelf]:
        return Call(options)

    @calls("agent.members")
    def members(self, **options: Unpack[CallOptions]) -> Call[agent_shapes.AgentMembers]:
        return Call(options)

    @calls("agent.health")
    def health(self, *, types: Sequence[str] = (), **options: Unpack[CallOptions]) -> Call[agent_shapes.AgentHealth]:
        return Call(options, type=tuple(types))

    @calls("agent.servers")
    def servers(self, **options: Unpack[CallOptions]) -> Call[list[str]]:
        return Call(options)

    @calls("agent.set_servers")
    def set_servers(self, addresses: Sequence[str], **options: Unpack[CallOptions]) -> Call[None]:
        return Call(options, address=tuple(addresses))

    @calls("agent.join")
    def join(self, addresses: Sequence[str], **options: Unpack[CallOptions]) -> Call[agent_shapes.JoinResult]:
        return Call(options, address=tuple(addresses))

    @calls("agent.force_leave")
    def force_leave(self, node: str, *, prune: bool = False, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, node=node, prune=prune)

    @calls("agent.host")
    def host(
        self, *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> Call[agent_shapes.HostTold]:
        return Call(options, server_id=server_id, node_id=node_id)

    @calls("agent.reload")
    def reload(self, **options: Unpack[CallOptions]) -> Call[None]:
        return Call(options)

    @streams("agent.monitor")
    def monitor(
        self,
        *,
        log_level: str = "",
        log_json: bool = False,
        log_include_location: bool = False,
        server_id: str = "",
        node_id: str = "",
        **options: Unpack[CallOptions],
    ) -> Stream[bytes]:
        """Its log, from now on, in pieces of whole lines. What is logged during an outage is not in it."""
        return Stream(
            options,
            log_level=log_level,
            log_json=log_json,
            log_include_location=log_include_location,
            server_id=server_id,
            node_id=node_id,
        )

    @streams("agent.monitor_export")
    def export_log(
        self,
        *,
        on_disk: bool = True,
        service_name: str = "",
        logs_since: str = "",
        server_id: str = "",
        node_id: str = "",
        **options: Unpack[CallOptions],
    ) -> Stream[bytes]:
        """Its log so far."""
        return Stream(
            options,
            on_disk=on_disk,
            service_name=service_name,
            logs_since=logs_since,
            server_id=server_id,
            node_id=node_id,
        )

    @calls("agent.pprof.cmdline")
    def command_line(self, *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]) -> Call[str]:
        return Call(options, server_id=server_id, node_id=node_id)

    @calls("agent.pprof.profile")
    def profile(
        self, *, seconds: int = 1, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> Call[str]:
        return Call(options, seconds=seconds, server_id=server_id, node_id=node_id)

    @calls("agent.pprof.named")
    def stacks(
        self, profile: str = "goroutine", *, server_id: str = "", node_id: str = "", **options: Unpack[CallOptions]
    ) -> Call[str]:
        """Where each of its processes stands."""
        return Call(options, profile, server_id=server_id, node_id=node_id)

    @calls("agent.schedulers")
    def schedulers(self, **options: Unpack[CallOptions]) -> Call[agent_shapes.AgentSchedulers]:
        return Call(options)

    @calls("agent.schedulers_config")
    def schedulers_configuration(self, **options: Unpack[CallOptions]) -> Call[agent_shapes.AgentSchedulersConfig]:
        return Call(options)


class Status(Noun[M]):
    @calls("status.leader")
    def leader(self, **options: Unpack[CallOptions]) -> Call[str]:
        """Its address; empty where there is none."""
        return Call(options)

    @calls("status.peers")
    def peers(self, **options: Unpack[CallOptions]) -> Call[list[str]]:
        return Call(options)


class Operator(Noun[M]):
    @calls("operator.state")
    def state(self, **options: Unpack[CallOptions]) -> Call[shapes.StateSizes]:
        return Call(options)

    @reads("operator.scheduler")
    def scheduler_configuration(
        self, **options: Unpack[ReadOptions]
    ) -> Read[operator_shapes.SchedulerConfigurationRead]:
        return Read(options)

    @calls("operator.set_scheduler")
    def set_scheduler_configuration(
        self, configuration: SchedulerConfiguration, *, cas: int | None = None, **options: Unpack[WriteOptions]
    ) -> Call[operator_shapes.SchedulerConfigurationWritten]:
        """The whole document. `cas`: only if the stored one has this ModifyIndex; `updated` tells."""
        return Call(options, body=configuration, cas=cas)

    @calls("operator.rebalance")
    def rebalance(self, *, plan: bool = False, **options: Unpack[WriteOptions]) -> Call[Rebalancing]:
        """Move what would stand better elsewhere, a few of each group at a time. `plan`: only tell of it."""
        return Call(options, plan=plan)

    @reads("operator.raft")
    def servers(self, **options: Unpack[ReadOptions]) -> Read[operator_shapes.RaftConfiguration]:
        """The servers of the region, and which of them leads."""
        return Read(options)

    @calls("operator.remove_peer")
    def remove_server(self, id: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, id=id)

    @calls("operator.transfer")
    def transfer_leadership(self, *, id: str = "", address: str = "", **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, id=id, address=address)

    @reads("operator.autopilot")
    def autopilot(self, **options: Unpack[ReadOptions]) -> Read[operator_shapes.AutopilotDocument]:
        return Read(options)

    @calls("operator.set_autopilot")
    def set_autopilot(
        self, document: operator_shapes.AutopilotDocument, *, cas: int | None = None, **options: Unpack[WriteOptions]
    ) -> Call[bool]:
        return Call(options, body=document, cas=cas)

    @calls("operator.health")
    def health(self, **options: Unpack[CallOptions]) -> Call[operator_shapes.AutopilotHealth]:
        """Of all servers, also where one of them is not well."""
        return Call(options)

    @streams("operator.save_snapshot")
    def save_snapshot(self, **options: Unpack[CallOptions]) -> Stream[bytes]:
        """The whole state, piece by piece."""
        return Stream(options)

    @calls("operator.restore_snapshot")
    def restore_snapshot(self, snapshot: bytes, **options: Unpack[CallOptions]) -> Call[None]:
        return Call(options, body=snapshot)


class System(Noun[M]):
    @calls("system.gc")
    def collect(self, **options: Unpack[WriteOptions]) -> Call[None]:
        """Have everything forgotten that nobody needs any more."""
        return Call(options)

    @calls("system.reconcile")
    def reconcile_summaries(self, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options)


class Events(Noun[M]):
    @streams("event.stream")
    def stream(
        self, topics: Sequence[str] = (), *, index: int | None = None, **options: Unpack[CallOptions]
    ) -> Stream[EventLine]:
        """What happens, for ever; after an outage it goes on where it was. Topics as `Job`, `Job:web`, `*`.

        Servers keep the last hundred changes at least: what an outage made anybody miss beyond these is not in it.
        """
        return Stream(options, index=None if index is None else str(index), topic=tuple(topics))


class Metrics(Noun[M]):
    @calls("metrics.read")
    def read(self, **options: Unpack[CallOptions]) -> Call[agent_shapes.Metrics]:
        return Call(options)


class Regions(Noun[M]):
    @calls("region.list")
    def list(self, **options: Unpack[CallOptions]) -> Call["tuple[str, ...]"]:
        return Call(options)


class Documents(Noun[M]):
    @calls("document.openapi")
    def openapi(self, **options: Unpack[CallOptions]) -> Call[dict[str, Any]]:
        """All endpoints, in the form of OpenAPI."""
        return Call(options)

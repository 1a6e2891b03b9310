"""Endpoints about one agent: what it is, how it does, what it logs, what its processes do just now."""

from typing import Any, Final

from wharf.model import need
from wharf.model.need import Manner
from wharf.wire import agent_shapes as shapes
from wharf.wire.endpoints.endpoint import Endpoint, Kind, Parameter, tells, text, texts, writes

_NO_GOSSIP: Final = "servers find each other through the log and talk over HTTPS: there is no gossip, and no key for it"
_ONE_SCHEDULER: Final = "one process schedules on each server; its settings are those of the configuration's [server]"

SERVER_OR_NODE: Final = (
    text("server_id", "Pass the request on to this server: its id or name, or `leader`."),
    text("node_id", "Pass the request on to this node."),
)
_PPROF: Final = (*SERVER_OR_NODE, text("seconds", "How long to look; 1 where it is not given."))


def _does(name: str, path: str, **more: Any) -> Endpoint:
    """A PUT that this server does itself."""
    return Endpoint(name=name, method="PUT", path=path, kind=Kind.LOCAL, **more)


def _pprof(name: str, path: str, summary: str, *, parameters: tuple[Parameter, ...] = _PPROF) -> Endpoint:
    return tells(
        f"agent.pprof.{name}", f"/v1/agent/pprof/{path}", need=need.WRITE_AGENT, summary=summary, returns=str,
        media="text/plain", parameters=parameters, refuses=(501,),
    )  # fmt: skip


ROWS: Final[tuple[Endpoint, ...]] = (
    tells(
        "agent.self", "/v1/agent/self", need=need.READ_AGENT, manner=Manner.AGENT, returns=shapes.AgentSelf,
        summary="This agent: its configuration without secrets, itself as a member, figures.",
    ),
    tells(
        "agent.members", "/v1/agent/members", need=need.READ_NODE, summary="List the servers of this region.",
        returns=shapes.AgentMembers,
    ),
    tells(
        "agent.health", "/v1/agent/health", need=need.NOTHING, summary="Whether this agent is well; 500 where it is not.",
        returns=shapes.AgentHealth,
        parameters=(texts("type", "`server` or `client`; both where it is not given."),),
    ),
    tells(
        "agent.servers", "/v1/agent/servers", need=need.READ_AGENT, returns=list[str],
        summary="The servers that the node of this agent knows.", refuses=(501,),
    ),
    _does(
        "agent.set_servers", "/v1/agent/servers", need=need.WRITE_AGENT,
        summary="Name the servers that the node of this agent uses.",
        parameters=(texts("address", "The HTTP address of a server; may be repeated."),), refuses=(501,),
    ),
    _does(
        "agent.join", "/v1/agent/join", need=need.ANY_TOKEN, returns=shapes.JoinResult,
        summary="Whether servers are members. They join by themselves, through the log that they share.",
        parameters=(texts("address", "The HTTP address of a server; may be repeated."),),
    ),
    writes(
        "agent.force_leave", "/v1/agent/force-leave", need=need.WRITE_AGENT, manner=Manner.AGENT_SHORT,
        summary="Forget a server that is gone. One that lives writes its record again.",
        parameters=(
            text("node", "The server's name, or its id."),
            text("prune", "Taken and passed over: nothing is kept of a server that left."),
        ),
    ),
    tells(
        "agent.host", "/v1/agent/host", need=need.READ_AGENT, manner=Manner.AGENT, returns=shapes.HostTold,
        summary="The machine that this agent runs on. Needs `enable_debug` where access control is off.",
        parameters=SERVER_OR_NODE, refuses=(501,),
    ),
    _does(
        "agent.reload", "/v1/agent/reload", need=need.WRITE_AGENT, manner=Manner.AGENT,
        audited=True, summary="Read the configuration again.",
    ),
    tells(
        "agent.monitor", "/v1/agent/monitor", need=need.READ_AGENT, returns=shapes.MonitorFrame, refuses=(501,),
        summary="Lines of the log of all processes of this server, as they are written, for as long as you listen.",
        parameters=(
            text("log_level", "The least level: trace, debug, info, warn or error; info where it is not given."),
            text("log_json", "Whether each line is a JSON object."),
            text("plain", "Whether lines come as plain text; else each comes in a JSON frame, as base64."),
            text("log_include_location", "Taken and passed over: each line names its logger."),
            *SERVER_OR_NODE,
        ),
    ),
    tells(
        "agent.monitor_export", "/v1/agent/monitor/export", need=need.READ_AGENT, returns=shapes.MonitorFrame,
        summary="The log file of this agent.", refuses=(501,),
        parameters=(
            text("on_disk", "Whether the log file is asked for."),
            text("service_name", "A unit of the system's journal; not served."),
            text("logs_since", "How far back, for the journal; 72h where it is not given."),
            text("follow", "Whether to go on with new lines; not served for files."),
            text("plain", "Whether the file comes as plain text; else in JSON frames, as base64."),
            *SERVER_OR_NODE,
        ),
    ),
    _pprof("cmdline", "cmdline", "The command line of the process that answers.", parameters=SERVER_OR_NODE),
    _pprof("profile", "profile", "Where the process that answers spends its time: folded stacks with counts."),
    tells(
        "agent.pprof.trace", "/v1/agent/pprof/trace", need=need.WRITE_AGENT, summary="A trace of execution: left out.",
        parameters=_PPROF, left_out="Python has no execution trace: use agent/pprof/profile or agent/pprof/goroutine",
    ),
    _pprof("named", "{profile}", "`goroutine`: the stacks of all tasks and threads of all processes of this server."),
    tells(
        "agent.schedulers", "/v1/agent/schedulers", need=need.READ_AGENT, manner=Manner.AGENT_SHORT,
        summary="The scheduler of this server.", returns=shapes.AgentSchedulers,
    ),
    tells(
        "agent.schedulers_config", "/v1/agent/schedulers/config", need=need.READ_AGENT, manner=Manner.AGENT_SHORT,
        summary="The settings of this server's scheduler.", returns=shapes.AgentSchedulersConfig,
    ),
    _does(
        "agent.set_schedulers_config", "/v1/agent/schedulers/config", need=need.WRITE_AGENT,
        manner=Manner.AGENT_SHORT, summary="Change the settings of this server's scheduler: left out.",
        left_out=_ONE_SCHEDULER,
    ),
    tells(
        "agent.gossip_keys", "/v1/agent/keyring/list", need=need.WRITE_AGENT, manner=Manner.AGENT_SHORT,
        summary="Keys of gossip: left out.", left_out=_NO_GOSSIP,
    ),
    _does(
        "agent.change_gossip_keys", "/v1/agent/keyring/{operation}", need=need.WRITE_AGENT, manner=Manner.AGENT_SHORT,
        summary="Change keys of gossip: left out.", left_out=_NO_GOSSIP,
    ),
)  # fmt: skip

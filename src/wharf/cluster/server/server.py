"""One serving process: its replica of the state, and its ways to read, to write and to ask the leader."""

import msgspec

from wharf.cluster.engines.port import LogEngine
from wharf.cluster.operations.search import SearchLimits
from wharf.cluster.server.agent_interface import AgentInterface, NoAgentInterface
from wharf.cluster.server.events import MAX_BUFFERED_COMMITS, EventFeed
from wharf.cluster.server.log.bootstrap import ClusterBootstrap
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.reader import Reader
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.server.metrics import RequestMeter
from wharf.cluster.server.node_channels.connections import LocalNodeChannels
from wharf.cluster.server.node_channels.port import NodeChannels
from wharf.cluster.server.relay import RequestRelay
from wharf.cluster.server.rpc.leader import LeaderClient, RpcTransport
from wharf.cluster.server.security.access_services import AccessServices
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALL_TABLES
from wharf.contract.client.relay.port import Relay
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.world import World


class ServerIdentity(msgspec.Struct, frozen=True):
    """Who this server is."""

    member_id: str
    name: str
    region: str = "global"
    datacenter: str = "dc1"
    address: str = "127.0.0.1:4646"
    door_secret: str = ""


class Server:
    """What handlers work with. Made once a process; `brain` and `leader` are set by the wiring, which knows the links."""

    brain_transport: RpcTransport
    """The way to this server's own brain."""

    leader: LeaderClient
    """The way to whoever leads."""

    def __init__(
        self,
        world: World,
        engine: LogEngine,
        identity: ServerIdentity,
        *,
        job_settings: JobSettings | None = None,
        scheduler: SchedulerConfiguration | None = None,
    ) -> None:
        """`scheduler`: what scheduling begins with, where this server founds the cluster."""
        self.world = world
        self.engine = engine
        self.identity = identity
        self.job_settings = job_settings or JobSettings(region=identity.region)
        self.replica = Replica(ALL_TABLES)
        self.follower = Follower(world, engine, self.replica)
        self.reader = Reader(world, engine, self.follower)
        self.writer = Writer(world, engine, self.follower)
        self.bootstrap = ClusterBootstrap(self.follower, self.writer, scheduler=scheduler)
        self.events: EventFeed | None = None
        """What streams of events are fed from; set by the wiring where this process serves any."""
        self.local_channels = LocalNodeChannels()
        """The connections of nodes to this process."""
        self.node_channels: NodeChannels = self.local_channels
        """The ways to nodes, wherever their connections are."""
        self.access = AccessServices(world)
        self.search_limits = SearchLimits()
        """How far searches go; set by the wiring from the configuration."""
        self.meter = RequestMeter(world)
        self.relay = RequestRelay(_no_passage)
        """The ways to other regions and members, for whole requests; set by the wiring where there are any."""
        self.agent: AgentInterface = NoAgentInterface()
        """The agent around this server; set by the wiring where there is one."""

    def enable_events(self, *, max_commits: int = MAX_BUFFERED_COMMITS) -> None:
        """Keep the last commits for those who listen to events. A process that serves none need not."""
        self.events = EventFeed(self.follower, max_commits=max_commits)
        self.reader.close_listeners.append(self.events.close)

    async def bootstrap_cluster(self) -> None:
        """Write the records that a new cluster begins with, where nobody has yet."""
        await self.bootstrap.bootstrap()


def _no_passage(address: str) -> Relay:
    raise Unreachable(f"this server has no way to {address}", is_sent=False)

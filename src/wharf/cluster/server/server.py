"""One serving process: its replica, reader, writer, event feed and clients of the leader and other servers."""

from collections.abc import Callable, Hashable, Iterable

import msgspec

from wharf.cluster.engines.port import LogEngine
from wharf.cluster.operations.search import SearchLimits
from wharf.cluster.server.agent_interface import AgentInterface, NoAgentInterface
from wharf.cluster.server.cpu_budget import OffLoopWorker, ReadLimits, SlicedWork
from wharf.cluster.server.events import MAX_BUFFERED_COMMITS, EventFeed
from wharf.cluster.server.limiter_interface import GatewayInterface, LimiterInterface
from wharf.cluster.server.log.bootstrap import ClusterBootstrap
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.reader import Reader
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.server.metrics import RequestMeter
from wharf.cluster.server.node_channels.connections import LocalNodeChannels
from wharf.cluster.server.node_channels.port import NodeChannels
from wharf.cluster.server.relay import RequestRelay
from wharf.cluster.server.rpc.heartbeats import HeartbeatForwarder
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.rpc.method import RpcTransport
from wharf.cluster.server.security.access_services import AccessServices
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALL_TABLES, LEADER
from wharf.contract.client.relay.port import Relay
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.world import World


class ServerIdentity(msgspec.Struct, frozen=True):
    """The id, name, location and address of this server."""

    member_id: str
    name: str
    region: str = "global"
    datacenter: str = "dc1"
    address: str = "127.0.0.1:4646"
    door_secret: str = ""
    """Other members send this secret with RPC calls to this server."""


class Server:
    """The services that request handlers use; one per process.

    The wiring in `agent.roles` sets `brain_transport` and `leader`, because it knows the transports.
    """

    brain_transport: RpcTransport
    """Calls this server's own brain."""

    leader: LeaderClient
    """Calls the leader's brain."""

    def __init__(
        self,
        world: World,
        engine: LogEngine,
        identity: ServerIdentity,
        *,
        job_settings: JobSettings,
        search_limits: SearchLimits,
        scheduler: SchedulerConfiguration | None = None,
    ) -> None:
        """`scheduler`: the first scheduler configuration, used if this server bootstraps the cluster."""
        self.world = world
        self._started_s = world.monotonic_s()
        self.engine = engine
        self.identity = identity
        self.job_settings = job_settings
        self.replica = Replica(ALL_TABLES)
        self.follower = Follower(world, engine, self.replica)
        self.reader = Reader(world, engine, self.follower)
        self.writer = Writer(world, engine, self.follower)
        self.heartbeats = HeartbeatForwarder(world, lambda: self.leader)
        """Passes heartbeats of nodes to the leader."""
        self.bootstrap = ClusterBootstrap(self.follower, self.writer, scheduler=scheduler, new_id=world.new_id)
        self.events: EventFeed | None = None
        """The source of event streams; `None` if this process serves none. Set by the wiring."""
        self.local_channels = LocalNodeChannels()
        """Node connections held by this process."""
        self.node_channels: NodeChannels = self.local_channels
        """Channels to nodes, whichever process holds their connections."""
        self.access = AccessServices(world)
        self.search_limits = search_limits
        self.read_limits = ReadLimits()
        """The CPU time that a read may use; set by the wiring from the configuration."""
        self.off_loop = OffLoopWorker(world)
        self.meter = RequestMeter(world)
        self.relay = RequestRelay(world, _refuse_relay)
        """Forwards whole requests to other regions and members. Set by the wiring if there are any."""
        self.list_sink_gauges: Callable[[], Iterable[tuple[str, float, str]]] = tuple
        """Returns name, value and sink of each gauge of the sinks of records. Set by the wiring if there are any."""
        self.limiter: LimiterInterface | None = None
        """The rate limiter in front of the API of this process; `None` without rate limits. Set by the wiring."""
        self.gateway: GatewayInterface | None = None
        """The gateway that the configuration names; `None` without one. Set by the wiring."""
        self.agent: AgentInterface = NoAgentInterface()
        """The agent that runs this server. Set by the wiring if there is one."""

    def make_list_work(self, owner: Hashable) -> SlicedWork:
        """Return work in slices within `api.max_list_cpu`. `owner`: the caller that requested it."""
        return SlicedWork(self.world, self.off_loop, self.read_limits.make_list_budget(), owner)

    @property
    def owns_global_records(self) -> bool:
        """Whether this region decides writes of global records, instead of relaying them to the authoritative region."""
        return self.access.settings.owns_global_records(self.identity.region)

    def is_leader(self) -> bool:
        """Whether this server leads, as far as it knows: it is in contact with the log, which names it as the leader."""
        leader = self.replica.get(LEADER)
        return leader is not None and leader.member_id == self.identity.member_id and self.reader.has_leader()

    def get_leader_contact_ms(self) -> int:
        """Return the milliseconds since this server was last in contact with the leader: 0 if it is the leader.

        Members are in contact with the leader through the log. Without any contact, returns the time since the start.
        """
        if self.is_leader():
            return 0
        contact_ms = self.reader.last_contact_ms()
        return round((self.world.monotonic_s() - self._started_s) * 1_000) if contact_ms is None else contact_ms

    def enable_events(self, *, max_commits: int = MAX_BUFFERED_COMMITS) -> None:
        """Start to buffer the last commits for event streams. Processes without event streams do not call this."""
        self.events = EventFeed(self.world, self.follower, max_commits=max_commits)
        self.reader.close_listeners.append(self.events.close)

    async def bootstrap_cluster(self) -> None:
        """Write the first records of a new cluster, unless it already has them."""
        await self.bootstrap.bootstrap()


def _refuse_relay(address: str) -> Relay:
    """Stand in for the relay in servers that have none: every address is unreachable."""
    raise Unreachable(f"this server has no relay to {address}", is_sent=False)

"""One serving process: its replica of the state, and its ways to read, to write and to ask the leader."""

import msgspec

from wharf.client.exchange import Unreachable
from wharf.client.passage import Passage
from wharf.engines.port import Engine
from wharf.model.job_settings import JobSettings
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.operations.search import SearchLimits
from wharf.server.access import Access
from wharf.server.agent_door import AgentDoor, NoAgent
from wharf.server.asking import Leader, Link
from wharf.server.event_feed import COMMITS_KEPT, EventFeed
from wharf.server.follower import Follower
from wharf.server.founder import Founder
from wharf.server.held_channels import HeldChannels
from wharf.server.meter import Meter
from wharf.server.node_channels import NodeChannels
from wharf.server.passing import Passing
from wharf.server.reading import Reader
from wharf.server.writer import Writer
from wharf.state import Replica
from wharf.state.tables import ALL_TABLES
from wharf.world import World


class Identity(msgspec.Struct, frozen=True):
    """Who this server is."""

    member_id: str
    name: str
    region: str = "global"
    datacenter: str = "dc1"
    address: str = "127.0.0.1:4646"
    door_secret: str = ""


class Server:
    """What handlers work with. Made once a process; `brain` and `leader` are set by the wiring, which knows the links."""

    brain: Link
    """The way to this server's own brain."""

    leader: Leader
    """The way to whoever leads."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        identity: Identity,
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
        self.founder = Founder(self.follower, self.writer, scheduler=scheduler)
        self.events: EventFeed | None = None
        """What streams of events are fed from; set by the wiring where this process serves any."""
        self.held = HeldChannels()
        """The connections of nodes to this process."""
        self.channels: NodeChannels = self.held
        """The ways to nodes, wherever their connections are."""
        self.access = Access(world)
        self.search_limits = SearchLimits()
        """How far searches go; set by the wiring from the configuration."""
        self.meter = Meter(world)
        self.passing = Passing(_no_passage)
        """The ways to other regions and members, for whole requests; set by the wiring where there are any."""
        self.agent: AgentDoor = NoAgent()
        """The agent around this server; set by the wiring where there is one."""

    def feed_events(self, *, commits_kept: int = COMMITS_KEPT) -> None:
        """Keep the last commits for those who listen to events. A process that serves none need not."""
        self.events = EventFeed(self.follower, commits_kept=commits_kept)
        self.reader.on_close.append(self.events.close)

    async def found(self) -> None:
        """Write the records that a new cluster begins with, where nobody has yet."""
        await self.founder.found()


def _no_passage(address: str) -> Passage:
    raise Unreachable(f"this server has no way to {address}", sent=False)

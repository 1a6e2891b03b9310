"""The node: its parts put together, and their life from the first registration to the end."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final

from wharf.client import AsyncClient
from wharf.client.doors import Door
from wharf.client.sockets import SocketPassage
from wharf.model.node import NodeEventSubsystem
from wharf.node.agent.arrivals import Arrivals
from wharf.node.agent.asked import Asked, FilesAsked
from wharf.node.agent.channel_line import ChannelLine
from wharf.node.agent.commands import Commands
from wharf.node.agent.connecting import Connecting
from wharf.node.agent.departures import Departures
from wharf.node.agent.environment import Place
from wharf.node.agent.folders import AllocationFolders
from wharf.node.agent.interpolation import facts_of
from wharf.node.agent.journal import Journal, Remembered, Settled
from wharf.node.agent.journal_file import FileOnDisk
from wharf.node.agent.keeper_link import KeeperLink
from wharf.node.agent.leaving import Leaving
from wharf.node.agent.likeness import Likeness
from wharf.node.agent.measured import Measured
from wharf.node.agent.metadata import Metadata, MetadataAsked
from wharf.node.agent.naming import Naming
from wharf.node.agent.news import NodeNews
from wharf.node.agent.own_identity import OwnIdentity
from wharf.node.agent.places import NodePlaces
from wharf.node.agent.servers import NodeIdentity, ServerTalk
from wharf.node.agent.steered import Steered
from wharf.node.agent.upkeep import Upkeep
from wharf.node.agent.volume_use import users_of
from wharf.node.agent.works import Works
from wharf.node.core.collection import Bounds
from wharf.node.core.outcome import Outcome
from wharf.node.devices.devices import NodeDevices
from wharf.node.docker.config import DockerSettings
from wharf.node.drivers.docker import Docker, find_socket
from wharf.node.drivers.exec import Exec
from wharf.node.drivers.missing import Missing
from wharf.node.drivers.mock import Mock
from wharf.node.drivers.plugins import DriverPlugins
from wharf.node.drivers.port import Driver
from wharf.node.drivers.processes_beside import MARK, kill_marked
from wharf.node.drivers.raw_exec import RawExec
from wharf.node.measuring import MachineMeter, TaskMeter
from wharf.node.settings import ClientSettings
from wharf.node.supervisor.messages import ForgetRun, KillRun
from wharf.node.supervisor.processes import boot_id
from wharf.node.volumes.views import Views
from wharf.node.volumes.volumes import NodeVolumes
from wharf.node.walls import DEFAULT_FOLDERS
from wharf.world import World

log = logging.getLogger(__name__)

JOURNAL: Final = "journal"
METADATA: Final = "metadata.json"
LEFT: Final = "left"
JOURNAL_AGAIN_S: Final = 1.0
"""How often a journal that cannot be read or written is tried again."""


class NodeAgent:
    def __init__(
        self,
        world: World,
        client: AsyncClient,
        settings: ClientSettings,
        places: NodePlaces,
        identity: NodeIdentity,
        servers: Sequence[SocketPassage],
        doors: Sequence[Door] = (),
    ) -> None:
        """`servers`: the ways to them for the node's channel, used in turn; `doors`: for what tasks ask themselves."""
        self._world = world
        self._settings = settings
        self._places = places
        self._identity = identity
        places.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._news = NodeNews(world)
        self._journal = Journal(FileOnDisk(places.state_folder / JOURNAL), boot_id(), on_trouble=self._on_journal)
        self._folders = AllocationFolders(places.allocation_folder, removed_at_once=settings.gc_parallel_destroys)
        self.link = KeeperLink(world, places.state_folder, identity.id, self, way=settings.finds_left_overs_by)
        raw_exec = RawExec(
            self.link,
            is_allowed=settings.drivers.raw_exec.enabled,
            bounds_memory=settings.drivers.raw_exec.bounds_memory,
        )
        self._docker = self._docker_driver()
        walled = Exec(self.link, settings.drivers.exec, settings.chroot_env or DEFAULT_FOLDERS, places.state_folder)
        found: list[Driver] = [
            raw_exec,
            walled,
            self._docker,
            Mock(self),
            Mock(self, name="mock_driver"),
            Missing(self),
        ]
        self._drivers: dict[str, Driver] = {driver.name: driver for driver in found}
        self._supervised: tuple[Driver, ...] = (raw_exec, walled)
        self._metadata = Metadata(places.state_folder / METADATA, settings.meta)
        self._own_identity = OwnIdentity(world, client, identity, self._news.has_changed)
        self._connecting = Connecting(world, settings, identity.id)
        self._devices = NodeDevices(world, settings.options, partial(self._news.happened, NodeEventSubsystem.DRIVER))
        self._views = Views(places.state_folder / "read-only")
        self._volumes = NodeVolumes(
            settings.host_volume,
            state_folder=places.state_folder,
            volumes_folder=Path(settings.host_volumes_dir or places.state_folder.parent / "host_volumes"),
            plugins_folder=Path(settings.host_volume_plugin_dir or places.state_folder.parent / "host_volume_plugins"),
            node_id=identity.id,
            node_pool=settings.node_pool,
            tell=partial(self._news.happened, NodeEventSubsystem.STORAGE),
            on_change=self._news.has_changed,
            users_of=lambda name: users_of(self.works, name),
            on_gone=self._views.let_go,
        )
        self._likeness = Likeness(
            world,
            identity.id,
            settings,
            places,
            self._drivers,
            news=self._news,
            metadata=self._metadata,
            own_identity=self._own_identity,
            connecting=self._connecting,
            volumes=self._volumes,
            devices=self._devices,
        )
        machine = self._likeness.machine
        facts = facts_of(self._likeness.node(), region=places.region)
        place = Place(
            places.datacenter,
            places.region,
            machine.address,
            node_id=identity.id,
            node_name=places.name,
            total_mhz=machine.resources.cpu.cpu_shares,
            volumes=self._volumes.by_name,
        )
        naming = Naming(world, client, identity, doors)
        self._upkeep = Upkeep(world, naming, place, self._views, self._connecting, self._devices)
        self.works = Works(
            world,
            self._journal,
            self._folders,
            self._drivers,
            place=place,
            facts=facts,
            upkeep=self._upkeep,
            on_change=self._on_change,
            on_taken_port=self._likeness.take_port,
            max_kill_timeout_s=settings.max_kill_timeout.s,
            log_tail_bytes=settings.log_tail_bytes,
            arrivals=Arrivals(client, identity, self._folders),
        )
        self._upkeep.attach(self.works)
        self._plugins = DriverPlugins(
            world,
            self.works,
            options=settings.options,
            folder=places.state_folder / "drivers",
            tell=partial(self._news.happened, NodeEventSubsystem.DRIVER),
        )
        self.talk = ServerTalk(world, client, identity, self.works, self._likeness.describe)
        self._leaving = Leaving(
            world,
            client,
            identity,
            self.works,
            places.state_folder / LEFT,
            settings=settings.drain_on_shutdown,
            within_s=settings.leaves_within_s,
        )
        self.line = ChannelLine(world, self._asked(), identity, cycle(servers).__next__)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Until cancelled."""
        await self._plugins.add_to(self._drivers)
        await self._likeness.begin()
        remembered = await self._remember(on_ready)
        self.works.load(remembered, is_other_boot=self._journal.was_other_boot)
        self._connecting.sweep({work.record.id for work in self.works.live()})
        for driver in self._drivers.values():
            if driver not in self._supervised:
                await self.works.recover(driver)
        tasks = [
            self._world.start(self.link.run(self._on_supervisor), name="node supervisor"),
            self._world.start(self.works.keep_time(), name="node time"),
            self._world.start(self.talk.run(), name="node servers"),
            self._world.start(self._keep_channel(), name="node channel"),
            self._world.start(self._likeness.look_again(), name="node fingerprint"),
            self._world.start(self._tell_news(), name="node news"),
            self._world.start(self._mend_journal(), name="node journal"),
            self._world.start(self._keep_room(), name="node room"),
            self._world.start(self._measured.keep_history(), name="node figures"),
            self._world.start(self._come_back(), name="node back"),
            self._world.start(self._keep_identity(), name="node identity"),
        ]
        on_ready()
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._upkeep.close()
            await self._docker.close()

    async def leave(self) -> None:
        """Have its work moved away. Call while `run` goes on."""
        await self._leaving.leave(self.talk.has_told_all)

    async def _come_back(self) -> None:
        await self.talk.is_registered.wait()
        await self._leaving.come_back()

    async def end_all(self) -> None:
        """Stop every task, and the supervisor when all have ended. Call while `run` goes on."""
        await self.works.stop_all()
        self._views.let_all_go()
        await self.link.end()

    async def _on_supervisor(self) -> None:
        """All runs of a supervisor have been told, of this life or of one before."""
        log.info(
            "the supervisor is there",
            extra={"supervisor": str(self.link.pid), "finds_left_overs_by": self.link.finds_by},
        )
        await self._likeness.probe()  # What can be bounded is known only now.
        self._news.has_changed()
        for driver in self._supervised:
            await self.works.recover(driver)
        for run in self.link.runs():
            if not self.works.is_wanted(run):
                # A start that nobody remembers is ended, never repeated.
                self.link.say(KillRun(run))
                self.works.when_kept(partial(self.link.say, ForgetRun(run)))

    # -- what is asked of the node

    def _asked(self) -> Asked:
        steered = Steered(self.works, self._upkeep.check_results)
        cpu = self._likeness.machine.resources.cpu
        mhz = cpu.cpu_shares
        core_mhz = mhz // max(1, cpu.total_cpu_cores)
        self._measured = Measured(
            self._world,
            self.works,
            MachineMeter(
                self._world, self._places.allocation_folder, mhz=mhz, figures_of_devices=self._devices.figures
            ),
            TaskMeter(self._world, mhz=core_mhz),
            mhz=mhz,
            core_mhz=core_mhz,
        )
        metadata = MetadataAsked(self._metadata, self._on_metadata)
        files = FilesAsked(self._folders, steered.is_over, steered.has_begun)
        commands = Commands(
            self._world, self.works, is_allowed=not self._settings.disable_remote_exec, mark=self._identity.id
        )
        departures = Departures(self._folders, steered.tasks_if_over)
        rooms = (self._own_identity, self._volumes, files, steered, self._measured, metadata, commands, departures)
        return Asked({verb: answer for room in rooms for verb, answer in room.answers().items()})

    async def _keep_identity(self) -> None:
        await self.talk.is_registered.wait()
        await self._own_identity.keep()

    async def _keep_channel(self) -> None:
        """A server takes the channel only of a node that it knows."""
        await self.talk.is_registered.wait()
        # Commands of an earlier life of this agent have no caller any more.
        kill_marked(f"{MARK}={self._identity.id}.", is_whole=False)
        await self.line.run()

    async def _on_metadata(self) -> None:
        self.works.facts = facts_of(self._likeness.node(), region=self._places.region)
        self._news.has_changed()

    # -- what drivers say

    def on_begun(self, run: str) -> None:
        self.works.on_begun(run)

    def on_refused(self, run: str, why: str) -> None:
        self.works.on_refused(run, why)

    def on_said(self, run: str, message: str) -> None:
        self.works.on_said(run, message)

    def on_ended(self, run: str, outcome: Outcome) -> None:
        if self.works.is_wanted(run):
            self.works.on_ended(run, outcome)
        elif self._docker.knows(run):
            self.works.when_kept(partial(self._docker.forget, run))
        else:
            self.works.when_kept(partial(self.link.say, ForgetRun(run)))

    def _on_change(self, allocation_id: str) -> None:
        self.talk.changed(allocation_id)

    def _docker_driver(self) -> Docker:
        wanted = self._settings.drivers.docker
        return Docker(
            self._world,
            self,
            socket=find_socket(wanted.socket),
            settings=DockerSettings(
                volumes_enabled=wanted.volumes_enabled,
                allow_privileged=wanted.allow_privileged,
                allow_capabilities=wanted.allow_caps,
                allow_runtimes=wanted.allow_runtimes,
                extra_labels=wanted.extra_labels,
            ),
            node_id=self._identity.id,
            folder=self._places.state_folder / "containers",
            is_wanted=lambda run: self.works.is_wanted(run),
        )

    async def working_drivers(self) -> list[str]:
        return await self._likeness.working_drivers()

    async def _tell_news(self) -> None:
        await self.talk.is_registered.wait()
        await self._news.tell(self.talk.describe_again)

    # -- the journal

    async def _remember(self, on_ready: Callable[[], None]) -> dict[str, Remembered | Settled]:
        """What the journal holds. A node that cannot know what it runs takes no work, and waits until it can."""
        said = ""
        while True:
            try:
                remembered = self._journal.load()
            except OSError as error:
                if said != str(error):
                    said = str(error)
                    log.error("the node's journal cannot be read; the node waits until it can be: %s", error)
                on_ready()
                await asyncio.sleep(JOURNAL_AGAIN_S)
                continue
            if self._journal.damage:
                self._news.happened(NodeEventSubsystem.STORAGE, self._journal.damage)
            return remembered

    def _on_journal(self, why: str) -> None:
        if why:
            log.error("the node's journal cannot be written: %s; nothing new is started until it can be", why)
            message = "The node's journal cannot be written. What runs goes on; nothing new is started until it can be"
            self._news.happened(NodeEventSubsystem.STORAGE, message, error=why)
        else:
            log.warning("the node's journal can be written again")
            self._news.happened(NodeEventSubsystem.STORAGE, "The node's journal can be written again")

    async def _mend_journal(self) -> None:
        while True:
            await asyncio.sleep(JOURNAL_AGAIN_S)
            self._journal.mend()

    async def _keep_room(self) -> None:
        settings = self._settings
        bounds = Bounds(
            allocations=settings.gc_max_allocs,
            disk_percent=settings.gc_disk_usage_threshold,
            inodes_percent=settings.gc_inode_usage_threshold,
            at_once=settings.gc_parallel_destroys,
        )
        while True:
            await asyncio.sleep(settings.gc_interval.s)
            before: list[str] = []
            # What cannot be removed is not tried again at once.
            while (chosen := self.works.collect(self._folders.room(), bounds)) and chosen != before:
                before = chosen
                await self._folders.emptied()  # Only then the disk tells whether that was enough.

"""The node: its parts put together, and their life from the first registration to the end."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final

from wharf.contract.client import AsyncClient
from wharf.contract.client.relay.dialers import Dialer
from wharf.contract.client.relay.websockets import SocketRelay
from wharf.contract.model.nodes.node import NodeEventSubsystem
from wharf.node.agent.allocations.journal import DiskJournalFile, NodeJournal, RestoredAllocation, SettledAllocation
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.agent.allocations.task_hooks import LocalTaskHooks
from wharf.node.agent.fingerprint.metadata import MetadataHandlers, NodeMetadata
from wharf.node.agent.fingerprint.node import NodeFingerprint
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.node.agent.servers.node_identity import SignedNodeIdentity
from wharf.node.agent.servers.session import NodeCredentials, ServerSession
from wharf.node.agent.shutdown_drain import ShutdownDrain
from wharf.node.channel.allocations import AllocationHandlers
from wharf.node.channel.connection import ChannelConnection
from wharf.node.channel.exec import ExecHandlers
from wharf.node.channel.files import FileHandlers, RequestDispatcher
from wharf.node.channel.stats import StatsHandlers
from wharf.node.core.garbage_collection import CollectionLimits
from wharf.node.core.outcome import Outcome
from wharf.node.devices.node_devices import NodeDevices
from wharf.node.drivers.command_process import COMMAND_MARK_VARIABLE, kill_marked_processes
from wharf.node.drivers.docker.config import DockerSettings
from wharf.node.drivers.docker.driver import DockerDriver, find_socket
from wharf.node.drivers.exec import ExecDriver
from wharf.node.drivers.missing import MissingDriver
from wharf.node.drivers.mock import MockDriver
from wharf.node.drivers.plugins import DriverPlugins
from wharf.node.drivers.port import Driver
from wharf.node.drivers.raw_exec import RawExecDriver
from wharf.node.migration.download import MigrationDownloader
from wharf.node.migration.upload import MigrationUploader
from wharf.node.networks.allocation_networks import AllocationNetworks
from wharf.node.sandbox import DEFAULT_FOLDERS
from wharf.node.settings import NodeLocation, NodeSettings
from wharf.node.statistics import MachineMeter, TaskMeter
from wharf.node.supervisor.client import SupervisorClient
from wharf.node.supervisor.messages import ForgetRun, KillRun
from wharf.node.supervisor.processes import read_boot_id
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.folders import AllocationFolders
from wharf.node.tasks.identities.manager import TaskIdentityManager
from wharf.node.tasks.interpolation import build_reference_values
from wharf.node.tasks.resources import list_volume_users
from wharf.node.volumes.node_volumes import NodeVolumes
from wharf.node.volumes.task_links import ReadOnlyMounts
from wharf.world import World

log = logging.getLogger(__name__)

JOURNAL_FILE: Final = "journal"
METADATA_FILE: Final = "metadata.json"
DRAIN_MARKER_FILE: Final = "left"
JOURNAL_RETRY_DELAY_S: Final = 1.0
"""How often a journal that cannot be read or written is tried again."""


class NodeAgent:
    def __init__(
        self,
        world: World,
        client: AsyncClient,
        settings: NodeSettings,
        location: NodeLocation,
        identity: NodeCredentials,
        servers: Sequence[SocketRelay],
        server_endpoints: Sequence[Dialer] = (),
    ) -> None:
        """`servers`: the ways to them for the node's channel, used in turn; `doors`: for what tasks ask themselves."""
        self._world = world
        self._settings = settings
        self._places = location
        self._identity = identity
        location.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._news = NodeEventQueue(world)
        self._journal = NodeJournal(
            DiskJournalFile(location.state_folder / JOURNAL_FILE),
            read_boot_id(),
            on_write_state_changed=self._on_journal,
        )
        self._folders = AllocationFolders(
            location.allocation_folder, max_parallel_removals=settings.gc_parallel_destroys
        )
        self.supervisor = SupervisorClient(
            world, location.state_folder, identity.id, self, tracking_method=settings.finds_left_overs_by
        )
        raw_exec = RawExecDriver(
            self.supervisor,
            is_allowed=settings.drivers.raw_exec.enabled,
            is_memory_limited=settings.drivers.raw_exec.bounds_memory,
        )
        self._docker = self._docker_driver()
        walled = ExecDriver(
            self.supervisor, settings.drivers.exec, settings.chroot_env or DEFAULT_FOLDERS, location.state_folder
        )
        found: list[Driver] = [
            raw_exec,
            walled,
            self._docker,
            MockDriver(self),
            MockDriver(self, name="mock_driver"),
            MissingDriver(self),
        ]
        self._drivers: dict[str, Driver] = {driver.name: driver for driver in found}
        self._supervised: tuple[Driver, ...] = (raw_exec, walled)
        self._metadata = NodeMetadata(location.state_folder / METADATA_FILE, settings.meta)
        self._own_identity = SignedNodeIdentity(world, client, identity, self._news.mark_changed)
        self._connecting = AllocationNetworks(world, settings, identity.id)
        self._devices = NodeDevices(world, settings.options, partial(self._news.add_event, NodeEventSubsystem.DRIVER))
        self._views = ReadOnlyMounts(location.state_folder / "read-only")
        self._volumes = NodeVolumes(
            settings.host_volume,
            state_folder=location.state_folder,
            volumes_folder=Path(settings.host_volumes_dir or location.state_folder.parent / "host_volumes"),
            plugins_folder=Path(
                settings.host_volume_plugin_dir or location.state_folder.parent / "host_volume_plugins"
            ),
            node_id=identity.id,
            node_pool=settings.node_pool,
            report_event=partial(self._news.add_event, NodeEventSubsystem.STORAGE),
            on_change=self._news.mark_changed,
            list_users=lambda name: list_volume_users(self.allocations, name),
            on_deleted=self._views.unmount,
        )
        self._likeness = NodeFingerprint(
            world,
            identity.id,
            settings,
            location,
            self._drivers,
            event_queue=self._news,
            metadata=self._metadata,
            signed_identity=self._own_identity,
            networks=self._connecting,
            volumes=self._volumes,
            devices=self._devices,
        )
        machine = self._likeness.machine
        facts = build_reference_values(self._likeness.build_node(), region=location.region)
        place = TaskHost(
            location.datacenter,
            location.region,
            machine.address,
            node_id=identity.id,
            node_name=location.name,
            total_mhz=machine.resources.cpu.cpu_shares,
            volumes=self._volumes.by_name,
        )
        naming = TaskIdentityManager(world, client, identity, server_endpoints)
        self._upkeep = LocalTaskHooks(world, naming, place, self._views, self._connecting, self._devices)
        self.allocations = AllocationManager(
            world,
            self._journal,
            self._folders,
            self._drivers,
            host=place,
            reference_values=facts,
            task_hooks=self._upkeep,
            on_change=self._on_change,
            on_port_taken=self._likeness.mark_port_taken,
            max_kill_timeout_s=settings.max_kill_timeout.seconds,
            log_tail_bytes=settings.log_tail_bytes,
            downloader=MigrationDownloader(client, identity, self._folders),
        )
        self._upkeep.attach_manager(self.allocations)
        self._plugins = DriverPlugins(
            world,
            self.allocations,
            options=settings.options,
            folder=location.state_folder / "drivers",
            report_event=partial(self._news.add_event, NodeEventSubsystem.DRIVER),
        )
        self.server_session = ServerSession(
            world, client, identity, self.allocations, self._likeness.probe_and_build_node
        )
        self._leaving = ShutdownDrain(
            world,
            client,
            identity,
            self.allocations,
            location.state_folder / DRAIN_MARKER_FILE,
            settings=settings.drain_on_shutdown,
            timeout_s=settings.shutdown_drain_timeout_s,
        )
        self.channel_connection = ChannelConnection(world, self._asked(), identity, cycle(servers).__next__)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Until cancelled."""
        await self._plugins.load_into(self._drivers)
        await self._likeness.load_plugins()
        remembered = await self._remember(on_ready)
        self.allocations.restore(remembered, has_rebooted=self._journal.has_rebooted)
        self._connecting.sweep_unknown_networks({work.record.id for work in self.allocations.list_live()})
        for driver in self._drivers.values():
            if driver not in self._supervised:
                await self.allocations.recover_driver(driver)
        tasks = [
            self._world.start_task(self.supervisor.run(self._on_supervisor), name="node supervisor"),
            self._world.start_task(self.allocations.run_deadlines(), name="node time"),
            self._world.start_task(self.server_session.run(), name="node servers"),
            self._world.start_task(self._keep_channel(), name="node channel"),
            self._world.start_task(self._likeness.watch_for_changes(), name="node fingerprint"),
            self._world.start_task(self._tell_news(), name="node news"),
            self._world.start_task(self._mend_journal(), name="node journal"),
            self._world.start_task(self._keep_room(), name="node room"),
            self._world.start_task(self._measured.record_history(), name="node figures"),
            self._world.start_task(self._come_back(), name="node back"),
            self._world.start_task(self._keep_identity(), name="node identity"),
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

    async def drain_node(self) -> None:
        """Have its work moved away. Call while `run` goes on."""
        await self._leaving.drain_node(self.server_session.has_reported_all)

    async def _come_back(self) -> None:
        await self.server_session.is_registered.wait()
        await self._leaving.cancel_drain()

    async def stop_all_tasks(self) -> None:
        """Stop every task, and the supervisor when all have ended. Call while `run` goes on."""
        await self.allocations.stop_all()
        self._views.unmount_all()
        await self.supervisor.shut_down()

    async def _on_supervisor(self) -> None:
        """All runs of a supervisor have been told, of this life or of one before."""
        log.info(
            "the supervisor is there",
            extra={"supervisor": str(self.supervisor.pid), "finds_left_overs_by": self.supervisor.tracking_method},
        )
        await self._likeness.probe()  # What can be bounded is known only now.
        self._news.mark_changed()
        for driver in self._supervised:
            await self.allocations.recover_driver(driver)
        for run in self.supervisor.list_runs():
            if not self.allocations.is_current_run(run):
                # A start that nobody remembers is ended, never repeated.
                self.supervisor.send_message(KillRun(run))
                self.allocations.run_when_stored(partial(self.supervisor.send_message, ForgetRun(run)))

    # -- what is asked of the node

    def _asked(self) -> RequestDispatcher:
        steered = AllocationHandlers(self.allocations, self._upkeep.build_check_results)
        cpu = self._likeness.machine.resources.cpu
        mhz = cpu.cpu_shares
        core_mhz = mhz // max(1, cpu.total_cpu_cores)
        self._measured = StatsHandlers(
            self._world,
            self.allocations,
            MachineMeter(
                self._world, self._places.allocation_folder, mhz=mhz, measure_devices=self._devices.measure_devices
            ),
            TaskMeter(self._world, mhz=core_mhz),
            mhz=mhz,
            core_mhz=core_mhz,
        )
        metadata = MetadataHandlers(self._metadata, self._on_metadata)
        files = FileHandlers(self._folders, steered.is_over, steered.has_started)
        commands = ExecHandlers(
            self._world,
            self.allocations,
            is_allowed=not self._settings.disable_remote_exec,
            name_prefix=self._identity.id,
        )
        departures = MigrationUploader(self._folders, steered.list_ended_tasks)
        rooms = (self._own_identity, self._volumes, files, steered, self._measured, metadata, commands, departures)
        return RequestDispatcher({verb: answer for room in rooms for verb, answer in room.handlers().items()})

    async def _keep_identity(self) -> None:
        await self.server_session.is_registered.wait()
        await self._own_identity.keep_renewed()

    async def _keep_channel(self) -> None:
        """A server takes the channel only of a node that it knows."""
        await self.server_session.is_registered.wait()
        # Commands of an earlier life of this agent have no caller any more.
        kill_marked_processes(f"{COMMAND_MARK_VARIABLE}={self._identity.id}.", is_exact_match=False)
        await self.channel_connection.run()

    async def _on_metadata(self) -> None:
        self.allocations.reference_values = build_reference_values(
            self._likeness.build_node(), region=self._places.region
        )
        self._news.mark_changed()

    # -- what drivers say

    def on_begun(self, run: str) -> None:
        self.allocations.on_begun(run)

    def on_refused(self, run: str, why: str) -> None:
        self.allocations.on_refused(run, why)

    def on_said(self, run: str, message: str) -> None:
        self.allocations.on_said(run, message)

    def on_ended(self, run: str, outcome: Outcome) -> None:
        if self.allocations.is_current_run(run):
            self.allocations.on_ended(run, outcome)
        elif self._docker.has_run(run):
            self.allocations.run_when_stored(partial(self._docker.forget, run))
        else:
            self.allocations.run_when_stored(partial(self.supervisor.send_message, ForgetRun(run)))

    def _on_change(self, allocation_id: str) -> None:
        self.server_session.mark_changed(allocation_id)

    def _docker_driver(self) -> DockerDriver:
        wanted = self._settings.drivers.docker
        return DockerDriver(
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
            is_current_run=lambda run: self.allocations.is_current_run(run),
        )

    async def list_working_drivers(self) -> list[str]:
        return await self._likeness.list_working_drivers()

    async def _tell_news(self) -> None:
        await self.server_session.is_registered.wait()
        await self._news.send_events(self.server_session.register_again)

    # -- the journal

    async def _remember(self, on_ready: Callable[[], None]) -> dict[str, RestoredAllocation | SettledAllocation]:
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
                await asyncio.sleep(JOURNAL_RETRY_DELAY_S)
                continue
            if self._journal.damage_text:
                self._news.add_event(NodeEventSubsystem.STORAGE, self._journal.damage_text)
            return remembered

    def _on_journal(self, why: str) -> None:
        if why:
            log.error("the node's journal cannot be written: %s; nothing new is started until it can be", why)
            message = "The node's journal cannot be written. What runs goes on; nothing new is started until it can be"
            self._news.add_event(NodeEventSubsystem.STORAGE, message, error=why)
        else:
            log.warning("the node's journal can be written again")
            self._news.add_event(NodeEventSubsystem.STORAGE, "The node's journal can be written again")

    async def _mend_journal(self) -> None:
        while True:
            await asyncio.sleep(JOURNAL_RETRY_DELAY_S)
            self._journal.retry_write()

    async def _keep_room(self) -> None:
        settings = self._settings
        bounds = CollectionLimits(
            max_allocations=settings.gc_max_allocs,
            max_disk_percent=settings.gc_disk_usage_threshold,
            max_inodes_percent=settings.gc_inode_usage_threshold,
            max_parallel_removals=settings.gc_parallel_destroys,
        )
        while True:
            await asyncio.sleep(settings.gc_interval.seconds)
            before: list[str] = []
            # What cannot be removed is not tried again at once.
            while (
                chosen := self.allocations.collect_garbage(self._folders.measure_disk_usage(), bounds)
            ) and chosen != before:
                before = chosen
                await self._folders.wait_until_removed()  # Only then the disk tells whether that was enough.

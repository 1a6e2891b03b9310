"""Assembles the parts of the node agent and runs them from the first registration to shutdown."""

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
"""Seconds between attempts to read or write a journal that failed."""


class NodeAgent:
    """The node agent: owns all parts and connects them. Receives the drivers' reports as their `Watcher`."""

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
        """`servers` carry the node channel, used in turn; `server_endpoints` are for API requests of tasks."""
        self._world = world
        self._settings = settings
        self._location = location
        self._identity = identity
        location.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._event_queue = NodeEventQueue(world)
        self._journal = NodeJournal(
            DiskJournalFile(location.state_folder / JOURNAL_FILE),
            read_boot_id(),
            on_write_state_changed=self._on_journal_state_changed,
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
        self._docker = self._build_docker_driver()
        exec_driver = ExecDriver(
            self.supervisor, settings.drivers.exec, settings.chroot_env or DEFAULT_FOLDERS, location.state_folder
        )
        drivers: list[Driver] = [
            raw_exec,
            exec_driver,
            self._docker,
            MockDriver(self),
            MockDriver(self, name="mock_driver"),
            MissingDriver(self),
        ]
        self._drivers: dict[str, Driver] = {driver.name: driver for driver in drivers}
        self._supervised_drivers: tuple[Driver, ...] = (raw_exec, exec_driver)
        self._metadata = NodeMetadata(location.state_folder / METADATA_FILE, settings.meta)
        self._signed_identity = SignedNodeIdentity(world, client, identity, self._event_queue.mark_changed)
        self._networks = AllocationNetworks(world, settings, identity.id)
        self._devices = NodeDevices(
            world, settings.options, partial(self._event_queue.add_event, NodeEventSubsystem.DRIVER)
        )
        self._read_only_mounts = ReadOnlyMounts(location.state_folder / "read-only")
        self._volumes = NodeVolumes(
            settings.host_volume,
            state_folder=location.state_folder,
            volumes_folder=Path(settings.host_volumes_dir or location.state_folder.parent / "host_volumes"),
            plugins_folder=Path(
                settings.host_volume_plugin_dir or location.state_folder.parent / "host_volume_plugins"
            ),
            node_id=identity.id,
            node_pool=settings.node_pool,
            report_event=partial(self._event_queue.add_event, NodeEventSubsystem.STORAGE),
            on_change=self._event_queue.mark_changed,
            list_users=lambda name: list_volume_users(self.allocations, name),
            on_deleted=self._read_only_mounts.unmount,
        )
        self._fingerprint = NodeFingerprint(
            world,
            identity.id,
            settings,
            location,
            self._drivers,
            event_queue=self._event_queue,
            metadata=self._metadata,
            signed_identity=self._signed_identity,
            networks=self._networks,
            volumes=self._volumes,
            devices=self._devices,
        )
        machine = self._fingerprint.machine
        reference_values = build_reference_values(self._fingerprint.build_node(), region=location.region)
        host = TaskHost(
            location.datacenter,
            location.region,
            machine.address,
            node_id=identity.id,
            node_name=location.name,
            total_mhz=machine.resources.cpu.cpu_shares,
            volumes=self._volumes.by_name,
        )
        identities = TaskIdentityManager(world, client, identity, server_endpoints)
        self._task_hooks = LocalTaskHooks(
            world, identities, host, self._read_only_mounts, self._networks, self._devices
        )
        self.allocations = AllocationManager(
            world,
            self._journal,
            self._folders,
            self._drivers,
            host=host,
            reference_values=reference_values,
            task_hooks=self._task_hooks,
            on_change=self._on_change,
            on_port_taken=self._fingerprint.mark_port_taken,
            max_kill_timeout_s=settings.max_kill_timeout.seconds,
            log_tail_bytes=settings.log_tail_bytes,
            downloader=MigrationDownloader(client, identity, self._folders),
        )
        self._task_hooks.attach_manager(self.allocations)
        self._driver_plugins = DriverPlugins(
            world,
            self.allocations,
            options=settings.options,
            folder=location.state_folder / "drivers",
            report_event=partial(self._event_queue.add_event, NodeEventSubsystem.DRIVER),
        )
        self.server_session = ServerSession(
            world, client, identity, self.allocations, self._fingerprint.probe_and_build_node
        )
        self._shutdown_drain = ShutdownDrain(
            world,
            client,
            identity,
            self.allocations,
            location.state_folder / DRAIN_MARKER_FILE,
            settings=settings.drain_on_shutdown,
            timeout_s=settings.shutdown_drain_timeout_s,
        )
        self.channel_connection = ChannelConnection(world, self._build_dispatcher(), identity, cycle(servers).__next__)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Run the node until canceled. `on_ready` is called when it is running or waits for its journal."""
        await self._driver_plugins.load_into(self._drivers)
        await self._fingerprint.load_plugins()
        stored_allocations = await self._load_journal(on_ready)
        self.allocations.restore(stored_allocations, has_rebooted=self._journal.has_rebooted)
        self._networks.sweep_unknown_networks({work.record.id for work in self.allocations.list_live()})
        for driver in self._drivers.values():
            if driver not in self._supervised_drivers:
                await self.allocations.recover_driver(driver)
        tasks = [
            self._world.start_task(self.supervisor.run(self._on_supervisor_connected), name="node supervisor"),
            self._world.start_task(self.allocations.run_deadlines(), name="node deadlines"),
            self._world.start_task(self.server_session.run(), name="node servers"),
            self._world.start_task(self._run_channel(), name="node channel"),
            self._world.start_task(self._fingerprint.watch_for_changes(), name="node fingerprint"),
            self._world.start_task(self._send_node_events(), name="node events"),
            self._world.start_task(self._retry_journal_writes(), name="node journal"),
            self._world.start_task(self._collect_garbage(), name="node garbage collection"),
            self._world.start_task(self._stats_handlers.record_history(), name="node statistics"),
            self._world.start_task(self._cancel_last_drain(), name="node drain cancellation"),
            self._world.start_task(self._renew_identity(), name="node identity"),
        ]
        on_ready()
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._task_hooks.close()
            await self._docker.close()

    async def drain_node(self) -> None:
        """Drain the node before shutdown. Call it while `run` is running."""
        await self._shutdown_drain.drain_node(self.server_session.has_reported_all)

    async def _cancel_last_drain(self) -> None:
        """Cancel the drain of the last shutdown once the node is registered."""
        await self.server_session.is_registered.wait()
        await self._shutdown_drain.cancel_drain()

    async def stop_all_tasks(self) -> None:
        """Stop every task, then the task supervisor. Call it while `run` is running."""
        await self.allocations.stop_all()
        self._read_only_mounts.unmount_all()
        await self.supervisor.shut_down()

    async def _on_supervisor_connected(self) -> None:
        """Compare the supervisor's runs with the allocations, after every new connection to a supervisor."""
        log.info(
            "connected to task supervisor",
            extra={"supervisor": str(self.supervisor.pid), "finds_left_overs_by": self.supervisor.tracking_method},
        )
        await self._fingerprint.probe()  # The supervisor has reported which limits it can enforce.
        self._event_queue.mark_changed()
        for driver in self._supervised_drivers:
            await self.allocations.recover_driver(driver)
        for run in self.supervisor.list_runs():
            if not self.allocations.is_current_run(run):
                # The journal does not know this run, so nothing may depend on it.
                self.supervisor.send_message(KillRun(run))
                self.allocations.run_when_stored(partial(self.supervisor.send_message, ForgetRun(run)))

    # -- requests to the node

    def _build_dispatcher(self) -> RequestDispatcher:
        """Build the handlers of the requests that arrive through the node channel."""
        allocations = AllocationHandlers(self.allocations, self._task_hooks.build_check_results)
        cpu = self._fingerprint.machine.resources.cpu
        mhz = cpu.cpu_shares
        core_mhz = mhz // max(1, cpu.total_cpu_cores)
        self._stats_handlers = StatsHandlers(
            self._world,
            self.allocations,
            MachineMeter(
                self._world, self._location.allocation_folder, mhz=mhz, measure_devices=self._devices.measure_devices
            ),
            TaskMeter(self._world, mhz=core_mhz),
            mhz=mhz,
            core_mhz=core_mhz,
        )
        metadata = MetadataHandlers(self._metadata, self._on_metadata_changed)
        files = FileHandlers(self._folders, allocations.is_over, allocations.has_started)
        commands = ExecHandlers(
            self._world,
            self.allocations,
            is_allowed=not self._settings.disable_remote_exec,
            name_prefix=self._identity.id,
        )
        uploader = MigrationUploader(self._folders, allocations.list_ended_tasks)
        handler_groups = (
            self._signed_identity,
            self._volumes,
            files,
            allocations,
            self._stats_handlers,
            metadata,
            commands,
            uploader,
        )
        return RequestDispatcher(
            {verb: handler for group in handler_groups for verb, handler in group.handlers().items()}
        )

    async def _renew_identity(self) -> None:
        """Keep the node's signed identity renewed once the node is registered."""
        await self.server_session.is_registered.wait()
        await self._signed_identity.keep_renewed()

    async def _run_channel(self) -> None:
        """Keep the node channel open. Servers accept it only from a registered node."""
        await self.server_session.is_registered.wait()
        # The callers of commands that an earlier agent process started are gone.
        kill_marked_processes(f"{COMMAND_MARK_VARIABLE}={self._identity.id}.", is_exact_match=False)
        await self.channel_connection.run()

    async def _on_metadata_changed(self) -> None:
        """Use the changed metadata for new tasks, and report it to servers."""
        self.allocations.reference_values = build_reference_values(
            self._fingerprint.build_node(), region=self._location.region
        )
        self._event_queue.mark_changed()

    # -- reports of drivers

    def on_begun(self, run: str) -> None:
        """A run has started."""
        self.allocations.on_begun(run)

    def on_refused(self, run: str, reason: str) -> None:
        """A run was not started and will not be."""
        self.allocations.on_refused(run, reason)

    def on_said(self, run: str, message: str) -> None:
        """A driver reports progress to be shown in the task's history."""
        self.allocations.on_said(run, message)

    def on_ended(self, run: str, outcome: Outcome) -> None:
        """A run has ended. A run that no task waits for is cleaned up."""
        if self.allocations.is_current_run(run):
            self.allocations.on_ended(run, outcome)
        elif self._docker.has_run(run):
            self.allocations.run_when_stored(partial(self._docker.forget, run))
        else:
            self.allocations.run_when_stored(partial(self.supervisor.send_message, ForgetRun(run)))

    def _on_change(self, allocation_id: str) -> None:
        self.server_session.mark_changed(allocation_id)

    def _build_docker_driver(self) -> DockerDriver:
        """Build the docker driver from the settings."""
        settings = self._settings.drivers.docker
        return DockerDriver(
            self._world,
            self,
            socket=find_socket(settings.socket),
            settings=DockerSettings(
                volumes_enabled=settings.volumes_enabled,
                allow_privileged=settings.allow_privileged,
                allow_capabilities=settings.allow_caps,
                allow_runtimes=settings.allow_runtimes,
                extra_labels=settings.extra_labels,
            ),
            node_id=self._identity.id,
            folder=self._location.state_folder / "containers",
            is_current_run=lambda run: self.allocations.is_current_run(run),
        )

    async def list_working_drivers(self) -> list[str]:
        """Return the names of the drivers that can run tasks."""
        return await self._fingerprint.list_working_drivers()

    async def _send_node_events(self) -> None:
        """Send node events and changes of the node to servers."""
        await self.server_session.is_registered.wait()
        await self._event_queue.send_events(self.server_session.register_again)

    # -- the journal

    async def _load_journal(self, on_ready: Callable[[], None]) -> dict[str, RestoredAllocation | SettledAllocation]:
        """Load the journal; wait and retry while it cannot be read.

        Without it the node does not know what it runs, so it accepts no assignments.
        """
        last_error = ""
        while True:
            try:
                stored_allocations = self._journal.load()
            except OSError as error:
                if last_error != str(error):
                    last_error = str(error)
                    log.error("failed to read the journal: %s; the node waits and retries", error)
                on_ready()
                await asyncio.sleep(JOURNAL_RETRY_DELAY_S)
                continue
            if self._journal.damage_text:
                self._event_queue.add_event(NodeEventSubsystem.STORAGE, self._journal.damage_text)
            return stored_allocations

    def _on_journal_state_changed(self, reason: str) -> None:
        """Log and report that writing the journal has failed, or works again if `reason` is empty."""
        if reason:
            log.error("failed to write the journal: %s; no task is started until it can be written", reason)
            message = (
                "Failed to write the node's journal. Running tasks continue; none is started until it can be written"
            )
            self._event_queue.add_event(NodeEventSubsystem.STORAGE, message, error=reason)
        else:
            log.warning("the journal can be written again")
            self._event_queue.add_event(NodeEventSubsystem.STORAGE, "The node's journal can be written again")

    async def _retry_journal_writes(self) -> None:
        """Retry to write the journal after a failure."""
        while True:
            await asyncio.sleep(JOURNAL_RETRY_DELAY_S)
            self._journal.retry_write()

    async def _collect_garbage(self) -> None:
        """Remove folders of ended allocations when there are too many or the disk is too full."""
        settings = self._settings
        limits = CollectionLimits(
            max_allocations=settings.gc_max_allocs,
            max_disk_percent=settings.gc_disk_usage_threshold,
            max_inodes_percent=settings.gc_inode_usage_threshold,
            max_parallel_removals=settings.gc_parallel_destroys,
        )
        while True:
            await asyncio.sleep(settings.gc_interval.seconds)
            previous: list[str] = []
            # The same choice again means that the removal failed; it is retried after the next interval.
            while (
                chosen := self.allocations.collect_garbage(self._folders.measure_disk_usage(), limits)
            ) and chosen != previous:
                previous = chosen
                await self._folders.wait_until_removed()  # The disk usage shows only then whether that was enough.

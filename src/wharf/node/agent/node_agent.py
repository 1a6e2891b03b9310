"""Assembles the parts of the node agent and runs them from the first registration to shutdown."""

import asyncio
import contextlib
import logging
import resource
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from wharf.contract.client import AsyncClient
from wharf.contract.client.relay.dialers import Dialer
from wharf.contract.client.relay.websockets import SocketRelay
from wharf.contract.model.nodes.node import NodeEventSubsystem
from wharf.node.agent.allocations.assignments import LocalAssignmentHandler
from wharf.node.agent.allocations.ended_files import EndedAllocationFiles
from wharf.node.agent.allocations.journal import DiskJournalFile, NodeJournal, RestoredAllocation, SettledAllocation
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.agent.allocations.run_events import RunEvents
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.agent.allocations.task_hooks import LocalTaskHooks
from wharf.node.agent.builtin_drivers import BuiltinDrivers
from wharf.node.agent.disk_watch import DiskWatch
from wharf.node.agent.fingerprint.metadata import MetadataHandlers, NodeMetadata
from wharf.node.agent.fingerprint.node import NodeFingerprint
from wharf.node.agent.foreign import ForeignSearch
from wharf.node.agent.servers.clusters import ClusterMemory
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.node.agent.servers.node_identity import SignedNodeIdentity
from wharf.node.agent.servers.session import ServerSession
from wharf.node.agent.shutdown_drain import ShutdownDrain
from wharf.node.agent.supervisor_watch import SupervisorWatch
from wharf.node.channel.agent_log import AgentLog, AgentLogHandlers
from wharf.node.channel.allocations import NodeAllocationHandlers
from wharf.node.channel.connection import ChannelConnection
from wharf.node.channel.endpoint import RequestDispatcher
from wharf.node.channel.exec import ExecHandlers
from wharf.node.channel.files import FileHandlers
from wharf.node.channel.log_search import LogSearchHandlers
from wharf.node.channel.shares import limit_by_namespace
from wharf.node.channel.stats import StatsHandlers
from wharf.node.credentials import NodeCredentials
from wharf.node.devices.node_devices import NodeDevices
from wharf.node.drivers.command_process import COMMAND_MARK_VARIABLE, kill_marked_processes
from wharf.node.drivers.plugins import DriverPlugins
from wharf.node.drivers.port import Driver
from wharf.node.migration.download import MigrationDownloader
from wharf.node.migration.upload import MigrationUploader
from wharf.node.networks.allocation_networks import AllocationNetworks
from wharf.node.networks.manager import STATE_ROOT
from wharf.node.node_mark import build_node_mark
from wharf.node.open_files import FairSlots, divide_open_files
from wharf.node.processes import read_boot_id
from wharf.node.settings import NodeLocation, NodeSettings
from wharf.node.statistics import MachineMeter, TaskMeter
from wharf.node.supervisor.messages import ForgetRun, KillRun
from wharf.node.tasks.environment import TaskHost
from wharf.node.tasks.folders import AllocationFolders
from wharf.node.tasks.identities.manager import TaskIdentityManager
from wharf.node.tasks.interpolation import ReferenceValues, build_reference_values
from wharf.node.volumes.node_volumes import NodeVolumes
from wharf.node.volumes.task_links import ReadOnlyMounts
from wharf.world import World
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

JOURNAL_FILE: Final = "journal"
CLUSTERS_FILE: Final = "clusters.json"
METADATA_FILE: Final = "metadata.json"
DRAIN_MARKER_FILE: Final = "left"
JOURNAL_RETRY_DELAY_S: Final = 1.0
"""Seconds between attempts to read or write a journal that failed."""
MAX_REGISTRATION_WAIT_S: Final = 10.0
"""How long preparations of tasks wait for the first registration. Without servers, tasks continue after it."""


class NodeAgent:
    """The node agent: creates all parts of the node, connects them and runs them."""

    def __init__(
        self,
        world: World,
        client: AsyncClient,
        settings: NodeSettings,
        location: NodeLocation,
        identity: NodeCredentials,
        servers: Sequence[SocketRelay],
        server_endpoints: Sequence[Dialer] = (),
        agent_log: AgentLog | None = None,
    ) -> None:
        """`servers` carry the node channel, `server_endpoints` API requests of tasks; both in the client's order."""
        self._world = world
        self._client = client
        self._settings = settings
        self._location = location
        self._identity = identity
        self._agent_log = agent_log
        location.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._mark = build_node_mark(identity.id, location.state_folder)
        self._open_files = divide_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._event_queue = NodeEventQueue(world)
        self._journal = NodeJournal(
            DiskJournalFile(location.state_folder / JOURNAL_FILE),
            read_boot_id(),
            on_write_state_changed=self._on_journal_state_changed,
        )
        self._folders = AllocationFolders(
            location.allocation_folder, max_parallel_removals=settings.gc_parallel_destroys
        )
        self.allocations = AllocationTable(self._journal)
        self._files = EndedAllocationFiles(self.allocations, self._folders, log_tail_bytes=settings.log_tail_bytes)
        self._drivers: dict[str, Driver] = {}
        """The drivers by name. Filled below, because drivers report to the allocation manager, which uses them."""
        self._build_resources()
        self._fingerprint = self._build_fingerprint()
        self._build_allocation_manager(server_endpoints)
        self._build_drivers()
        self._build_server_exchange(servers)

    # -- construction

    def _build_resources(self) -> None:
        """Create the managers of networks, devices, read-only mounts and volumes."""
        world, settings, state_folder = self._world, self._settings, self._location.state_folder
        self._networks = AllocationNetworks(world, settings, self._mark)
        self._devices = NodeDevices(
            world, settings.options, partial(self._event_queue.add_event, NodeEventSubsystem.DRIVER)
        )
        self._read_only_mounts = ReadOnlyMounts(state_folder / "read-only")
        self._volumes = NodeVolumes(
            settings,
            self._location,
            self._identity.id,
            report_event=partial(self._event_queue.add_event, NodeEventSubsystem.STORAGE),
            on_change=self._event_queue.mark_changed,
            list_users=self.allocations.list_volume_users,
            on_deleted=self._read_only_mounts.unmount,
        )

    def _build_fingerprint(self) -> NodeFingerprint:
        """Create and return the node's description, with its metadata and its signed identity."""
        self._metadata = NodeMetadata(self._location.state_folder / METADATA_FILE, self._settings.meta)
        self._signed_identity = SignedNodeIdentity(
            self._world, self._client, self._identity, self._event_queue.mark_changed
        )
        return NodeFingerprint(
            self._world,
            self._identity.id,
            self._settings,
            self._location,
            self._drivers,
            event_queue=self._event_queue,
            metadata=self._metadata,
            signed_identity=self._signed_identity,
            networks=self._networks,
            volumes=self._volumes,
            devices=self._devices,
        )

    def _build_allocation_manager(self, server_endpoints: Sequence[Dialer]) -> None:
        """Create the hooks around tasks and the allocation manager."""
        world, location, machine = self._world, self._location, self._fingerprint.machine
        host = TaskHost(
            location.datacenter,
            location.region,
            machine.address,
            node_id=self._identity.id,
            node_name=location.name,
            total_mhz=machine.resources.cpu.cpu_shares,
            volumes=self._volumes.by_name,
        )
        identities = TaskIdentityManager(
            world,
            self._client,
            self._identity,
            server_endpoints,
            connection_slots=FairSlots(self._open_files.api_connections),
        )
        self._task_hooks = LocalTaskHooks(
            world,
            identities,
            host,
            self._read_only_mounts,
            self._networks,
            self._devices,
            probe_slots=FairSlots(self._open_files.probes),
        )
        self._manager = AllocationManager(
            world,
            self._journal,
            self.allocations,
            self._folders,
            self._drivers,
            host=host,
            reference_values=self._build_reference_values(),
            task_hooks=self._task_hooks,
            on_change=self._on_allocation_changed,
            on_port_taken=self._fingerprint.mark_port_taken,
            max_kill_timeout_s=self._settings.max_kill_timeout.seconds,
            downloader=MigrationDownloader(self._world, self._client, self._identity, self._folders),
        )
        self._task_hooks.attach_manager(self._manager)

    def _build_drivers(self) -> None:
        """Create the drivers that are part of Wharf; drivers of plugins are loaded by `run`."""
        run_events = RunEvents(self._manager, self._on_unknown_end)
        self._builtin_drivers = BuiltinDrivers(self._world, self._settings, self._location, self._mark, run_events)
        self._drivers.update(self._builtin_drivers.by_name)
        self.supervisor = self._builtin_drivers.supervisor
        self._driver_plugins = DriverPlugins(
            self._world,
            run_events,
            options=self._settings.options,
            folder=self._location.state_folder / "drivers",
            report_event=partial(self._event_queue.add_event, NodeEventSubsystem.DRIVER),
        )

    def _build_server_exchange(self, servers: Sequence[SocketRelay]) -> None:
        """Create the server session, the shutdown drain and the node channel with its request handlers."""
        handler = LocalAssignmentHandler(
            self._manager,
            self._journal,
            self._files,
            self._task_hooks,
            read_monotonic_s=self._world.monotonic_s,
            clusters=ClusterMemory(self._location.state_folder / CLUSTERS_FILE),
            report_loss=self._report_loss,
        )
        self.server_session = ServerSession(
            self._world, self._client, self._identity, handler, self._fingerprint.probe_and_build_node
        )
        self._shutdown_drain = ShutdownDrain(
            self._world,
            self._client,
            self._identity,
            self._manager,
            self._location.state_folder / DRAIN_MARKER_FILE,
            settings=self._settings.drain_on_shutdown,
            timeout_s=self._settings.shutdown_drain_timeout_s,
        )
        self._stats_handlers = self._build_stats_handlers()
        self.channel_connection = ChannelConnection(
            self._world, self._build_dispatcher(), self._identity, servers, self._client.servers
        )

    def _build_stats_handlers(self) -> StatsHandlers:
        """Return the handlers of requests for the resource usage of machine and tasks."""
        cpu = self._fingerprint.machine.resources.cpu
        mhz = cpu.cpu_shares
        core_mhz = mhz // max(1, cpu.total_cpu_cores)
        machine_meter = MachineMeter(
            self._world, self._location.allocation_folder, mhz=mhz, measure_devices=self._devices.measure_devices
        )
        task_meter = TaskMeter(self._world, mhz=core_mhz)
        return StatsHandlers(self._world, self._manager, machine_meter, task_meter, mhz=mhz, core_mhz=core_mhz)

    def _build_dispatcher(self) -> RequestDispatcher:
        """Return the dispatcher that passes each request of the node channel to its handler."""
        allocations = NodeAllocationHandlers(self._manager, self._files, self._task_hooks.build_check_results)
        commands = ExecHandlers(
            self._world,
            self._manager,
            FairSlots(self._open_files.commands),
            is_allowed=not self._settings.disable_remote_exec,
            name_prefix=self._identity.id,
        )
        files = FileHandlers(self._folders, allocations.is_over, allocations.has_started)
        searches = LogSearchHandlers(self._folders, allocations.is_over, allocations.has_started)
        file_handlers = limit_by_namespace(
            files.handlers() | searches.handlers(),
            FairSlots(self._open_files.streams),
            self.allocations.find_namespace,
            "files and logs",
        )
        handler_groups = (
            self._signed_identity,
            self._volumes,
            allocations,
            self._stats_handlers,
            MetadataHandlers(self._metadata, self._on_metadata_changed),
            commands,
            MigrationUploader(self._folders, allocations.list_ended_tasks),
            *(() if self._agent_log is None else (AgentLogHandlers(self._agent_log),)),
        )
        return RequestDispatcher(
            {verb: handler for group in handler_groups for verb, handler in group.handlers().items()} | file_handlers
        )

    # -- life

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Restore the allocations from the journal, then run all parts of the node until canceled.

        `on_ready` is called once everything runs, and also whenever the journal cannot be read and is retried.
        """
        await self._driver_plugins.load_into(self._drivers)
        await self._fingerprint.load_plugins()
        stored_allocations = await self._load_journal(on_ready)
        self._manager.restore(stored_allocations, has_rebooted=self._journal.has_rebooted)
        self._networks.sweep_unknown_networks({allocation.record.id for allocation in self.allocations.list_live()})
        for driver in self._drivers.values():
            if driver not in self._builtin_drivers.supervised:
                await self._manager.recover_driver(driver)
        jobs = self._build_background_jobs()
        tasks = [self._world.start_task(coroutine, name=f"node {name}") for name, coroutine in jobs.items()]
        on_ready()
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_tasks(*tasks)
            await self._task_hooks.close()
            await self._builtin_drivers.docker.close()
            await self._manager.tasks.cancel_actions()
            self._journal.close()

    def _build_background_jobs(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the coroutines that run until the agent ends, by name."""
        return {
            "supervisor": self.supervisor.run(self._on_supervisor_connected),
            "supervisor watch": SupervisorWatch(
                self._world, self.supervisor, self._event_queue, self._location.state_folder
            ).run(),
            "deadlines": self._manager.run_deadlines(),
            "servers": self.server_session.run(),
            "channel": self._run_channel(),
            "fingerprint": self._fingerprint.watch_for_changes(),
            "events": self._send_node_events(),
            "journal": self._retry_journal_writes(),
            "disk": DiskWatch(
                list(dict.fromkeys((self._location.state_folder, self._location.allocation_folder))), self._event_queue
            ).run(),
            "garbage collection": self._files.run_collection(self._settings, self._world),
            "statistics": self._stats_handlers.record_history(),
            "foreign remains": self._build_foreign_search().run(),
            "drain cancellation": self._cancel_last_drain(),
            "identity": self._renew_identity(),
            "preparations": self._allow_preparations(),
        }

    def _build_foreign_search(self) -> ForeignSearch:
        """Return the search for what nodes with a deleted data folder have left."""
        return ForeignSearch(
            self._identity.id,
            self._event_queue,
            self._builtin_drivers.docker,
            should_reap=self._settings.reap_foreign,
            is_current_run=self.allocations.is_current_run,
            release_networks=self._networks.release_networks_of,
            network_root=STATE_ROOT,
        )

    async def drain_node(self) -> None:
        """Drain the node before shutdown. Call it while `run` is running."""
        await self._shutdown_drain.drain_node(self.server_session.has_reported_all)

    async def _cancel_last_drain(self) -> None:
        """Cancel the drain of the last shutdown once the node is registered."""
        await self.server_session.is_registered.wait()
        await self._shutdown_drain.cancel_drain()

    async def stop_all_tasks(self) -> None:
        """Stop every task, then the task supervisor. Call it while `run` is running."""
        await self._manager.stop_all()
        self._read_only_mounts.unmount_all()
        await self.supervisor.shut_down()

    async def _on_supervisor_connected(self) -> None:
        """Compare the task supervisor's runs with the allocations; called after every new connection to it.

        A run is one start of a task. Runs that no task waits for are killed and deleted. Drivers report the state of the others.
        """
        log.info(
            "connected to task supervisor pid=%s tracking_method=%s",
            self.supervisor.pid,
            self.supervisor.tracking_method,
        )
        await self._fingerprint.probe()  # The supervisor has reported which limits it can enforce.
        self._event_queue.mark_changed()
        for driver in self._builtin_drivers.supervised:
            await self._manager.recover_driver(driver)
        for run in self.supervisor.list_runs():
            if not self.allocations.is_current_run(run):
                # The journal does not know this run, so nothing may depend on it.
                self.supervisor.send_message(KillRun(run))
                self._manager.tasks.run_when_stored(partial(self.supervisor.send_message, ForgetRun(run)))

    async def _allow_preparations(self) -> None:
        """Let tasks be prepared once the node is registered, or after `MAX_REGISTRATION_WAIT_S` without servers.

        Otherwise the work of an earlier agent process could keep this one from its servers.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_REGISTRATION_WAIT_S):
                await self.server_session.is_registered.wait()
        self._task_hooks.allow_preparations()

    async def _renew_identity(self) -> None:
        """Renew the node's signed identity before it expires. Starts after registration; runs until canceled."""
        await self.server_session.is_registered.wait()
        await self._signed_identity.keep_renewed()

    async def _run_channel(self) -> None:
        """Keep the node channel open until canceled. Starts after registration, because servers require it.

        First kills commands that an earlier agent process started, because their callers are disconnected.
        """
        await self.server_session.is_registered.wait()
        # The callers of commands that an earlier agent process started are gone.
        kill_marked_processes(f"{COMMAND_MARK_VARIABLE}={self._identity.id}.", is_exact_match=False)
        await self.channel_connection.run()

    async def _on_metadata_changed(self) -> None:
        """Use the changed metadata in tasks that start from now on, and request a new registration."""
        self._manager.tasks.reference_values = self._build_reference_values()
        self._event_queue.mark_changed()

    def _build_reference_values(self) -> ReferenceValues:
        """Return the current values of `${...}` references that come from the node, such as its attributes."""
        return build_reference_values(self._fingerprint.build_node(), region=self._location.region)

    def _on_allocation_changed(self, allocation_id: str) -> None:
        """Add the allocation to the next report to servers."""
        self.server_session.mark_changed(allocation_id)

    def _on_unknown_end(self, run: str) -> None:
        """Clean up an ended run (one start of a task) that no task waits for."""
        self._builtin_drivers.clean_up_when_stored(run)

    async def list_working_drivers(self) -> list[str]:
        """Check networks and drivers, then return the names of the healthy drivers."""
        return await self._fingerprint.list_working_drivers()

    def describe_unavailable_drivers(self) -> str:
        """Return the drivers that cannot run tasks, each with its reason, as of the last check."""
        return self._fingerprint.describe_unavailable_drivers()

    async def _send_node_events(self) -> None:
        """Register the node again after each change, which also sends its events. Runs until canceled."""
        await self.server_session.is_registered.wait()
        await self._event_queue.send_events(self.server_session.register_again)

    # -- the journal

    async def _load_journal(self, on_ready: Callable[[], None]) -> dict[str, RestoredAllocation | SettledAllocation]:
        """Return the allocations from the journal by id; retry once a second while it cannot be read.

        Without the journal the node does not know what it runs, so it must not accept assignments. `on_ready` is called
        after each failure. Damaged parts of the journal are reported as a node event.
        """
        last_error = ""
        while True:
            try:
                stored_allocations = self._journal.load()
            except OSError as error:
                if last_error != str(error):
                    last_error = str(error)
                    log.error("failed to read the journal; retrying error=%s", error)
                on_ready()
                await asyncio.sleep(JOURNAL_RETRY_DELAY_S)
                continue
            if self._journal.damage_text:
                self._event_queue.add_event(NodeEventSubsystem.STORAGE, self._journal.damage_text)
            return stored_allocations

    def _report_loss(self, message: str, details: Mapping[str, str]) -> None:
        """Queue a node event about entries that the journal has lost."""
        self._event_queue.add_event(NodeEventSubsystem.STORAGE, message, **details)

    def _on_journal_state_changed(self, reason: str) -> None:
        """Log a change and queue it as a node event: writing fails because of `reason`, or works again if it is empty."""
        if reason:
            log.error("failed to write the journal; starting no tasks until it can be written reason=%s", reason)
            message = (
                "Failed to write the node's journal. Running tasks continue; none is started until it can be written"
            )
            self._event_queue.add_event(NodeEventSubsystem.STORAGE, message, error=reason)
        else:
            log.warning("journal can be written again")
            self._event_queue.add_event(NodeEventSubsystem.STORAGE, "The node's journal can be written again")

    async def _retry_journal_writes(self) -> None:
        """While the journal cannot be written, retry every `JOURNAL_RETRY_DELAY_S`. Runs until canceled."""
        while True:
            await asyncio.sleep(JOURNAL_RETRY_DELAY_S)
            self._journal.retry_write()

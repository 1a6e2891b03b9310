"""Creates and removes the networks of allocations: a namespace, its connection, and files such as /etc/hosts.

Each network has a folder with its namespace and a record. The record is written before anything is created, so that a
later agent can remove what an earlier one began. The folder is in /run, which is empty after a restart of the machine,
as the namespaces are gone then.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.contract.model.jobs.networks import DNS
from wharf.node.networks import namespaces
from wharf.node.networks.cni_plugins import CniPlugins
from wharf.node.networks.plugin_chain import (
    InterfaceAddress,
    NetworkAttachment,
    NetworkError,
    PluginChain,
    PortMapping,
    connect_namespace,
    disconnect_namespace,
)
from wharf.node.node_mark import NodeMark
from wharf.world import World
from wharf.world.tasks import start_supervised

log = logging.getLogger(__name__)

STATE_ROOT: Final = Path("/run/wharf/networks")
ADDRESSES_FOLDER: Final = "addresses"
NAMESPACE_FILE: Final = "namespace"
RECORD_FILE: Final = "record.json"
HOSTS_FILE: Final = "hosts"
RESOLV_CONF_FILE: Final = "resolv.conf"
RETRY_DELAY_S: Final = 5.0
"""Seconds before a failed removal is tried again."""
CLOSE_TIMEOUT_S: Final = 10.0
"""How long a shutdown waits for removals in progress."""
RESOLV_CONF_PATHS: Final = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""The host's resolver configuration, and the one behind systemd's local resolver."""
LOOPBACK_PREFIX: Final = "127."


class NetworkRequest(msgspec.Struct, frozen=True):
    """The network that an allocation's group requests."""

    chain: PluginChain | None
    """None: only a loopback interface."""
    ports: tuple[PortMapping, ...] = ()
    hostname: str = ""  # of the tasks; empty: the host's
    dns: DNS | None = None  # None: the resolver configuration of the host
    args: str = ""
    """Arguments of the job for the CNI plugins."""


class AllocationNetwork(msgspec.Struct, frozen=True):
    """The network of one allocation, as its tasks see it."""

    namespace: str
    """The path of the file that holds the namespace."""
    address: InterfaceAddress
    hostname: str = ""
    dns: DNS | None = None
    files: tuple[tuple[str, str], ...] = ()
    """Files of the host, each with its path in a task that has its own root file system."""


class NetworkRecord(msgspec.Struct, frozen=True):
    """The stored state of an allocation's network, in the file `record.json`."""

    request: NetworkRequest = msgspec.field(name="asked")
    network: AllocationNetwork | None = msgspec.field(name="made", default=None)
    """None while the network is being created."""
    result: dict[str, Any] | None = None
    """The result of the last CNI plugin that succeeded; its removal needs it."""
    state_folder: str = ""
    """The state folder of the node. If it is gone, an agent with another folder can remove the network."""


class NetworkManager:
    """Creates, stores and removes the networks of this node's allocations."""

    def __init__(self, world: World, plugins: CniPlugins, owner: NodeMark, folder: Path = STATE_ROOT) -> None:
        """Create the manager, and restore the networks that earlier agents created and that still exist.

        `owner` separates the networks of several nodes on one machine.
        """
        self._world = world
        self._plugins = plugins
        self._owner = owner
        self._folder = folder / owner.node_id
        self._networks: dict[str, AllocationNetwork] = {}
        self._creations: dict[str, asyncio.Task[AllocationNetwork]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        for allocation_id in self._list_stored_ids():
            record = self._read_record(allocation_id)
            if (
                record is not None
                and record.network is not None
                and namespaces.is_namespace_mounted(self._folder / allocation_id / NAMESPACE_FILE)
            ):
                self._networks[allocation_id] = record.network

    def find_network(self, allocation_id: str) -> AllocationNetwork | None:
        """Return the network of an allocation; None if it has none of its own."""
        return self._networks.get(allocation_id)

    async def ensure_network(self, allocation_id: str, request: NetworkRequest) -> AllocationNetwork:
        """Return the allocation's network, after creating it if it does not exist. Raises NetworkError.

        All tasks of an allocation share it. Callers that wait at the same time share one creation.
        """
        network = self._networks.get(allocation_id)
        if network is not None and namespaces.is_namespace_mounted(Path(network.namespace)):
            return network
        creation = self._creations.get(allocation_id)
        if creation is None:
            creation = self._creations[allocation_id] = self._world.start_task(
                self._create(allocation_id, request), name=f"network {allocation_id}"
            )
            creation.add_done_callback(lambda task: self._on_creation_done(allocation_id, task))
        # Shielded, because other tasks of the allocation wait for it too.
        return await asyncio.shield(creation)

    def _on_creation_done(self, allocation_id: str, creation: "asyncio.Task[AllocationNetwork]") -> None:
        """Remove a finished creation, and mark its exception as handled in case that every caller was canceled."""
        self._creations.pop(allocation_id, None)
        if not creation.cancelled():
            creation.exception()  # Asyncio logs exceptions that were never read.

    async def _create(self, allocation_id: str, request: NetworkRequest) -> AllocationNetwork:
        """Create the namespace, its connection and its files, and store the record of the network.

        The rest of an interrupted attempt is removed first. Raises NetworkError.
        """
        folder = self._folder / allocation_id
        if self._read_record(allocation_id) is not None:  # Left by an interrupted attempt.
            await self._remove(allocation_id)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o711)
            self._write_record(allocation_id, self._build_record(request))
            namespaces.create_namespace(folder / NAMESPACE_FILE)
        except OSError as error:
            raise NetworkError(f"the network namespace cannot be created: {error.strerror}") from error
        address = await self._connect(allocation_id, request)
        try:
            network = AllocationNetwork(
                str(folder / NAMESPACE_FILE),
                address,
                request.hostname,
                request.dns,
                tuple(_write_files(folder, request, address)),
            )
            stored = self._read_record(allocation_id)
            self._write_record(
                allocation_id, self._build_record(request, network, stored.result if stored is not None else None)
            )
        except OSError as error:
            raise NetworkError(f"the network's files cannot be written: {error.strerror}") from error
        self._networks[allocation_id] = network
        return network

    async def _connect(self, allocation_id: str, request: NetworkRequest) -> InterfaceAddress:
        """Connect the namespace to the requested network and return its address; empty for a loopback-only network.

        If that fails, everything created is removed, and NetworkError is raised.
        """
        if request.chain is None:
            return InterfaceAddress("")
        try:
            return await connect_namespace(
                self._plugins,
                request.chain,
                self._build_attachment(allocation_id, request),
                on_result=lambda result: self._write_record(allocation_id, self._build_record(request, result=result)),
            )
        except (NetworkError, OSError) as error:
            with contextlib.suppress(NetworkError):
                await self._remove(allocation_id)
            if isinstance(error, OSError):
                raise NetworkError(f"the network's record cannot be written: {error.strerror}") from error
            raise

    def release_network(self, allocation_id: str) -> None:
        """Begin to remove the allocation's network in the background. Repeated calls have no effect."""
        self._networks.pop(allocation_id, None)
        creation = self._creations.get(allocation_id)
        if creation is None and not (self._folder / allocation_id).exists():
            return
        if allocation_id in self._removals:
            return
        removal = start_supervised(
            self._world, self._remove_until_gone(allocation_id, creation), name=f"network removal {allocation_id}"
        )
        self._removals[allocation_id] = removal
        removal.add_done_callback(lambda _: self._removals.pop(allocation_id, None))

    def sweep_unknown_networks(self, known_allocations: Collection[str]) -> None:
        """Begin to remove the networks of all allocations that are not in `known_allocations`.

        An earlier agent process has left them.
        """
        for allocation_id in self._list_stored_ids():
            if allocation_id not in known_allocations:
                self.release_network(allocation_id)

    async def close(self) -> None:
        """Wait up to `CLOSE_TIMEOUT_S` for removals in progress, then cancel removals and creations.

        The networks of running allocations remain.
        """
        removals = list(self._removals.values())
        if removals:
            await asyncio.wait(removals, timeout=CLOSE_TIMEOUT_S)
        for task in (*self._removals.values(), *self._creations.values()):
            task.cancel()

    async def _remove_until_gone(self, allocation_id: str, creation: "asyncio.Task[AllocationNetwork] | None") -> None:
        """Remove a network, after waiting for its creation if that is in progress.

        A failed removal is logged and repeated until it succeeds.
        """
        if creation is not None:
            await asyncio.wait([creation])
            self._networks.pop(allocation_id, None)
        last_error = ""
        while True:
            try:
                await self._remove(allocation_id)
            except NetworkError as error:
                if str(error) != last_error:  # Log each error once.
                    last_error = str(error)
                    log.warning("network removal failed; retrying allocation=%s error=%s", allocation_id, error)
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                return

    async def _remove(self, allocation_id: str) -> None:
        """Disconnect the namespace, release it and delete the network's folder.

        Raises NetworkError; the call can then be repeated.
        """
        folder, record = self._folder / allocation_id, self._read_record(allocation_id)
        if record is not None and record.request.chain is not None:
            attachment = self._build_attachment(allocation_id, record.request)
            await disconnect_namespace(self._plugins, record.request.chain, attachment, result=record.result)
        try:
            namespaces.release_namespace(folder / NAMESPACE_FILE)
        except OSError as error:
            raise NetworkError(f"the network namespace cannot be released: {error.strerror}") from error
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # Other networks are in it.
            self._folder.rmdir()

    def _build_attachment(self, allocation_id: str, request: NetworkRequest) -> NetworkAttachment:
        """Return the allocation's namespace with the ports and plugin arguments of the request."""
        namespace = self._folder / allocation_id / NAMESPACE_FILE
        return NetworkAttachment(allocation_id, namespace, request.ports, request.args)

    # -- stored state

    def _list_stored_ids(self) -> list[str]:
        """Return the ids of the allocations that have a folder for their network, sorted."""
        try:
            return sorted(os.listdir(self._folder))
        except OSError:
            return []

    def _build_record(
        self, request: NetworkRequest, network: AllocationNetwork | None = None, result: dict[str, Any] | None = None
    ) -> NetworkRecord:
        return NetworkRecord(request, network, result, self._owner.state_folder)

    def _read_record(self, allocation_id: str) -> NetworkRecord | None:
        """Return the record of a network; None if it is missing or damaged."""
        return read_network_record(self._folder / allocation_id)

    def _write_record(self, allocation_id: str, record: NetworkRecord) -> None:
        """Replace the record of a network atomically. Raises OSError."""
        draft = self._folder / allocation_id / f"{RECORD_FILE}.new"
        draft.write_bytes(msgspec.json.encode(record))
        draft.rename(draft.with_name(RECORD_FILE))


def read_network_record(folder: Path) -> NetworkRecord | None:
    """Return the record in the folder of a network; None if it is missing or damaged."""
    try:
        return msgspec.json.decode((folder / RECORD_FILE).read_bytes(), type=NetworkRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_files(folder: Path, request: NetworkRequest, address: InterfaceAddress) -> Iterator[tuple[str, str]]:
    """Write /etc/hosts and resolv.conf for the tasks, if they need their own. Yield (host path, path in a task) for
    each.

    Raises OSError.
    """
    if address.address:
        name = request.hostname or socket.gethostname()
        hosts_file = folder / HOSTS_FILE
        hosts_file.write_text(f"127.0.0.1 localhost\n::1 localhost\n{address.address} {name}\n")
        yield str(hosts_file), "/etc/hosts"
    if text := build_resolv_conf(request.dns):
        file = folder / RESOLV_CONF_FILE
        file.write_text(text)
        yield str(file), "/etc/resolv.conf"


def build_resolv_conf(dns: DNS | None) -> str:
    """Return the text of resolv.conf for the tasks; empty if they can use the host's file.

    `dns` is the configuration of the group. Without it, systemd's file is returned if the host's file names a resolver
    on the loopback interface, which another namespace cannot reach.
    """
    if dns is None or not (dns.servers or dns.searches or dns.options):
        host_text, systemd_text = (_read_text(path) for path in RESOLV_CONF_PATHS)
        # A resolver on the host's loopback interface cannot be reached from another namespace.
        return systemd_text if f"nameserver {LOOPBACK_PREFIX}" in host_text else ""
    lines = [f"nameserver {server}" for server in dns.servers or ()]
    if not lines:
        lines = [line for line in _read_text(RESOLV_CONF_PATHS[0]).splitlines() if line.startswith("nameserver")]
    if dns.searches:
        lines.append(f"search {' '.join(dns.searches)}")
    if dns.options:
        lines.append(f"options {' '.join(dns.options)}")
    return "\n".join(lines) + "\n"


def _read_text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""

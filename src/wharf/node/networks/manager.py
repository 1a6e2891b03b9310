"""Which allocations have a network of their own, what of it has been made, and that it is taken away once.

What is to be made is written down before, beside the namespace, in a folder that the machine forgets when it starts anew,
as it forgets namespaces: whoever comes later undoes by it what nobody needs any more.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from collections.abc import Collection
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
from wharf.world import World

log = logging.getLogger(__name__)

STATE_ROOT: Final = Path("/run/wharf/networks")
ADDRESSES_FOLDER: Final = "addresses"
NAMESPACE_FILE: Final = "namespace"
RECORD_FILE: Final = "record.json"
HOSTS_FILE: Final = "hosts"
RESOLV_CONF_FILE: Final = "resolv.conf"
RETRY_DELAY_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 10.0
RESOLV_CONF_PATHS: Final = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
LOOPBACK_PREFIX: Final = "127."


class NetworkRequest(msgspec.Struct, frozen=True):
    """The network that an allocation's group requests."""

    chain: PluginChain | None
    """None: nothing but a loopback."""
    ports: tuple[PortMapping, ...] = ()
    hostname: str = ""
    dns: DNS | None = None
    args: str = ""


class AllocationNetwork(msgspec.Struct, frozen=True):
    """The network of one allocation, as its tasks see it."""

    namespace: str
    address: InterfaceAddress
    hostname: str = ""
    dns: DNS | None = None
    files: tuple[tuple[str, str], ...] = ()
    """Files of the machine, with where a task finds them."""


class NetworkRecord(msgspec.Struct, frozen=True):
    asked: NetworkRequest
    made: AllocationNetwork | None = None
    result: dict[str, Any] | None = None
    """What the plugins said that they had made, until now."""


class NetworkManager:
    def __init__(self, world: World, plugins: CniPlugins, node: str, folder: Path = STATE_ROOT) -> None:
        """`node` keeps the networks of several nodes on a machine apart."""
        self._world = world
        self._plugins = plugins
        self._folder = folder / node
        self._made: dict[str, AllocationNetwork] = {}
        self._making: dict[str, asyncio.Task[AllocationNetwork]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        for id in self._known():
            record = self._record(id)
            is_whole = record is not None and namespaces.is_namespace_mounted(self._folder / id / NAMESPACE_FILE)
            if record is not None and record.made is not None and is_whole:
                self._made[id] = record.made

    def find_network(self, allocation_id: str) -> AllocationNetwork | None:
        return self._made.get(allocation_id)

    async def ensure_network(self, allocation_id: str, asked: NetworkRequest) -> AllocationNetwork:
        """Return the allocation's network; created if it is missing. Raises NetworkError.

        All tasks of an allocation share it.
        """
        made = self._made.get(allocation_id)
        if made is not None and namespaces.is_namespace_mounted(Path(made.namespace)):
            return made
        making = self._making.get(allocation_id)
        if making is None:
            making = self._making[allocation_id] = self._world.start_task(
                self._make(allocation_id, asked), name=f"network {allocation_id}"
            )
            making.add_done_callback(lambda done: self._is_made(allocation_id, done))
        # Another task of the allocation waits for it, too: it goes on when one of them is to end.
        return await asyncio.shield(making)

    def _is_made(self, id: str, done: "asyncio.Task[AllocationNetwork]") -> None:
        self._making.pop(id, None)
        if not done.cancelled():
            done.exception()  # Whoever waited for it has it; there may be nobody any more.

    async def _make(self, id: str, asked: NetworkRequest) -> AllocationNetwork:
        folder = self._folder / id
        if self._record(id) is not None:  # Of a try that was cut off.
            await self._unmake(id)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o711)
            self._write(id, NetworkRecord(asked))
            namespaces.create_namespace(folder / NAMESPACE_FILE)
        except OSError as error:
            raise NetworkError(f"the node cannot make a network of its own: {error.strerror}") from error
        address = InterfaceAddress("")
        if asked.chain is not None:
            try:
                address = await connect_namespace(
                    self._plugins,
                    asked.chain,
                    self._place(id, asked),
                    on_result=lambda result: self._write(id, NetworkRecord(asked, result=result)),
                )
            except (NetworkError, OSError) as error:
                with contextlib.suppress(NetworkError):
                    await self._unmake(id)
                if isinstance(error, OSError):
                    raise NetworkError(f"what is made of it cannot be written down: {error.strerror}") from error
                raise
        try:
            made = AllocationNetwork(
                str(folder / NAMESPACE_FILE), address, asked.hostname, asked.dns, tuple(_files(folder, asked, address))
            )
            before = self._record(id)
            self._write(id, NetworkRecord(asked, made, before.result if before is not None else None))
        except OSError as error:
            raise NetworkError(f"what is told of the network cannot be written: {error.strerror}") from error
        self._made[id] = made
        return made

    def release_network(self, allocation_id: str) -> None:
        """Remove the network of an ended allocation. Repeated calls have no effect."""
        self._made.pop(allocation_id, None)
        making = self._making.get(allocation_id)
        if making is None and not (self._folder / allocation_id).exists():
            return
        if any(task.get_name() == _name_of_end(allocation_id) for task in self._ending):
            return
        ending = self._world.start_task(self._end(allocation_id, making), name=_name_of_end(allocation_id))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def sweep_unknown_networks(self, live: Collection[str]) -> None:
        """What an earlier life of the node has left."""
        for id in self._known():
            if id not in live:
                self.release_network(id)

    async def close(self) -> None:
        """Wait a short time for removals in progress. Networks of running allocations stay."""
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSE_TIMEOUT_S)
        for task in (*self._ending, *self._making.values()):
            task.cancel()

    async def _end(self, id: str, making: "asyncio.Task[AllocationNetwork] | None") -> None:
        if making is not None:
            await asyncio.wait([making])
            self._made.pop(id, None)
        said = ""
        while True:
            try:
                await self._unmake(id)
            except NetworkError as error:
                if said != str(error):
                    said = str(error)
                    log.warning(
                        "a network cannot be taken away: %s; it is tried again", error, extra={"allocation": id}
                    )
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                return

    async def _unmake(self, id: str) -> None:
        """Raises CannotConnect: then all of it is tried again."""
        folder, record = self._folder / id, self._record(id)
        if record is not None and record.asked.chain is not None:
            place = self._place(id, record.asked)
            await disconnect_namespace(self._plugins, record.asked.chain, place, result=record.result)
        try:
            namespaces.release_namespace(folder / NAMESPACE_FILE)
        except OSError as error:
            raise NetworkError(f"its namespace cannot be let go: {error.strerror}") from error
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # Others are in it.
            self._folder.rmdir()

    def _place(self, id: str, asked: NetworkRequest) -> NetworkAttachment:
        return NetworkAttachment(id, self._folder / id / NAMESPACE_FILE, asked.ports, asked.args)

    # -- what is written down

    def _known(self) -> list[str]:
        try:
            return sorted(os.listdir(self._folder))
        except OSError:
            return []

    def _record(self, id: str) -> NetworkRecord | None:
        try:
            return msgspec.json.decode((self._folder / id / RECORD_FILE).read_bytes(), type=NetworkRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self, id: str, record: NetworkRecord) -> None:
        """Whole or not at all. Raises OSError."""
        new = self._folder / id / f"{RECORD_FILE}.new"
        new.write_bytes(msgspec.json.encode(record))
        new.rename(new.with_name(RECORD_FILE))


def _name_of_end(id: str) -> str:
    return f"network {id} ends"


def _files(folder: Path, asked: NetworkRequest, address: InterfaceAddress) -> Any:  # Yields (file, where it is found).
    """What a task reads to know names. Raises OSError."""
    if address.address:
        name = asked.hostname or socket.gethostname()
        hosts = folder / HOSTS_FILE
        hosts.write_text(f"127.0.0.1 localhost\n::1 localhost\n{address.address} {name}\n")
        yield str(hosts), "/etc/hosts"
    if said := build_resolv_conf(asked.dns):
        file = folder / RESOLV_CONF_FILE
        file.write_text(said)
        yield str(file), "/etc/resolv.conf"


def build_resolv_conf(dns: DNS | None) -> str:
    """Return the text of resolv.conf; empty if the host's own file is suitable."""
    if dns is None or not (dns.servers or dns.searches or dns.options):
        own, behind = (_text(path) for path in RESOLV_CONF_PATHS)
        # Who answers at the machine's loopback is not at that of the namespace.
        return behind if f"nameserver {LOOPBACK_PREFIX}" in own else ""
    lines = [f"nameserver {server}" for server in dns.servers or ()]
    if not lines:
        lines = [line for line in _text(RESOLV_CONF_PATHS[0]).splitlines() if line.startswith("nameserver")]
    if dns.searches:
        lines.append(f"search {' '.join(dns.searches)}")
    if dns.options:
        lines.append(f"options {' '.join(dns.options)}")
    return "\n".join(lines) + "\n"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

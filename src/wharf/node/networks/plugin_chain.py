"""A network as a chain of plugins: each gets what the one before it made, and they are undone from the end.

Networks that the operator has declared, in files as the Container Network Interface has them.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from wharf.node.networks.cni_plugins import CniPluginError, CniPlugins

CNI_VERSION: Final = "0.4.0"
INTERFACE_NAME: Final = "eth0"
PORT_MAPPINGS_CAPABILITY: Final = "portMappings"
BRIDGE_PLUGINS: Final = ("bridge", "firewall", "host-local", "loopback", "portmap")
"""CniPlugins that a bridge is made of."""


class NetworkError(Exception):
    """An allocation has no network. The message is a sentence for the job's owner."""


class PortMapping(msgspec.Struct, frozen=True):
    """A port of the host, and the port in the namespace to which it forwards."""

    host_port: int = msgspec.field(name="hostPort")
    container_port: int = msgspec.field(name="containerPort")
    protocol: str = "tcp"
    host_ip: str = msgspec.field(name="hostIP", default="")


class PluginChain(msgspec.Struct, frozen=True):
    """The configurations of a network's CNI plug-ins, in order."""

    name: str
    plugins: tuple[dict[str, Any], ...]


class NetworkAttachment(NamedTuple):
    """What is to be connected."""

    id: str
    namespace: Path
    ports: tuple[PortMapping, ...]
    args: str = ""


class InterfaceAddress(msgspec.Struct, frozen=True):
    interface: str
    address: str = ""
    address_ipv6: str = ""


class _Ip(msgspec.Struct):
    address: str = ""


class _Result(msgspec.Struct):
    ips: list[_Ip] = []


def build_bridge_chain(bridge: str, subnet: str, addresses: Path) -> PluginChain:
    """`addresses`: the folder in which it is kept which of them are given away: one for the whole machine."""
    gives = {
        "type": "host-local",
        "ranges": [[{"subnet": subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(addresses),
    }
    makes = {
        "type": "bridge",
        "bridge": bridge,
        "isGateway": True,
        "ipMasq": True,
        # So that a task reaches its own port at the machine's address, too.
        "hairpinMode": True,
        "forceAddress": True,
        "ipam": gives,
    }
    lets_through = {"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "WHARF-ADMIN"}
    leads = {"type": "portmap", "capabilities": {PORT_MAPPINGS_CAPABILITY: True}, "snat": True}
    return PluginChain(bridge, (makes, lets_through, leads))


async def connect_namespace(
    plugins: CniPlugins, chain: PluginChain, place: NetworkAttachment, *, on_result: Callable[[Any], None]
) -> InterfaceAddress:
    """`keep` is told what is made, after each plugin: `disconnect` needs it. Raises CannotConnect; what was made until
    then is there."""
    result: Any = None
    for plugin in chain.plugins:
        try:
            answer = await _ask(plugins, "ADD", chain, plugin, place, result)
        except CniPluginError as error:
            raise NetworkError(str(error)) from error
        if answer is not None:
            result = answer
            on_result(result)
    try:
        found = [ip.address.partition("/")[0] for ip in msgspec.convert(result or {}, _Result).ips]
    except msgspec.ValidationError as error:
        raise NetworkError(f"the plugins of the network {chain.name} tell no address that can be read") from error
    return InterfaceAddress(
        INTERFACE_NAME,
        next((each for each in found if ":" not in each), ""),
        next((each for each in found if ":" in each), ""),
    )


async def disconnect_namespace(
    plugins: CniPlugins, chain: PluginChain, place: NetworkAttachment, *, result: Any
) -> None:  # The plugins' JSON.
    """Undo all plug-ins of the chain. Raises NetworkError with the first failure."""
    failed: CniPluginError | None = None
    for plugin in reversed(chain.plugins):
        try:
            await _ask(plugins, "DEL", chain, plugin, place, result)
        except CniPluginError as error:
            failed = failed or error
    if failed is not None:
        raise NetworkError(str(failed)) from failed


async def _ask(
    plugins: CniPlugins, command: str, chain: PluginChain, plugin: dict[str, Any], place: NetworkAttachment, result: Any
) -> Any:  # JSON, both of them.
    """Raises CniPluginError."""
    config = {"cniVersion": CNI_VERSION, **plugin, "name": chain.name}
    can = config.pop("capabilities", None) or {}
    if can.get(PORT_MAPPINGS_CAPABILITY):
        config["runtimeConfig"] = {PORT_MAPPINGS_CAPABILITY: msgspec.to_builtins(list(place.ports))}
    if result is not None:
        config["prevResult"] = result
    return await plugins.call_plugin(
        command, config, container=place.id, namespace=place.namespace, interface=INTERFACE_NAME, args=place.args
    )


log = logging.getLogger(__name__)

CONFIG_SUFFIXES: Final = (".conflist", ".conf", ".json")


class _Declared(msgspec.Struct):
    name: str
    plugins: list[dict[str, Any]] | None = None
    type: str = ""


def read_declared_chains(folder: Path) -> Iterator[PluginChain]:
    """A file that cannot be read is told in the log, and left out."""
    if not folder.is_dir():
        return
    for file in sorted(file for file in folder.iterdir() if file.suffix in CONFIG_SUFFIXES):
        try:
            text = file.read_bytes()
            found = msgspec.json.decode(text, type=_Declared)
            plugins = found.plugins if found.plugins is not None else [msgspec.json.decode(text, type=dict[str, Any])]
            if all(isinstance(plugin.get("type"), str) for plugin in plugins):
                yield PluginChain(found.name, tuple(plugins))
            else:
                log.warning("the network %s is left out: a plugin of it has no type", file)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the network %s cannot be read: %s", file, error)

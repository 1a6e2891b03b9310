"""A network as a chain of CNI plugins: each receives the result of the one before, and they are undone in reverse.

Contains the chain of the bridge network, and reads the chains that the operator declares in CNI configuration files.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from wharf.node.networks.cni_plugins import CniPluginError, CniPlugins
from wharf.node.networks.namespaces import is_namespace_mounted

log = logging.getLogger(__name__)

CNI_VERSION: Final = "0.4.0"
INTERFACE_NAME: Final = "eth0"
PORT_MAPPINGS_CAPABILITY: Final = "portMappings"
BRIDGE_PLUGINS: Final = ("bridge", "firewall", "host-local", "loopback", "portmap")
"""The plugins that must be installed for bridge networks."""
CONFIG_SUFFIXES: Final = (".conflist", ".conf", ".json")


class NetworkError(Exception):
    """The error of a network that cannot be created or removed. Its message is a sentence for the owner of the job."""


class PortMapping(msgspec.Struct, frozen=True):
    """A port of the host that is forwarded to a port in an allocation's namespace."""

    host_port: int = msgspec.field(name="hostPort")
    container_port: int = msgspec.field(name="containerPort")
    protocol: str = "tcp"  # tcp or udp
    host_ip: str = msgspec.field(name="hostIP", default="")  # empty: all addresses of the host


class PluginChain(msgspec.Struct, frozen=True):
    """A network as the configurations of its CNI plugins, in the order in which they are called."""

    name: str
    plugins: tuple[dict[str, Any], ...]


class NetworkAttachment(NamedTuple):
    """The connection of an allocation's namespace to a network."""

    id: str  # the allocation's id
    namespace: Path  # the file on which the namespace is mounted
    ports: tuple[PortMapping, ...]  # forwarded from the host
    args: str = ""
    """Arguments of the job for the plugins, as `NAME=value;NAME=value`."""


class InterfaceAddress(msgspec.Struct, frozen=True):
    """The network interface in a namespace with its IPv4 and IPv6 address; an empty text means none."""

    interface: str
    address: str = ""
    address_ipv6: str = ""


class _IpConfig(msgspec.Struct):
    """An address in the result of a CNI plugin, with the length of its prefix."""

    address: str = ""


class _PluginResult(msgspec.Struct):
    """The part of a CNI plugin's result that this module uses."""

    ips: list[_IpConfig] = []


def build_bridge_chain(bridge_name: str, subnet: str, addresses_folder: Path) -> PluginChain:
    """Return the plugin chain of the bridge network with this subnet.

    `addresses_folder` is where the plugin host-local records the assigned addresses of the whole machine.
    """
    address_plugin = {
        "type": "host-local",
        "ranges": [[{"subnet": subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(addresses_folder),
    }
    bridge_plugin = {
        "type": "bridge",
        "bridge": bridge_name,
        "isGateway": True,
        "ipMasq": True,
        # A task can then reach its own port at the address of the host.
        "hairpinMode": True,
        "forceAddress": True,
        "ipam": address_plugin,
    }
    firewall_plugin = {"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "WHARF-ADMIN"}
    port_plugin = {"type": "portmap", "capabilities": {PORT_MAPPINGS_CAPABILITY: True}, "snat": True}
    return PluginChain(bridge_name, (bridge_plugin, firewall_plugin, port_plugin))


async def connect_namespace(
    plugins: CniPlugins, chain: PluginChain, attachment: NetworkAttachment, *, on_result: Callable[[Any], None]
) -> InterfaceAddress:
    """Connect a namespace to a network by calling its plugins in order. Return the addresses.

    `on_result` is called after each plugin with its result, which is needed to disconnect. After a failure, the effects
    of the plugins that succeeded remain until the namespace is disconnected. Raises NetworkError.
    """
    result: Any = None
    for plugin in chain.plugins:
        try:
            new_result = await _call_plugin(plugins, "ADD", chain, plugin, attachment, result)
        except CniPluginError as error:
            raise NetworkError(str(error)) from error
        if new_result is not None:
            result = new_result
            on_result(result)
    try:
        addresses = [ip.address.partition("/")[0] for ip in msgspec.convert(result or {}, _PluginResult).ips]
    except msgspec.ValidationError as error:
        raise NetworkError(f"the plugins of network {chain.name} returned invalid addresses: {error}") from error
    return InterfaceAddress(
        INTERFACE_NAME,
        next((address for address in addresses if ":" not in address), ""),
        next((address for address in addresses if ":" in address), ""),
    )


async def disconnect_namespace(
    plugins: CniPlugins, chain: PluginChain, attachment: NetworkAttachment, *, result: Any
) -> None:  # `result`: the JSON of the last plugin.
    """Undo the effects of all plugins of the chain, in reverse order.

    `result` is the JSON of the last plugin that succeeded when the namespace was connected. All plugins are called,
    then NetworkError is raised for the first failure.
    """
    first_error: CniPluginError | None = None
    for plugin in reversed(chain.plugins):
        try:
            await _call_plugin(plugins, "DEL", chain, plugin, attachment, result)
        except CniPluginError as error:
            first_error = first_error or error
    if first_error is not None:
        raise NetworkError(str(first_error)) from first_error


async def _call_plugin(
    plugins: CniPlugins,
    command: str,
    chain: PluginChain,
    plugin: dict[str, Any],
    attachment: NetworkAttachment,
    previous_result: Any,
) -> Any:  # JSON, as `previous_result`.
    """Call one plugin of the chain with `ADD` or `DEL` and return its result. Raises CniPluginError.

    `previous_result` is the JSON that the plugin before it returned.
    """
    config = {"cniVersion": CNI_VERSION, **plugin, "name": chain.name}
    capabilities = config.pop("capabilities", None) or {}
    if capabilities.get(PORT_MAPPINGS_CAPABILITY):
        config["runtimeConfig"] = {PORT_MAPPINGS_CAPABILITY: msgspec.to_builtins(list(attachment.ports))}
    if previous_result is not None:
        config["prevResult"] = previous_result
    # Without a namespace, the plugins remove what they created on the host. They refuse a file that is no namespace.
    is_gone = command == "DEL" and not is_namespace_mounted(attachment.namespace)
    return await plugins.call_plugin(
        command,
        config,
        container=attachment.id,
        namespace=None if is_gone else attachment.namespace,
        interface=INTERFACE_NAME,
        args=attachment.args,
    )


class _DeclaredNetwork(msgspec.Struct):
    """The content of a CNI configuration file: one plugin, or a list of plugins."""

    name: str
    plugins: list[dict[str, Any]] | None = None
    type: str = ""


def read_declared_chains(folder: Path) -> Iterator[PluginChain]:
    """Yield a plugin chain for each CNI configuration file in a folder.

    Invalid files are logged and skipped. A missing folder has no files.
    """
    if not folder.is_dir():
        return
    for file in sorted(file for file in folder.iterdir() if file.suffix in CONFIG_SUFFIXES):
        try:
            text = file.read_bytes()
            declared = msgspec.json.decode(text, type=_DeclaredNetwork)
            plugins = declared.plugins
            if plugins is None:
                plugins = [msgspec.json.decode(text, type=dict[str, Any])]
            if all(isinstance(plugin.get("type"), str) for plugin in plugins):
                yield PluginChain(declared.name, tuple(plugins))
            else:
                log.warning("skipping CNI network file=%s error=%s", file, "a plugin has no type")
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("skipping CNI network file=%s error=%s", file, error)

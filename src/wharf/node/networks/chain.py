"""A network as a chain of plugins: each gets what the one before it made, and they are undone from the end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from wharf.node.networks.plugins import CannotRun, Plugins

PROTOCOL: Final = "0.4.0"
INTERFACE: Final = "eth0"
PORTS: Final = "portMappings"
OF_BRIDGE: Final = ("bridge", "firewall", "host-local", "loopback", "portmap")
"""Plugins that a bridge is made of."""


class CannotConnect(Exception):
    """Why an allocation has no network: a sentence for its owner."""


class Mapping(msgspec.Struct, frozen=True):
    """A port of the machine, and that of the namespace which it leads to."""

    host_port: int = msgspec.field(name="hostPort")
    container_port: int = msgspec.field(name="containerPort")
    protocol: str = "tcp"
    host_ip: str = msgspec.field(name="hostIP", default="")


class Chain(msgspec.Struct, frozen=True):
    """`plugins`: their configurations, in order, as the plugins read them."""

    name: str
    plugins: tuple[dict[str, Any], ...]


class Place(NamedTuple):
    """What is to be connected."""

    id: str
    namespace: Path
    ports: tuple[Mapping, ...]
    args: str = ""


class Address(msgspec.Struct, frozen=True):
    interface: str
    address: str = ""
    address_ipv6: str = ""


class _Ip(msgspec.Struct):
    address: str = ""


class _Result(msgspec.Struct):
    ips: list[_Ip] = []


def bridge_chain(bridge: str, subnet: str, addresses: Path) -> Chain:
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
    leads = {"type": "portmap", "capabilities": {PORTS: True}, "snat": True}
    return Chain(bridge, (makes, lets_through, leads))


async def connect(plugins: Plugins, chain: Chain, place: Place, *, keep: Callable[[Any], None]) -> Address:
    """`keep` is told what is made, after each plugin: `disconnect` needs it. Raises CannotConnect; what was made until
    then is there."""
    result: Any = None
    for plugin in chain.plugins:
        try:
            answer = await _ask(plugins, "ADD", chain, plugin, place, result)
        except CannotRun as error:
            raise CannotConnect(str(error)) from error
        if answer is not None:
            result = answer
            keep(result)
    try:
        found = [ip.address.partition("/")[0] for ip in msgspec.convert(result or {}, _Result).ips]
    except msgspec.ValidationError as error:
        raise CannotConnect(f"the plugins of the network {chain.name} tell no address that can be read") from error
    return Address(
        INTERFACE,
        next((each for each in found if ":" not in each), ""),
        next((each for each in found if ":" in each), ""),
    )


async def disconnect(plugins: Plugins, chain: Chain, place: Place, *, kept: Any) -> None:  # The plugins' JSON.
    """All of it, whatever of it is there. Raises CannotConnect with the first that could not be undone."""
    failed: CannotRun | None = None
    for plugin in reversed(chain.plugins):
        try:
            await _ask(plugins, "DEL", chain, plugin, place, kept)
        except CannotRun as error:
            failed = failed or error
    if failed is not None:
        raise CannotConnect(str(failed)) from failed


async def _ask(
    plugins: Plugins, command: str, chain: Chain, plugin: dict[str, Any], place: Place, result: Any
) -> Any:  # JSON, both of them.
    """Raises CannotRun."""
    config = {"cniVersion": PROTOCOL, **plugin, "name": chain.name}
    can = config.pop("capabilities", None) or {}
    if can.get(PORTS):
        config["runtimeConfig"] = {PORTS: msgspec.to_builtins(list(place.ports))}
    if result is not None:
        config["prevResult"] = result
    return await plugins.ask(
        command, config, container=place.id, namespace=place.namespace, interface=INTERFACE, args=place.args
    )

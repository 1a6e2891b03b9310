"""How plugins are asked, in which order, and what is told when one refuses. The plugins are a few lines of shell."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.waiting import wait_on_loop_until
from wharf.contract.model.jobs.networks import DNS
from wharf.node.networks.cni_plugins import CniPlugins
from wharf.node.networks.manager import build_resolv_conf
from wharf.node.networks.plugin_chain import (
    NetworkAttachment,
    NetworkError,
    PluginChain,
    PortMapping,
    connect_namespace,
    disconnect_namespace,
    read_declared_chains,
)
from wharf.node.supervisor.processes import find_process

SAYS = """#!/bin/sh
if [ -z "$CNI_COMMAND" ]; then echo "CNI {name} plugin {version}\nCNI protocol versions supported: 0.9.0, 0.10.0" >&2; exit; fi
cat >"{folder}/$CNI_COMMAND.{name}"; echo "$CNI_COMMAND {name} $CNI_IFNAME $CNI_CONTAINERID $CNI_ARGS" >>{folder}/asked
{then}
"""
GIVES = 'echo \'{"ips": [{"address": "192.0.2.9/24"}, {"address": "2001:db8::9/64"}], "by": "%s"}\''
REFUSES = 'echo \'{"code": 7, "msg": "no", "details": "none left"}\'; exit 1'


class Made:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugins = CniPlugins(f"{folder / 'first'}:{folder / 'bin'}")
        (folder / "bin").mkdir()

    def plugin(self, name: str, then: str, version: str = "v1.2.3") -> None:
        file = self.folder / "bin" / name
        file.write_text(SAYS.format(name=name, version=version, folder=self.folder, then=then))
        file.chmod(0o755)

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    def heard(self, command: str, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / f"{command}.{name}").read_text()))


PLACE = NetworkAttachment("a1", Path("/run/x"), (PortMapping(20000, 80, "tcp", "192.0.2.1"),), "A=b")
CHAIN = PluginChain("net", ({"type": "one", "key": 1}, {"type": "two", "capabilities": {"portMappings": True}}))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_each_plugin_gets_what_the_one_before_it_made_and_the_last_are_undone_first(made: Made) -> None:
    made.plugin("one", GIVES % "one")
    made.plugin("two", GIVES % "two")
    kept: list[Any] = []
    address = asyncio.run(connect_namespace(made.plugins, CHAIN, PLACE, on_result=kept.append))
    assert ("eth0", "192.0.2.9", "2001:db8::9") == (address.interface, address.address, address.address_ipv6)
    assert ["one", "two"] == [each["by"] for each in kept]
    asyncio.run(disconnect_namespace(made.plugins, CHAIN, PLACE, result=kept[-1]))
    steps = [("ADD", "one"), ("ADD", "two"), ("DEL", "two"), ("DEL", "one")]
    assert [f"{command} {name} eth0 a1 A=b" for command, name in steps] == made.asked()
    assert {"cniVersion": "0.4.0", "name": "net", "type": "one", "key": 1} == made.heard("ADD", "one")
    second = made.heard("ADD", "two")
    ports = [{"hostPort": 20000, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]
    assert ("one", {"portMappings": ports}) == (second["prevResult"]["by"], second["runtimeConfig"])
    assert "two" == made.heard("DEL", "one")["prevResult"]["by"]


def test_why_a_plugin_refuses_is_told_and_all_others_are_undone_nevertheless(made: Made) -> None:
    made.plugin("one", GIVES % "one")
    made.plugin("two", REFUSES)
    with pytest.raises(NetworkError, match="the network plugin two refuses: no: none left"):
        asyncio.run(connect_namespace(made.plugins, CHAIN, PLACE, on_result=lambda _: None))
    with pytest.raises(NetworkError, match="two refuses"):
        asyncio.run(disconnect_namespace(made.plugins, CHAIN, PLACE, result=None))
    assert "DEL one eth0 a1 A=b" == made.asked()[-1]
    with pytest.raises(NetworkError, match="there is no network plugin three in "):
        asyncio.run(
            connect_namespace(made.plugins, PluginChain("net", ({"type": "three"},)), PLACE, on_result=lambda _: None)
        )
    assert made.plugins.find_program("../bin/one") is None


def test_the_version_is_the_plugins_own_or_else_that_of_its_protocol(made: Made) -> None:
    made.plugin("one", "")
    made.plugin("two", "", version="version unknown")
    versions = [asyncio.run(made.plugins.find_version(name)) for name in ("one", "two", "three")]
    assert ["1.2.3", "0.10.0", ""] == versions


def test_a_plugin_may_end_before_it_reads_what_it_is_told(made: Made) -> None:
    """As the agent asks, on its own event loop, which writes to no pipe that is closed already."""
    (made.folder / "bin" / "one").symlink_to("/bin/true")
    address = uvloop.run(
        connect_namespace(made.plugins, PluginChain("net", ({"type": "one"},)), PLACE, on_result=lambda _: None)
    )
    versions = [uvloop.run(made.plugins.find_version("one")) for _ in range(20)]
    assert ("", [""] * 20) == (address.address, versions)


def test_a_plugin_for_which_nobody_waits_any_more_is_ended(made: Made) -> None:
    told = made.folder / "pid"
    made.plugin("one", f"echo $$ >{told}.new; mv {told}.new {told}; exec sleep 1000")

    async def story() -> int:
        asking = asyncio.ensure_future(connect_namespace(made.plugins, CHAIN, PLACE, on_result=lambda _made: None))
        await wait_on_loop_until(told.exists, what="it runs")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return int(told.read_text())

    assert find_process(asyncio.run(story())) is None


def test_declared_networks_are_read_and_what_cannot_be_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.conflist").write_text('{"name": "many", "plugins": [{"type": "one"}, {"type": "two"}]}')
    (tmp_path / "2.conf").write_text('{"name": "single", "type": "one", "key": 1}')
    (tmp_path / "3.conflist").write_text("{")
    (tmp_path / "4.conflist").write_text('{"name": "typeless", "plugins": [{}]}')
    (tmp_path / "5.txt").write_text("")
    found = {chain.name: [plugin["type"] for plugin in chain.plugins] for chain in read_declared_chains(tmp_path)}
    assert {"many": ["one", "two"], "single": ["one"]} == found
    assert [] == list(read_declared_chains(tmp_path / "nowhere"))


def test_a_resolver_is_written_only_where_the_group_or_the_machine_needs_one() -> None:
    wanted = DNS(servers=("192.0.2.1", "192.0.2.2"), searches=("a", "b"), options=("ndots:1",))
    assert "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch a b\noptions ndots:1\n" == build_resolv_conf(wanted)
    assert "search a\n" in build_resolv_conf(DNS(searches=("a",)))

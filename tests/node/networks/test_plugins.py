"""Calls of CNI plugins: their order, their results and their errors. The plugins are shell scripts."""

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
from wharf.node.processes import find_process

PLUGIN = """#!/bin/sh
if [ -z "$CNI_COMMAND" ]; then echo "CNI {name} plugin {version}\nCNI protocol versions supported: 0.9.0, 0.10.0" >&2; exit; fi
cat >"{folder}/$CNI_COMMAND.{name}"; echo "$CNI_COMMAND {name} $CNI_IFNAME $CNI_CONTAINERID $CNI_ARGS" >>{folder}/calls
{then}
"""
ADDRESS_RESULT = 'echo \'{"ips": [{"address": "192.0.2.9/24"}, {"address": "2001:db8::9/64"}], "by": "%s"}\''
FAILURE = 'echo \'{"code": 7, "msg": "no", "details": "none left"}\'; exit 1'


class PluginFolder:
    """A folder with plugins that record their calls and their input."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugins = CniPlugins(f"{folder / 'first'}:{folder / 'bin'}")
        (folder / "bin").mkdir()

    def add_plugin(self, name: str, commands: str, version: str = "v1.2.3") -> None:
        file = self.folder / "bin" / name
        file.write_text(PLUGIN.format(name=name, version=version, folder=self.folder, then=commands))
        file.chmod(0o755)

    def read_calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def read_input(self, command: str, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / f"{command}.{name}").read_text()))


ATTACHMENT = NetworkAttachment("a1", Path("/run/x"), (PortMapping(20000, 80, "tcp", "192.0.2.1"),), "A=b")
CHAIN = PluginChain("net", ({"type": "one", "key": 1}, {"type": "two", "capabilities": {"portMappings": True}}))


@pytest.fixture
def plugin_folder(tmp_path: Path) -> PluginFolder:
    return PluginFolder(tmp_path)


def test_each_plugin_receives_the_previous_result_and_plugins_are_undone_in_reverse(
    plugin_folder: PluginFolder,
) -> None:
    plugin_folder.add_plugin("one", ADDRESS_RESULT % "one")
    plugin_folder.add_plugin("two", ADDRESS_RESULT % "two")
    results: list[Any] = []
    address = asyncio.run(connect_namespace(plugin_folder.plugins, CHAIN, ATTACHMENT, on_result=results.append))
    assert ("eth0", "192.0.2.9", "2001:db8::9") == (address.interface, address.address, address.address_ipv6)
    assert ["one", "two"] == [each["by"] for each in results]
    asyncio.run(disconnect_namespace(plugin_folder.plugins, CHAIN, ATTACHMENT, result=results[-1]))
    steps = [("ADD", "one"), ("ADD", "two"), ("DEL", "two"), ("DEL", "one")]
    assert [f"{command} {name} eth0 a1 A=b" for command, name in steps] == plugin_folder.read_calls()
    assert {"cniVersion": "0.4.0", "name": "net", "type": "one", "key": 1} == plugin_folder.read_input("ADD", "one")
    second = plugin_folder.read_input("ADD", "two")
    ports = [{"hostPort": 20000, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]
    assert ("one", {"portMappings": ports}) == (second["prevResult"]["by"], second["runtimeConfig"])
    assert "two" == plugin_folder.read_input("DEL", "one")["prevResult"]["by"]


def test_the_error_of_a_plugin_is_reported_and_all_others_are_undone(plugin_folder: PluginFolder) -> None:
    plugin_folder.add_plugin("one", ADDRESS_RESULT % "one")
    plugin_folder.add_plugin("two", FAILURE)
    with pytest.raises(NetworkError, match="network plugin two failed: no: none left"):
        asyncio.run(connect_namespace(plugin_folder.plugins, CHAIN, ATTACHMENT, on_result=lambda _: None))
    with pytest.raises(NetworkError, match="two failed"):
        asyncio.run(disconnect_namespace(plugin_folder.plugins, CHAIN, ATTACHMENT, result=None))
    assert "DEL one eth0 a1 A=b" == plugin_folder.read_calls()[-1]
    with pytest.raises(NetworkError, match="network plugin three not found in "):
        asyncio.run(
            connect_namespace(
                plugin_folder.plugins, PluginChain("net", ({"type": "three"},)), ATTACHMENT, on_result=lambda _: None
            )
        )
    assert plugin_folder.plugins.find_program("../bin/one") is None


def test_plugins_undo_a_network_whose_namespace_is_gone_without_a_namespace(plugin_folder: PluginFolder) -> None:
    """They refuse a file that is no namespace, so the rules of the host would remain for ever."""
    plugin_folder.add_plugin("one", f'echo "netns=$CNI_NETNS" >>{plugin_folder.folder}/calls')

    chain = PluginChain("net", ({"type": "one"},))
    asyncio.run(disconnect_namespace(plugin_folder.plugins, chain, ATTACHMENT, result=None))

    assert ["DEL one eth0 a1 A=b", "netns="] == plugin_folder.read_calls()


def test_the_version_of_a_plugin_falls_back_to_its_protocol_version(plugin_folder: PluginFolder) -> None:
    plugin_folder.add_plugin("one", "")
    plugin_folder.add_plugin("two", "", version="version unknown")
    versions = [asyncio.run(plugin_folder.plugins.find_version(name)) for name in ("one", "two", "three")]
    assert ["1.2.3", "0.10.0", ""] == versions


def test_a_plugin_may_end_before_it_reads_its_input(plugin_folder: PluginFolder) -> None:
    """Tested with the agent's event loop, whose subprocesses fail differently if a pipe is closed."""
    (plugin_folder.folder / "bin" / "one").symlink_to("/bin/true")
    address = uvloop.run(
        connect_namespace(
            plugin_folder.plugins, PluginChain("net", ({"type": "one"},)), ATTACHMENT, on_result=lambda _: None
        )
    )
    versions = [uvloop.run(plugin_folder.plugins.find_version("one")) for _ in range(20)]
    assert ("", [""] * 20) == (address.address, versions)


def test_a_plugin_is_killed_if_its_call_is_canceled(plugin_folder: PluginFolder) -> None:
    pid_file = plugin_folder.folder / "pid"
    plugin_folder.add_plugin("one", f"echo $$ >{pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 1000")

    async def cancel_call() -> int:
        call = asyncio.ensure_future(
            connect_namespace(plugin_folder.plugins, CHAIN, ATTACHMENT, on_result=lambda _: None)
        )
        await wait_on_loop_until(pid_file.exists, what="the plugin runs")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return int(pid_file.read_text())

    assert find_process(asyncio.run(cancel_call())) is None


def test_declared_networks_are_read_and_invalid_files_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "1.conflist").write_text('{"name": "many", "plugins": [{"type": "one"}, {"type": "two"}]}')
    (tmp_path / "2.conf").write_text('{"name": "single", "type": "one", "key": 1}')
    (tmp_path / "3.conflist").write_text("{")
    (tmp_path / "4.conflist").write_text('{"name": "typeless", "plugins": [{}]}')
    (tmp_path / "5.txt").write_text("")
    found = {chain.name: [plugin["type"] for plugin in chain.plugins] for chain in read_declared_chains(tmp_path)}
    assert {"many": ["one", "two"], "single": ["one"]} == found
    assert [] == list(read_declared_chains(tmp_path / "nowhere"))


def test_resolv_conf_is_written_only_if_the_group_or_the_host_requires_it() -> None:
    dns = DNS(servers=("192.0.2.1", "192.0.2.2"), searches=("a", "b"), options=("ndots:1",))
    assert "nameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch a b\noptions ndots:1\n" == build_resolv_conf(dns)
    assert "search a\n" in build_resolv_conf(DNS(searches=("a",)))

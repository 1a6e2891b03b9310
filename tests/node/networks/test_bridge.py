"""Allocations with their own network: connections to and from their tasks, and the removal of the network."""

import asyncio
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.networks.declared_network import ADDRESS, NAME, TTL, DeclaredNetwork, declare
from tests.node.networks.remove_networks import remove_all_networks
from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until
from wharf.node.networks import namespaces
from wharf.node.networks.manager import STATE_ROOT

pytestmark = [pytest.mark.needs("bridges"), pytest.mark.needs_program("iptables")]
WITHIN_S = 60.0
WEB_SERVER = """
import http.server, os, sys
class CommandServer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        output = os.popen(self.path[1:].replace('%20', ' ')).read().encode()
        self.send_response(200); self.end_headers(); self.wfile.write(output)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('', int(os.environ['NOMAD_PORT_web'])), CommandServer).serve_forever()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("bridge")
    declare(folder / "node")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as running_node:
        (known,) = list_nodes(running_node)
        yield running_node
    asyncio.run(remove_all_networks(known["ID"]))


@pytest.fixture
def declared_network(node: NodeProcess) -> Iterator[DeclaredNetwork]:
    found = DeclaredNetwork(node.folder)
    yield found
    found.stop_hanging()


def list_nodes(node: NodeProcess) -> list[dict[str, Any]]:
    found: Any = node.server.get("/v1/nodes")
    return list(found)


def build_job(id: str, *tasks: dict[str, Any], mode: str = "bridge", **network: Any) -> dict[str, Any]:
    job = build_raw_job(id, "", kind="service")
    group = job["TaskGroups"][0]
    (template,) = group["Tasks"]
    group["Tasks"] = [{**template, **task} for task in tasks]
    group["Networks"] = [{"Mode": mode, **network}]
    return job


def build_web_task(name: str = "web", driver: str = "exec", **options: Any) -> dict[str, Any]:
    config = {"command": "/usr/bin/python3", "args": ["-c", WEB_SERVER]}
    return {"Name": name, "Driver": driver, "Config": config, "Resources": {"CPU": 50, "MemoryMB": 100}, **options}


def wait_running(node: NodeProcess, job: str) -> dict[str, Any]:
    (found,) = wait_until(
        lambda: [each for each in node.allocations(job) if each["ClientStatus"] == "running"],
        what=f"{job} runs",
        within_s=WITHIN_S,
    )
    return read_allocation(node, found["ID"])


def read_allocation(node: NodeProcess, id: str) -> dict[str, Any]:
    found: Any = node.server.get(f"/v1/allocation/{id}")
    return dict(found)


def run_command(address: str, command: str = "echo hello") -> str:
    """Return the output of a command that the web task at this address runs."""

    def fetch() -> str:
        try:
            with urllib.request.urlopen(
                f"http://{address}/{command.replace(' ', '%20')}", timeout=ANSWERED_WITHIN_S
            ) as reply:
                return str(reply.read().decode())
        except OSError:
            return ""

    return wait_until(fetch, what=f"{address} answers", within_s=WITHIN_S)


def stop(node: NodeProcess, job: str) -> None:
    request = urllib.request.Request(f"{node.server.address}/v1/job/{job}", method="DELETE")
    urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()


def get_network_folder(allocation: dict[str, Any]) -> Path:
    return STATE_ROOT / str(allocation["NodeID"]) / str(allocation["ID"])


def list_firewall_rules() -> str:
    return subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout


def is_network_removed(allocation: dict[str, Any]) -> bool:
    return not get_network_folder(allocation).exists() and allocation["ID"] not in list_firewall_rules()


def test_tasks_of_an_allocation_share_a_network_and_its_ports_are_reachable_from_the_host(node: NodeProcess) -> None:
    second_task = {"Name": "second", "Config": {"command": "/bin/sleep", "args": ["1000"]}}
    services = [
        {"Name": "outside", "PortLabel": "web", "Provider": "nomad"},
        {"Name": "inside", "PortLabel": "web", "Provider": "nomad", "AddressMode": "alloc"},
    ]
    job = build_job(
        "shared",
        build_web_task(),
        second_task,
        DynamicPorts=[{"Label": "web", "To": 8080}, {"Label": "same"}],
        Hostname="my-host",
        DNS={"Servers": ["192.0.2.53"], "Searches": ["example"], "Options": ["ndots:2"]},
    )
    job["TaskGroups"][0]["Services"] = services
    node.run(job)
    allocation = wait_running(node, "shared")
    status = allocation["NetworkStatus"]
    ports = {port["Label"]: port for port in allocation["AllocatedResources"]["Shared"]["Ports"]}
    outside, inside = ports["web"]["Value"], status["Address"]
    host = ports["web"]["HostIP"]
    assert ("eth0", True) == (status["InterfaceName"], inside.startswith("172.26."))
    assert {"Servers": ["192.0.2.53"], "Searches": ["example"], "Options": ["ndots:2"]} == status["DNS"]

    assert "hello\n" == run_command(f"{host}:{outside}") == run_command(f"{inside}:8080")
    output = run_command(
        f"{host}:{outside}", "env; hostname; cat /etc/hosts /etc/resolv.conf; cat /proc/net/dev"
    ).splitlines()
    expected = {
        f"NOMAD_ALLOC_IP_web={inside}", f"NOMAD_ALLOC_ADDR_web={inside}:8080", "NOMAD_ALLOC_INTERFACE_web=eth0",
        "NOMAD_PORT_web=8080", f"NOMAD_HOST_PORT_web={outside}", f"NOMAD_ADDR_web={host}:{outside}",
        f"NOMAD_IP_web={host}", f"NOMAD_PORT_same={ports['same']['Value']}", f"WHARF_ALLOC_IP_web={inside}",
        "my-host", f"{inside} my-host", "127.0.0.1 localhost", "nameserver 192.0.2.53", "search example", "options ndots:2",
    }  # fmt: skip
    assert expected - set(output) == set()
    interfaces = {
        line.split(":")[0].strip() for line in output if ":" in line and line.strip().split(":")[0] in ("lo", "eth0")
    }
    assert {"lo", "eth0"} == interfaces
    # The second task, of a driver without a sandbox, is in the same network.
    (pid,) = [
        pid for pid in node.list_processes([allocation["ID"]]) if _read_command_line(pid) == ["/bin/sleep", "1000"]
    ]
    namespace = os.stat(get_network_folder(allocation) / "namespace").st_ino
    assert namespace == os.stat(f"/proc/{pid}/ns/net").st_ino

    def registered(name: str) -> Any:
        return node.server.get(f"/v1/service/{name}")

    wait_until(lambda: registered("outside") and registered("inside"), what="services are listed", within_s=WITHIN_S)
    assert [(host, outside)] == [(each["Address"], each["Port"]) for each in registered("outside")]
    assert [(inside, 8080)] == [(each["Address"], each["Port"]) for each in registered("inside")]

    # The network works without the node's agent, and the next agent finds it.
    node.kill_agent()
    assert "hello\n" == run_command(f"{host}:{outside}")
    node.wait_ready()
    assert status == read_allocation(node, allocation["ID"])["NetworkStatus"]

    stop(node, "shared")
    wait_until(lambda: is_network_removed(allocation), what="the network is removed", within_s=WITHIN_S)
    assert inside not in list_firewall_rules()


def test_a_group_with_mode_none_has_only_a_loopback_interface(node: NodeProcess) -> None:
    script = "cat /proc/net/dev | tail -n +3 | cut -d: -f1; grep -c lo /proc/net/fib_trie; exec sleep 1000"
    task = {"Name": "t", "Driver": "exec", "Config": {"command": "/bin/sh", "args": ["-c", script]}}
    node.run(build_job("alone", task, mode="none"))
    allocation = wait_running(node, "alone")
    log = node.folder / "alloc" / allocation["ID"] / "alloc" / "logs" / "t.stdout.0"
    wait_until(
        lambda: log.exists() and len(log.read_text().split()) == 2,
        what="the task has printed its environment",
        within_s=WITHIN_S,
    )
    assert "lo" == log.read_text().split()[0]
    stop(node, "alone")
    wait_until(lambda: is_network_removed(allocation), what="the network is removed", within_s=WITHIN_S)


def test_an_agent_removes_unknown_networks_that_a_killed_agent_left(node: NodeProcess) -> None:
    node.run(build_job("left", build_web_task(), DynamicPorts=[{"Label": "web", "To": 80}]))
    allocation = wait_running(node, "left")
    own_folder = get_network_folder(allocation)
    # The network of an unknown allocation, as left by an agent that was killed before it stored the allocation.
    unknown_folder = own_folder.with_name("00000000-0000-4000-8000-000000000000")
    unknown_folder.mkdir()
    record = json.loads((own_folder / "record.json").read_text())
    (unknown_folder / "record.json").write_text(json.dumps({"asked": {**record["asked"], "ports": []}}))
    namespaces.create_namespace(unknown_folder / "namespace")
    node.kill_agent()
    node.wait_ready()
    wait_until(lambda: not unknown_folder.exists(), what="the unknown network is removed", within_s=WITHIN_S)
    assert namespaces.is_namespace_mounted(own_folder / "namespace")
    (port,) = allocation["AllocatedResources"]["Shared"]["Ports"]
    assert "hello\n" == run_command(f"{port['HostIP']}:{port['Value']}")
    stop(node, "left")
    wait_until(lambda: is_network_removed(allocation), what="the network is removed", within_s=WITHIN_S)


PRINTS_ENVIRONMENT = {
    "command": "/bin/sh",
    "args": ["-c", "cat /proc/sys/net/ipv4/ip_default_ttl; env; exec sleep 1000"],
}


def test_a_declared_network_is_created_and_removed_by_its_plugin(
    node: NodeProcess, declared_network: DeclaredNetwork
) -> None:
    ports = [{"Label": "web", "To": 8080}]
    task = {"Name": "t", "Driver": "raw_exec", "Config": PRINTS_ENVIRONMENT}
    node.run(build_job("desk", task, mode=f"cni/{NAME}", DynamicPorts=ports, CNI={"Args": {"floor": "3"}}))
    allocation = wait_running(node, "desk")
    log = node.folder / "alloc" / allocation["ID"] / "alloc" / "logs" / "t.stdout.0"
    wait_until(
        lambda: log.exists() and "NOMAD_ALLOC_ADDR_web" in log.read_text(), what="the task has printed its environment"
    )
    assert TTL == log.read_text().split()[0]
    assert f"NOMAD_ALLOC_ADDR_web={ADDRESS}:8080" in log.read_text().split()
    assert (ADDRESS, "eth0") == tuple(allocation["NetworkStatus"][key] for key in ("Address", "InterfaceName"))
    assert f"ADD {allocation['ID']} IgnoreUnknown=1;floor=3\n" in (declared_network.folder / "calls").read_text()

    stop(node, "desk")
    wait_until(lambda: is_network_removed(allocation), what="the network is removed", within_s=WITHIN_S)
    assert (["ADD", "DEL"], []) == (declared_network.list_commands(allocation["ID"]), declared_network.list_connected())


def test_the_error_of_a_plugin_is_reported_and_the_network_is_removed(
    node: NodeProcess, declared_network: DeclaredNetwork
) -> None:
    declared_network.start_failing()
    node.run(
        build_job("refused", {"Name": "t", "Driver": "raw_exec", "Config": PRINTS_ENVIRONMENT}, mode=f"cni/{NAME}")
    )
    wait_until(
        lambda: [a["ClientStatus"] for a in node.allocations("refused")] == ["failed"], what="the allocation has failed"
    )
    declared_network.stop_failing()
    (allocation,) = node.allocations("refused")
    errors = [(event["Details"] or {}).get("setup_error", "") for event in allocation["TaskStates"]["t"]["Events"]]
    reason = "network plugin desk failed: all desks are taken: ask for another"
    assert f"cannot create the allocation's network: {reason}" in errors
    assert {"ADD", "DEL"} == set(declared_network.list_commands(allocation["ID"]))
    wait_until(
        lambda: is_network_removed(read_allocation(node, allocation["ID"])), what="the failed network is removed"
    )
    stop(node, "refused")


def test_an_incompletely_created_network_is_removed_and_created_again(
    node: NodeProcess, declared_network: DeclaredNetwork
) -> None:
    declared_network.hang_once()
    node.run(build_job("cut", {"Name": "t", "Driver": "raw_exec", "Config": PRINTS_ENVIRONMENT}, mode=f"cni/{NAME}"))
    wait_until(lambda: declared_network.is_hanging, what="the plugin hangs")
    node.kill_agent()
    allocation = wait_running(node, "cut")
    assert (["ADD", "DEL", "ADD"], [allocation["ID"]]) == (
        declared_network.list_commands(allocation["ID"]),
        declared_network.list_connected(),
    )
    stop(node, "cut")
    wait_until(lambda: is_network_removed(allocation), what="the network is removed", within_s=WITHIN_S)
    assert [] == declared_network.list_connected()


def test_a_node_reports_that_it_supports_bridge_networks(node: NodeProcess) -> None:
    (known,) = list_nodes(node)
    found: Any = node.server.get(f"/v1/node/{known['ID']}")
    resources = found["NodeResources"]
    assert {"Mode": "bridge"} in resources["Networks"]
    assert "bridge" in [each["Mode"] for each in resources["NodeNetworks"]]
    assert {
        f"plugins.cni.version.{name}" for name in ("bridge", "firewall", "host-local", "loopback", "portmap")
    } <= set(found["Attributes"])


def _read_command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []

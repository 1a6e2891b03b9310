"""Allocations with a network of their own: what their tasks and others see of it, and that nothing of it is left."""

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
from tests.node.networks.declaring import ADDRESS, NAME, TTL, Office, declare
from tests.node.nodes import ANode, a_node, a_raw_job, a_server
from tests.waiting import wait_until
from wharf.node.networks import CniPlugins, NetworkManager, namespaces
from wharf.node.networks.manager import STATE_ROOT
from wharf.world import RealWorld

pytestmark = [pytest.mark.needs("bridges"), pytest.mark.needs_program("iptables")]
WITHIN_S = 60.0
SERVES = """
import http.server, os, sys
class Says(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        told = os.popen(self.path[1:].replace('%20', ' ')).read().encode()
        self.send_response(200); self.end_headers(); self.wfile.write(told)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('', int(os.environ['NOMAD_PORT_web'])), Says).serve_forever()
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    folder = tmp_path_factory.mktemp("bridge")
    declare(folder / "node")
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        (known,) = listed(it)
        yield it
    asyncio.run(take_all_away(known["ID"]))


@pytest.fixture
def office(node: ANode) -> Iterator[Office]:
    found = Office(node.folder)
    yield found
    found.hang_no_more()


def listed(node: ANode) -> list[dict[str, Any]]:
    found: Any = node.server.get("/v1/nodes")
    return list(found)


async def take_all_away(node: str) -> None:
    """What tests that failed have left on the machine."""
    networks = NetworkManager(RealWorld(), CniPlugins(""), node)
    networks.sweep_unknown_networks(())
    await networks.close()


def a_job(id: str, *tasks: dict[str, Any], mode: str = "bridge", **network: Any) -> dict[str, Any]:
    job = a_raw_job(id, "", kind="service")
    group = job["TaskGroups"][0]
    (template,) = group["Tasks"]
    group["Tasks"] = [{**template, **task} for task in tasks]
    group["Networks"] = [{"Mode": mode, **network}]
    return job


def a_web(name: str = "web", driver: str = "exec", **more: Any) -> dict[str, Any]:
    config = {"command": "/usr/bin/python3", "args": ["-c", SERVES]}
    return {"Name": name, "Driver": driver, "Config": config, "Resources": {"CPU": 50, "MemoryMB": 100}, **more}


def running(node: ANode, job: str) -> dict[str, Any]:
    (found,) = wait_until(
        lambda: [each for each in node.allocations(job) if each["ClientStatus"] == "running"],
        what=f"{job} runs",
        within_s=WITHIN_S,
    )
    return full(node, found["ID"])


def full(node: ANode, id: str) -> dict[str, Any]:
    found: Any = node.server.get(f"/v1/allocation/{id}")
    return dict(found)


def get(address: str, what: str = "echo hello") -> str:
    def ask() -> str:
        try:
            with urllib.request.urlopen(
                f"http://{address}/{what.replace(' ', '%20')}", timeout=ANSWERED_WITHIN_S
            ) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    return wait_until(ask, what=f"{address} answers", within_s=WITHIN_S)


def stop(node: ANode, job: str) -> None:
    request = urllib.request.Request(f"{node.server.address}/v1/job/{job}", method="DELETE")
    urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()


def folder_of(allocation: dict[str, Any]) -> Path:
    return STATE_ROOT / str(allocation["NodeID"]) / str(allocation["ID"])


def rules() -> str:
    return subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout


def is_taken_down(allocation: dict[str, Any]) -> bool:
    return not folder_of(allocation).exists() and allocation["ID"] not in rules()


def test_tasks_of_an_allocation_share_a_network_and_its_ports_are_reached_from_the_machine(node: ANode) -> None:
    beside = {"Name": "beside", "Config": {"command": "/bin/sleep", "args": ["1000"]}}
    services = [
        {"Name": "outside", "PortLabel": "web", "Provider": "nomad"},
        {"Name": "inside", "PortLabel": "web", "Provider": "nomad", "AddressMode": "alloc"},
    ]
    job = a_job(
        "shared",
        a_web(),
        beside,
        DynamicPorts=[{"Label": "web", "To": 8080}, {"Label": "same"}],
        Hostname="my-host",
        DNS={"Servers": ["192.0.2.53"], "Searches": ["example"], "Options": ["ndots:2"]},
    )
    job["TaskGroups"][0]["Services"] = services
    node.run(job)
    allocation = running(node, "shared")
    status = allocation["NetworkStatus"]
    ports = {port["Label"]: port for port in allocation["AllocatedResources"]["Shared"]["Ports"]}
    outside, inside = ports["web"]["Value"], status["Address"]
    host = ports["web"]["HostIP"]
    assert ("eth0", True) == (status["InterfaceName"], inside.startswith("172.26."))
    assert {"Servers": ["192.0.2.53"], "Searches": ["example"], "Options": ["ndots:2"]} == status["DNS"]

    assert "hello\n" == get(f"{host}:{outside}") == get(f"{inside}:8080")
    seen = get(f"{host}:{outside}", "env; hostname; cat /etc/hosts /etc/resolv.conf; cat /proc/net/dev").splitlines()
    wanted = {
        f"NOMAD_ALLOC_IP_web={inside}", f"NOMAD_ALLOC_ADDR_web={inside}:8080", "NOMAD_ALLOC_INTERFACE_web=eth0",
        "NOMAD_PORT_web=8080", f"NOMAD_HOST_PORT_web={outside}", f"NOMAD_ADDR_web={host}:{outside}",
        f"NOMAD_IP_web={host}", f"NOMAD_PORT_same={ports['same']['Value']}", f"WHARF_ALLOC_IP_web={inside}",
        "my-host", f"{inside} my-host", "127.0.0.1 localhost", "nameserver 192.0.2.53", "search example", "options ndots:2",
    }  # fmt: skip
    assert wanted - set(seen) == set()
    interfaces = {
        line.split(":")[0].strip() for line in seen if ":" in line and line.strip().split(":")[0] in ("lo", "eth0")
    }
    assert {"lo", "eth0"} == interfaces
    # The task beside it, of a driver without walls, is in the same network.
    (pid,) = [pid for pid in node.list_processes([allocation["ID"]]) if _words(pid) == ["/bin/sleep", "1000"]]
    held = os.stat(folder_of(allocation) / "namespace").st_ino
    assert held == os.stat(f"/proc/{pid}/ns/net").st_ino

    def registered(name: str) -> Any:
        return node.server.get(f"/v1/service/{name}")

    wait_until(lambda: registered("outside") and registered("inside"), what="services are listed", within_s=WITHIN_S)
    assert [(host, outside)] == [(each["Address"], each["Port"]) for each in registered("outside")]
    assert [(inside, 8080)] == [(each["Address"], each["Port"]) for each in registered("inside")]

    # Its network goes on without the node's agent, and is known to the next one.
    node.kill_agent()
    assert "hello\n" == get(f"{host}:{outside}")
    node.wait_ready()
    assert status == full(node, allocation["ID"])["NetworkStatus"]

    stop(node, "shared")
    wait_until(lambda: is_taken_down(allocation), what="its network is gone", within_s=WITHIN_S)
    assert inside not in rules()


def test_a_group_may_have_no_network_but_a_loopback(node: ANode) -> None:
    script = "cat /proc/net/dev | tail -n +3 | cut -d: -f1; grep -c lo /proc/net/fib_trie; exec sleep 1000"
    task = {"Name": "t", "Driver": "exec", "Config": {"command": "/bin/sh", "args": ["-c", script]}}
    node.run(a_job("alone", task, mode="none"))
    allocation = running(node, "alone")
    log = node.folder / "alloc" / allocation["ID"] / "alloc" / "logs" / "t.stdout.0"
    wait_until(lambda: log.exists() and len(log.read_text().split()) == 2, what="it has told", within_s=WITHIN_S)
    assert "lo" == log.read_text().split()[0]
    stop(node, "alone")
    wait_until(lambda: is_taken_down(allocation), what="its network is gone", within_s=WITHIN_S)


def test_what_an_agent_that_was_killed_left_is_taken_away_by_the_next(node: ANode) -> None:
    node.run(a_job("left", a_web(), DynamicPorts=[{"Label": "web", "To": 80}]))
    allocation = running(node, "left")
    mine = folder_of(allocation)
    # Another, of an allocation that nobody knows: as of an agent that was killed between making it and saying so.
    other = mine.with_name("00000000-0000-4000-8000-000000000000")
    other.mkdir()
    record = json.loads((mine / "record.json").read_text())
    (other / "record.json").write_text(json.dumps({"asked": {**record["asked"], "ports": []}}))
    namespaces.create_namespace(other / "namespace")
    node.kill_agent()
    node.wait_ready()
    wait_until(lambda: not other.exists(), what="nothing of the other is left", within_s=WITHIN_S)
    assert namespaces.is_namespace_mounted(mine / "namespace")
    (port,) = allocation["AllocatedResources"]["Shared"]["Ports"]
    assert "hello\n" == get(f"{port['HostIP']}:{port['Value']}")
    stop(node, "left")
    wait_until(lambda: is_taken_down(allocation), what="its network is gone", within_s=WITHIN_S)


TELLS = {"command": "/bin/sh", "args": ["-c", "cat /proc/sys/net/ipv4/ip_default_ttl; env; exec sleep 1000"]}


def test_a_network_that_the_operator_declared_is_made_by_its_plugins_and_taken_down(
    node: ANode, office: Office
) -> None:
    ports = [{"Label": "web", "To": 8080}]
    task = {"Name": "t", "Driver": "raw_exec", "Config": TELLS}
    node.run(a_job("desk", task, mode=f"cni/{NAME}", DynamicPorts=ports, CNI={"Args": {"floor": "3"}}))
    allocation = running(node, "desk")
    log = node.folder / "alloc" / allocation["ID"] / "alloc" / "logs" / "t.stdout.0"
    wait_until(lambda: log.exists() and "NOMAD_ALLOC_ADDR_web" in log.read_text(), what="it has told")
    assert TTL == log.read_text().split()[0]
    assert f"NOMAD_ALLOC_ADDR_web={ADDRESS}:8080" in log.read_text().split()
    assert (ADDRESS, "eth0") == tuple(allocation["NetworkStatus"][key] for key in ("Address", "InterfaceName"))
    assert f"ADD {allocation['ID']} IgnoreUnknown=1;floor=3\n" in (office.folder / "asked").read_text()

    stop(node, "desk")
    wait_until(lambda: is_taken_down(allocation), what="its network is gone", within_s=WITHIN_S)
    assert (["ADD", "DEL"], []) == (office.asked(allocation["ID"]), office.given())


def test_a_network_that_its_plugin_refuses_is_told_as_that_and_undone(node: ANode, office: Office) -> None:
    office.refuse()
    node.run(a_job("refused", {"Name": "t", "Driver": "raw_exec", "Config": TELLS}, mode=f"cni/{NAME}"))
    wait_until(lambda: [a["ClientStatus"] for a in node.allocations("refused")] == ["failed"], what="it has failed")
    office.refuse_no_more()
    (allocation,) = node.allocations("refused")
    said = [(event["Details"] or {}).get("setup_error", "") for event in allocation["TaskStates"]["t"]["Events"]]
    why = "the network plugin desk refuses: all desks are taken: ask for another"
    assert f"cannot create the allocation's network: {why}" in said
    assert {"ADD", "DEL"} == set(office.asked(allocation["ID"]))
    wait_until(lambda: is_taken_down(full(node, allocation["ID"])), what="nothing of it is left")
    stop(node, "refused")


def test_what_a_plugin_was_making_when_the_agent_was_killed_is_undone_and_made_anew(
    node: ANode, office: Office
) -> None:
    office.hang_once()
    node.run(a_job("cut", {"Name": "t", "Driver": "raw_exec", "Config": TELLS}, mode=f"cni/{NAME}"))
    wait_until(lambda: office.hangs, what="the plugin is in the middle of it")
    node.kill_agent()
    allocation = running(node, "cut")
    assert (["ADD", "DEL", "ADD"], [allocation["ID"]]) == (office.asked(allocation["ID"]), office.given())
    stop(node, "cut")
    wait_until(lambda: is_taken_down(allocation), what="its network is gone", within_s=WITHIN_S)
    assert [] == office.given()


def test_a_node_tells_of_the_bridges_that_it_can_make(node: ANode) -> None:
    (known,) = listed(node)
    found: Any = node.server.get(f"/v1/node/{known['ID']}")
    resources = found["NodeResources"]
    assert {"Mode": "bridge"} in resources["Networks"]
    assert "bridge" in [each["Mode"] for each in resources["NodeNetworks"]]
    assert {
        f"plugins.cni.version.{name}" for name in ("bridge", "firewall", "host-local", "loopback", "portmap")
    } <= set(found["Attributes"])


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []

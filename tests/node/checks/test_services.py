"""Services of running tasks: registered with their address, checked, and restarted when they are unhealthy."""

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import ANode, a_node, a_raw_job, a_server
from tests.waiting import wait_until

SECOND_NS = 1_000_000_000
SERVES = "exec python3 -m http.server $WHARF_PORT_web --bind $WHARF_IP_web --directory local"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    folder = tmp_path_factory.mktemp("services")
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        yield it


def a_served_job(id: str, script: str = SERVES, **check: object) -> dict[str, Any]:
    wanted = {"Type": "http", "Path": "/", "Interval": SECOND_NS, "Timeout": SECOND_NS, **check}
    service = {"Name": id, "PortLabel": "web", "Provider": "wharf", "Tags": ["${WHARF_TASK_NAME}"], "Checks": [wanted]}
    memory = {"CPU": 1, "MemoryMB": 100}
    job = a_raw_job(id, script, kind="service", Services=[service], KillSignal="SIGKILL", Resources=memory)
    group = job["TaskGroups"][0]
    group["Networks"] = [{"Mode": "host", "DynamicPorts": [{"Label": "web"}]}]
    group["Update"] = {
        "HealthCheck": "checks",
        "MinHealthyTime": SECOND_NS,
        "HealthyDeadline": 20 * SECOND_NS,
        "ProgressDeadline": 30 * SECOND_NS,
    }
    return job


def listed(node: ANode, name: str) -> list[dict[str, Any]]:
    found: Any = node.server.get(f"/v1/service/{name}")
    return list(found)


def checks(node: ANode, job: str) -> list[dict[str, Any]]:
    allocation = node.allocations(job)[0]["ID"]
    found: Any = node.server.get(f"/v1/client/allocation/{allocation}/checks")
    return list((found or {}).values())


def status(node: ANode, job: str) -> str:
    found: Any = node.server.get(f"/v1/job/{job}/deployments")
    return str(found[0]["Status"]) if found else ""


def stop(node: ANode, job: str) -> None:
    request = urllib.request.Request(f"{node.server.address}/v1/job/{job}", method="DELETE")
    urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()


def test_a_service_is_registered_with_its_address_and_its_check_makes_it_healthy(node: ANode) -> None:
    node.run(a_served_job("shop"))
    wait_until(lambda: status(node, "shop") == "successful", what="the deployment is healthy")
    [instance] = listed(node, "shop")
    assert (["t"], node.allocations("shop")[0]["ID"]) == (instance["Tags"], instance["AllocID"])
    with urllib.request.urlopen(
        f"http://{instance['Address']}:{instance['Port']}/", timeout=ANSWERED_WITHIN_S
    ) as answer:
        assert 200 == answer.status
    [check] = checks(node, "shop")
    assert ("success", "wharf: http ok", 200, "shop", "t", "shop.g[0]") == tuple(
        check[name] for name in ("Status", "Output", "StatusCode", "Service", "Task", "Group")
    )
    stop(node, "shop")
    wait_until(lambda: not listed(node, "shop"), what="it is taken off the list")


def test_a_failing_check_keeps_a_deployment_unhealthy(node: ANode) -> None:
    node.run(a_served_job("ill", Path="/nothing"))
    wait_until(lambda: [each["ClientStatus"] for each in node.allocations("ill")] == ["running"], what="it runs")
    wait_until(
        lambda: [each for each in checks(node, "ill") if each.get("StatusCode") == 404], what="the check found it"
    )
    assert ["failure"] == [check["Status"] for check in checks(node, "ill")]
    assert "running" == status(node, "ill")
    stop(node, "ill")


def test_a_readiness_check_does_not_hold_up_a_deployment(node: ANode) -> None:
    node.run(a_served_job("tells", Path="/nothing", OnUpdate="ignore"))
    wait_until(lambda: status(node, "tells") == "successful", what="the deployment is healthy")
    assert ["readiness"] == [check["Mode"] for check in checks(node, "tells")]
    stop(node, "tells")


def test_a_service_that_stays_unhealthy_is_restarted(node: ANode) -> None:
    node.run(a_served_job("again", Path="/nothing", CheckRestart={"Limit": 2, "Grace": 0}))
    wait_until(lambda: node.allocations("again") and node.allocations("again")[0]["TaskStates"], what="it is placed")

    def reasons() -> list[str]:
        events = node.allocations("again")[0]["TaskStates"]["t"]["Events"]
        return [event["DisplayMessage"] for event in events if event["Type"] == "Restart Signaled"]

    wait_until(reasons, what="it is restarted")
    assert 'healthcheck: check "service: "again" check" unhealthy' == reasons()[0]
    stop(node, "again")


def test_a_script_check_runs_in_the_task_and_has_its_own_thresholds(node: ANode) -> None:
    """It fails at first, and has to be well twice."""
    script = 'echo "$GREETING"; echo >>local/looks; test $(wc -l <local/looks) -gt 1'
    wanted: dict[str, Any] = {"Type": "script", "Command": "/bin/sh", "Args": ["-c", script], "SuccessBeforePassing": 2}
    job = a_served_job("script", **wanted)
    job["TaskGroups"][0]["Tasks"][0]["Env"] = {"GREETING": "hello"}
    node.run(job)
    wait_until(lambda: status(node, "script") == "successful", what="the deployment is healthy")
    [check] = checks(node, "script")
    looks = node.folder / "alloc" / str(node.allocations("script")[0]["ID"]) / "t" / "local" / "looks"
    assert ("success", "hello\n") == (check["Status"], check["Output"])
    assert 3 <= len(looks.read_text().splitlines())
    stop(node, "script")

"""Services of running tasks: registered with their address, checked, and restarted when they are unhealthy."""

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until

SECOND_NS = 1_000_000_000
SERVE_SCRIPT = "exec python3 -m http.server $WHARF_PORT_web --bind $WHARF_IP_web --directory local"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("services")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


def build_service_job(id: str, script: str = SERVE_SCRIPT, **check: object) -> dict[str, Any]:
    check_config = {"Type": "http", "Path": "/", "Interval": SECOND_NS, "Timeout": SECOND_NS, **check}
    service = {
        "Name": id,
        "PortLabel": "web",
        "Provider": "wharf",
        "Tags": ["${WHARF_TASK_NAME}"],
        "Checks": [check_config],
    }
    resources = {"CPU": 1, "MemoryMB": 100}
    job = build_raw_job(id, script, kind="service", Services=[service], KillSignal="SIGKILL", Resources=resources)
    group = job["TaskGroups"][0]
    group["Networks"] = [{"Mode": "host", "DynamicPorts": [{"Label": "web"}]}]
    group["Update"] = {
        "HealthCheck": "checks",
        "MinHealthyTime": SECOND_NS,
        "HealthyDeadline": 20 * SECOND_NS,
        "ProgressDeadline": 30 * SECOND_NS,
    }
    return job


def list_instances(node: NodeProcess, name: str) -> list[dict[str, Any]]:
    instances: Any = node.server.get(f"/v1/service/{name}")
    return list(instances)


def list_checks(node: NodeProcess, job: str) -> list[dict[str, Any]]:
    allocation = node.allocations(job)[0]["ID"]
    result_by_id: Any = node.server.get(f"/v1/client/allocation/{allocation}/checks")
    return list((result_by_id or {}).values())


def read_deployment_status(node: NodeProcess, job: str) -> str:
    deployments: Any = node.server.get(f"/v1/job/{job}/deployments")
    return str(deployments[0]["Status"]) if deployments else ""


def stop(node: NodeProcess, job: str) -> None:
    request = urllib.request.Request(f"{node.server.address}/v1/job/{job}", method="DELETE")
    urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()


def test_a_service_is_registered_with_its_address_and_its_check_makes_it_healthy(node: NodeProcess) -> None:
    node.run(build_service_job("shop"))
    wait_until(lambda: read_deployment_status(node, "shop") == "successful", what="the deployment is healthy")
    [instance] = list_instances(node, "shop")
    assert (["t"], node.allocations("shop")[0]["ID"]) == (instance["Tags"], instance["AllocID"])
    with urllib.request.urlopen(
        f"http://{instance['Address']}:{instance['Port']}/", timeout=ANSWERED_WITHIN_S
    ) as reply:
        assert 200 == reply.status
    [check] = list_checks(node, "shop")
    assert ("success", "wharf: http ok", 200, "shop", "t", "shop.g[0]") == tuple(
        check[name] for name in ("Status", "Output", "StatusCode", "Service", "Task", "Group")
    )
    stop(node, "shop")
    wait_until(lambda: not list_instances(node, "shop"), what="the registration of the service is deleted")


def test_a_task_whose_service_gets_a_name_that_no_request_can_read_fails(node: NodeProcess) -> None:
    job = build_service_job("hidden")
    job["Meta"] = {"x": "a\nb"}
    job["TaskGroups"][0]["Tasks"][0]["Services"][0]["Name"] = "${NOMAD_META_x}"
    node.run(job)

    def read_messages() -> list[str]:
        states = [each["TaskStates"] or {} for each in node.allocations("hidden")]
        return [event["DisplayMessage"] for state in states for task in state.values() for event in task["Events"]]

    expected = 'service "${NOMAD_META_x}" cannot be registered: its name contains the character U+000A at position 2'
    wait_until(lambda: any(expected in message for message in read_messages()), what="the event names the service")
    services: Any = node.server.get("/v1/services")
    assert "a\nb" not in [service["ServiceName"] for listed in services for service in listed["Services"]]
    stop(node, "hidden")


def test_a_failing_check_keeps_a_deployment_unhealthy(node: NodeProcess) -> None:
    node.run(build_service_job("unhealthy", Path="/nothing"))
    wait_until(
        lambda: [a["ClientStatus"] for a in node.allocations("unhealthy")] == ["running"], what="the allocation runs"
    )
    wait_until(
        lambda: [check for check in list_checks(node, "unhealthy") if check.get("StatusCode") == 404],
        what="the check has run",
    )
    assert ["failure"] == [check["Status"] for check in list_checks(node, "unhealthy")]
    assert "running" == read_deployment_status(node, "unhealthy")
    stop(node, "unhealthy")


def test_a_readiness_check_does_not_hold_up_a_deployment(node: NodeProcess) -> None:
    node.run(build_service_job("ready", Path="/nothing", OnUpdate="ignore"))
    wait_until(lambda: read_deployment_status(node, "ready") == "successful", what="the deployment is healthy")
    assert ["readiness"] == [check["Mode"] for check in list_checks(node, "ready")]
    stop(node, "ready")


def test_a_service_that_stays_unhealthy_is_restarted(node: NodeProcess) -> None:
    node.run(build_service_job("again", Path="/nothing", CheckRestart={"Limit": 2, "Grace": 0}))
    wait_until(
        lambda: node.allocations("again") and node.allocations("again")[0]["TaskStates"],
        what="the allocation is placed",
    )

    def list_restart_reasons() -> list[str]:
        events = node.allocations("again")[0]["TaskStates"]["t"]["Events"]
        return [event["DisplayMessage"] for event in events if event["Type"] == "Restart Signaled"]

    wait_until(list_restart_reasons, what="the task is restarted")
    assert 'healthcheck: check "service: "again" check" unhealthy' == list_restart_reasons()[0]
    stop(node, "again")


def test_a_script_check_runs_in_the_task_and_has_its_own_thresholds(node: NodeProcess) -> None:
    """The check fails once, and must then succeed twice."""
    script = 'echo "$GREETING"; echo >>local/runs; test $(wc -l <local/runs) -gt 1'
    check_config: dict[str, Any] = {
        "Type": "script",
        "Command": "/bin/sh",
        "Args": ["-c", script],
        "SuccessBeforePassing": 2,
    }
    job = build_service_job("script", **check_config)
    job["TaskGroups"][0]["Tasks"][0]["Env"] = {"GREETING": "hello"}
    node.run(job)
    wait_until(lambda: read_deployment_status(node, "script") == "successful", what="the deployment is healthy")
    [check] = list_checks(node, "script")
    runs_file = node.folder / "alloc" / str(node.allocations("script")[0]["ID"]) / "t" / "local" / "runs"
    assert ("success", "hello\n") == (check["Status"], check["Output"])
    assert 3 <= len(runs_file.read_text().splitlines())
    stop(node, "script")

"""Diagnostics of an agent over HTTP: log streams, stacks, metrics and snapshots, with real processes."""

import base64
import gzip
import io
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, running
from tests.agent.test_processes import A_JOB
from tests.waiting import wait_until


def configure(folder: Path, *, region: str = "global", more: str = "", top_level: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "wharf.toml"
    file.write_text(
        f'name = "{region}-1"\nregion = "{region}"\ndata_dir = "{folder}/data"\nenable_debug = true\n{top_level}'
        f"[ports]\nhttp = 0\n[server]\nenabled = true\n[client]\nenabled = true\n"
        f"[telemetry]\nprometheus_metrics = true\n{more}"
    )
    return file


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("agent")
    top_level = f'log_file = "{folder}/wharf.log"\n'
    (folder / "data" / "passing-of-a-process-that-was-killed").mkdir(parents=True)
    (folder / "data").chmod(0o700)
    with running(folder, "agent", "--config", str(configure(folder, top_level=top_level))) as started:
        started.wait_ready()
        wait_until(lambda: started.get("/v1/status/leader"), what="the agent leads")
        yield started


def fetch(agent: RunningAgent, path: str, *, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(agent.address + path, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def reload(agent: RunningAgent) -> None:
    """Reload the agent, so that its processes log something. A stream whose head has arrived has these lines."""
    assert fetch(agent, "/v1/agent/reload", method="PUT")[0] == 200


def test_the_monitor_streams_lines_of_all_processes_below_the_configured_level(agent: RunningAgent) -> None:
    path = "/v1/agent/monitor?log_level=debug&plain=true&log_json=true"
    with urllib.request.urlopen(agent.address + path, timeout=ANSWERED_WITHIN_S) as lines:
        reload(agent)
        assert lines.headers["content-type"] == "text/plain"
        seen: set[str] = set()

        def has_arrived() -> bool:
            # A reload makes every process log a debug line, and the agent an info line.
            line = json.loads(lines.readline())
            seen.add(line["process"])
            return "agent" in seen

        wait_until(has_arrived, what="the lines of all processes have arrived")


def test_the_monitor_sends_each_line_as_base64_in_a_frame(agent: RunningAgent) -> None:
    path = "/v1/agent/monitor?server_id=leader"
    with urllib.request.urlopen(agent.address + path, timeout=ANSWERED_WITHIN_S) as frames:
        reload(agent)
        lines: list[bytes] = []

        def has_arrived() -> bool:
            # Each frame ends with a brace, which base64 never contains.
            frame = b""
            while not frame.endswith(b"}"):
                frame += frames.read(1)
            lines.append(base64.b64decode(json.loads(frame).get("Data", "")))
            return b"configuration reloaded" in lines[-1]

        wait_until(has_arrived, what="the line about the reload has arrived")

    assert all(line.endswith(b"\n") for line in lines if line)


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("log_level=loud", 400, b"Unknown log level: loud; the levels are trace, debug, info, warn, error"),
        ("log_json=x", 400, b"Unknown option for log json: x"),
        ("plain=x", 400, b"Unknown option for plain: x"),
        ("server_id=a&node_id=b", 400, b"Cannot target node and server simultaneously"),
        ("server_id=nobody", 400, b"unknown Wharf server nobody"),
    ],
)
def test_an_invalid_follow_request_is_rejected(agent: RunningAgent, query: str, status: int, text: bytes) -> None:
    assert fetch(agent, f"/v1/agent/monitor?{query}") == (status, text)


def test_the_log_file_is_returned_complete(agent: RunningAgent) -> None:
    log_text = fetch(agent, "/v1/agent/monitor/export?on_disk=true&plain=true")[1]

    assert (agent.folder / "wharf.log").read_bytes().startswith(log_text[:200])
    assert b"elected leader" in log_text
    assert fetch(agent, "/v1/agent/monitor/export") == (400, b"Either -service-name or -on-disk must be set")
    assert fetch(agent, "/v1/agent/monitor/export?on_disk=1&service_name=x")[0] == 400
    assert fetch(agent, "/v1/agent/monitor/export?service_name=x")[0] == 501


def test_saving_and_restoring_snapshots_leaves_no_temporary_file(agent: RunningAgent) -> None:
    fetch(agent, "/v1/operator/snapshot")
    fetch(agent, "/v1/operator/snapshot", method="PUT", body=b"damaged")

    data_folder = agent.folder / "data"
    wait_until(lambda: not list(data_folder.glob("passing-*")), what="the temporary files are deleted")


def test_stacks_of_all_processes_are_returned(agent: RunningAgent) -> None:
    status, body = fetch(agent, "/v1/agent/pprof/goroutine")

    stacks = body.decode()
    assert status == 200
    assert all(f"process {name} (" in stacks for name in ("agent", "store", "brain", "api", "node"))
    assert "task follower" in stacks


def test_a_profile_and_the_command_line_are_returned(agent: RunningAgent) -> None:
    status, body = fetch(agent, "/v1/agent/pprof/profile?seconds=1")

    assert status == 200
    stack, _, count = body.decode().splitlines()[0].rpartition(" ")
    assert ";" in stack
    assert int(count) > 10
    assert b"wharf.agent.child\0api\0" in fetch(agent, "/v1/agent/pprof/cmdline")[1]
    assert fetch(agent, "/v1/agent/pprof/block") == (404, b"Pprof profile not found profile: block")
    assert fetch(agent, "/v1/agent/pprof/trace")[0] == 501


def test_a_memory_profile_is_returned_as_text(agent: RunningAgent) -> None:
    status, body = fetch(agent, "/v1/agent/pprof/heap?seconds=1")

    assert status == 200
    assert body.startswith(b"memory profile: allocations of 1 s that are still in use\nbytes: ")
    assert b"wharf" in body


@pytest.mark.parametrize(
    ("path", "default_type"),
    [("heap", b"inuse_space"), ("allocs", b"alloc_space"), ("profile", b"nanoseconds")],
)
def test_profiles_are_returned_in_the_format_of_pprof(agent: RunningAgent, path: str, default_type: bytes) -> None:
    status, body = fetch(agent, f"/v1/agent/pprof/{path}?seconds=1&debug=0")

    assert (status, default_type in gzip.decompress(body)) == (200, True)


def test_the_monitor_streams_the_log_of_the_agent_of_a_node(agent: RunningAgent) -> None:
    wait_until(lambda: agent.get("/v1/nodes"), what="the node has registered")
    (node,) = json.loads(fetch(agent, "/v1/nodes")[1])
    path = f"/v1/agent/monitor?node_id={node['ID']}&plain=true&log_level=debug&log_json=true"
    wait_until(lambda: fetch(agent, f"/v1/client/stats?node_id={node['ID']}")[0] == 200, what="the node is connected")

    with urllib.request.urlopen(agent.address + path, timeout=ANSWERED_WITHIN_S) as lines:
        reload(agent)
        wait_until(lambda: json.loads(lines.readline())["process"] == "agent", what="a line of the agent has arrived")
    unknown = "00000000-0000-0000-0000-000000000000"
    assert fetch(agent, f"/v1/agent/monitor?node_id={unknown}") == (404, f"Unknown node {unknown}".encode())


def test_the_report_of_the_machine_contains_no_secrets(agent: RunningAgent) -> None:
    status, body = fetch(agent, "/v1/agent/host")

    data = json.loads(body)["HostData"]
    assert status == 200
    assert (data["OS"].startswith("linux"), "PATH" in data["Environment"]) == (True, True)
    assert data["Hosts"] == Path("/etc/hosts").read_text("utf-8")


def test_an_agent_describes_itself(agent: RunningAgent) -> None:
    description = json.loads(fetch(agent, "/v1/agent/self")[1])

    assert (description["config"]["region"], description["member"]["Name"]) == ("global", "global-1.global")
    assert description["stats"]["raft"]["state"] == "Leader"
    assert int(description["stats"]["runtime"]["memory_bytes"]) > 10_000_000


def test_metrics_have_measured_values_as_json_and_for_prometheus(agent: RunningAgent) -> None:
    agent.put("/v1/jobs", A_JOB)
    fetch(agent, "/v1/jobs")

    metrics = json.loads(fetch(agent, "/v1/metrics")[1])
    assert len({gauge["Labels"].pop("host") for gauge in metrics["Gauges"]}) == 1
    gauges = {(gauge["Name"], *gauge["Labels"].values()): gauge["Value"] for gauge in metrics["Gauges"]}
    text = fetch(agent, "/v1/metrics?format=prometheus")[1].decode()

    assert gauges["wharf.state.records", "jobs"] >= 1
    assert gauges["wharf.runtime.resident_bytes", "brain"] > 10_000_000
    assert (gauges[("wharf.raft.state.leader",)], gauges[("wharf.log.writable",)]) == (1, 1)
    assert 'wharf_http_request_ms_count{kind="read",noun="job",status="2xx"}' in text
    assert "# TYPE wharf_broker_total_ready gauge" in text


def test_a_plan_and_an_explanation_are_computed_outside_the_brain(agent: RunningAgent) -> None:
    task = {"Name": "t", "Driver": "mock", "Resources": {"CPU": 100, "MemoryMB": 90_000_000}}
    job = {"ID": "huge", "TaskGroups": [{"Name": "g", "Tasks": [task]}]}
    wait_until(lambda: agent.get("/v1/nodes"), what="a node is registered")

    status, planned = fetch(agent, "/v1/job/huge/plan", method="PUT", body=json.dumps({"Job": job}).encode())
    agent.put("/v1/jobs", {"Job": job})

    def list_exhausted_resources() -> list[str]:
        explanation = json.loads(fetch(agent, "/v1/job/huge/explain")[1])
        return [shortage["Dimension"] for group in explanation["Groups"] for shortage in group["Exhausted"] or ()]

    assert (status, json.loads(planned)["FailedTGAllocs"]["g"]["DimensionExhausted"]) == (200, {"memory": 1})
    assert wait_until(list_exhausted_resources, what="the explanation names the missing resources") == ["memory"]


def test_a_snapshot_saved_over_http_is_restored_over_http(agent: RunningAgent) -> None:
    agent.put("/v1/jobs", {"Job": A_JOB["Job"] | {"ID": "kept"}})
    status, archive = fetch(agent, "/v1/operator/snapshot")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert (status, tar.getnames()) == (200, ["meta.json", "state.bin", "SHA256SUMS"])
    agent.put("/v1/jobs", {"Job": A_JOB["Job"] | {"ID": "later"}})
    damaged = archive[: len(archive) // 2] + b"x" + archive[len(archive) // 2 + 1 :]

    refusal = fetch(agent, "/v1/operator/snapshot", method="PUT", body=damaged)
    assert refusal[0] == 400
    assert refusal[1].startswith(b"failed to restore from snapshot: ")
    assert fetch(agent, "/v1/job/later")[0] == 200
    refusal = fetch(agent, "/v1/operator/snapshot", method="PUT", body=b"")
    assert refusal[0] == 400
    assert refusal[1].startswith(b"failed to restore from snapshot: failed to decompress snapshot: it is empty")

    assert fetch(agent, "/v1/operator/snapshot", method="PUT", body=archive) == (200, b"")
    wait_until(lambda: fetch(agent, "/v1/job/kept")[0] == 200, what="the job is readable again")
    assert fetch(agent, "/v1/job/later")[0] == 404
    # The cluster continues: a server leads and accepts writes.
    wait_until(lambda: fetch(agent, "/v1/agent/health")[0] == 200, what="the agent is healthy")
    agent.put("/v1/jobs", {"Job": A_JOB["Job"] | {"ID": "after"}})


def test_a_request_for_another_region_is_forwarded_to_it(agent: RunningAgent, tmp_path: Path) -> None:
    region_config = f'[regions.global]\nservers = ["{agent.address.partition("://")[2]}"]\n'
    file = configure(tmp_path / "west", region="west", more=region_config)
    with running(tmp_path / "west", "agent", "--config", str(file)) as west:
        west.wait_ready()
        wait_until(lambda: west.get("/v1/status/leader"), what="the agent leads")

        west.put("/v1/jobs?region=global", {"Job": A_JOB["Job"] | {"ID": "sent"}})

        assert fetch(agent, "/v1/job/sent")[0] == 200
        assert fetch(west, "/v1/job/sent")[0] == 404
        assert json.loads(fetch(west, "/v1/job/sent?region=global")[1])["ID"] == "sent"
        assert json.loads(fetch(west, "/v1/regions")[1]) == ["global", "west"]
        assert fetch(west, "/v1/jobs?region=nowhere") == (404, b"No path to region")
        path = "/v1/agent/monitor?plain=1&region=global"
        with urllib.request.urlopen(west.address + path, timeout=ANSWERED_WITHIN_S) as lines:
            reload(agent)
            assert b"configuration reloaded" in lines.readline()

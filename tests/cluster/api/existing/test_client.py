"""The python-nomad client, as its users install it, against `wharf dev`."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, running

PYTHON = Path(os.environ["WHARF_CLIENTS"]).resolve() / "python" / "bin" / "python"

BEGIN = """
import json, os, sys, time
import nomad

client = nomad.Nomad(host="127.0.0.1", port=int(sys.argv[1]), timeout=20)

def a_job(name, count=1, script="echo hello; sleep 600", **more):
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", script]},
            "Resources": {"CPU": 20, "MemoryMB": 20}}
    group = {"Name": "g", "Count": count, "Tasks": [task]}
    return {"Job": {"ID": name, "Name": name, "Datacenters": ["dc1"], "TaskGroups": [group], **more}}

def until(read):
    deadline = time.monotonic() + 60
    while not (found := read()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found

def running(name, count=1):
    here = lambda: [one for one in client.job.get_allocations(name) if one["ClientStatus"] == "running"]
    return until(lambda: len(here()) == count and here())

def report(value):
    print(json.dumps(value))
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    with running(tmp_path_factory.mktemp("dev"), "dev", "--port", "0") as matches:
        matches.wait_ready()
        yield matches


def run_script(agent: RunningAgent, script: str) -> Any:
    port = agent.address.rpartition(":")[2]
    process = subprocess.run(
        [PYTHON, "-c", BEGIN + script, port], capture_output=True, text=True, timeout=120, check=False
    )
    assert 0 == process.returncode, process.stdout + process.stderr
    return json.loads(process.stdout)


def test_a_job_is_registered_planned_changed_reverted_and_stopped(agent: RunningAgent) -> None:
    text = run_script(
        agent,
        """
client.job.register_job("web", a_job("web", count=2))
running("web", 2)
plan = client.job.plan_job("web", {**a_job("web", count=3), "Diff": True})
client.jobs.register_job(a_job("web", count=3))
running("web", 3)
client.job.revert_job("web", 0)
running("web", 2)
versions = [one["Version"] for one in client.job.get_versions("web")["Versions"]]
client.job.deregister_job("web")
until(lambda: client.job["web"]["Status"] == "dead")
report([plan["Annotations"]["DesiredTGUpdates"]["g"]["Place"], versions, "web" in client.jobs, "nobody" in client.jobs])
""",
    )

    assert [1, [2, 1, 0], True, False] == text


def test_missing_and_invalid_objects_raise_the_errors_that_users_of_the_client_catch(agent: RunningAgent) -> None:
    text = run_script(
        agent,
        """
def error_of(act):
    try:
        act()
    except nomad.api.exceptions.BaseNomadException as error:
        return [type(error).__name__, error.nomad_resp.status_code, error.nomad_resp.text]
report([
    error_of(lambda: client.job.get_job("nobody")),
    error_of(lambda: client.jobs.register_job({"Job": {"ID": "bad id", "TaskGroups": []}})),
    error_of(lambda: client.acl.generate_bootstrap()),
])
""",
    )

    missing, invalid, disabled = text
    assert ["URLNotFoundNomadException", 404, "job not found"] == missing
    assert (400, True) == (invalid[1], "Job ID contains a space" in invalid[2])
    assert [400, "ACL support disabled"] == disabled[1:]


def test_files_logs_and_statistics_of_a_task_are_read_through_its_node(agent: RunningAgent) -> None:
    text = run_script(
        agent,
        """
client.job.register_job("files", a_job("files"))
(one,) = running("files")
def written():
    try:
        return client.client.cat.read_file(one["ID"], "alloc/logs/t.stdout.0")
    except nomad.api.exceptions.URLNotFoundNomadException:
        return ""  # A task that runs may have written nothing yet.
until(written)
node = client.nodes.get_nodes()[0]["ID"]
report([
    client.client.cat.read_file(one["ID"], "alloc/logs/t.stdout.0"),
    client.client.read_at.read_file_offset(one["ID"], 1, 3, "alloc/logs/t.stdout.0"),
    client.client.stream_logs.stream(one["ID"], "t", "stdout", plain=True),
    "alloc" in [each["Name"] for each in client.client.ls.list_files(one["ID"])],
    client.client.stat.stat_file(one["ID"], "alloc")["IsDir"],
    client.client.stats.read_stats(node)["Memory"]["Total"] > 0,
    "MemoryStats" in client.client.allocation.read_allocation_stats(one["ID"])["ResourceUsage"],
])
""",
    )

    assert ["hello\n", "ell", "hello\n", True, True, True, True] == text


def test_nodes_are_drained_and_made_eligible_again(agent: RunningAgent) -> None:
    text = run_script(
        agent,
        """
node = client.nodes.get_nodes()[0]["ID"]
client.node.drain_node_with_spec(node, drain_spec={"Deadline": 1_000_000_000})
until(lambda: client.node[node]["LastDrain"]["Status"] == "complete")
drained = client.node[node]["SchedulingEligibility"]
client.node.eligible_node(node, eligible=True)
report([drained, client.node[node]["SchedulingEligibility"]])
""",
    )

    assert ["ineligible", "eligible"] == text


def test_deployments_evaluations_and_allocations_refer_to_each_other(agent: RunningAgent) -> None:
    text = run_script(
        agent,
        """
answer = client.job.register_job("rollout", a_job("rollout"))
(one,) = running("rollout")
deployment = client.job.get_deployment("rollout")
report([
    client.evaluation.get_evaluation(answer["EvalID"])["JobID"],
    [each["ID"] for each in client.deployment.get_deployment_allocations(deployment["ID"])] == [one["ID"]],
    client.allocation.get_allocation(one["ID"])["Job"]["ID"],
    one["ID"] in client.allocation,
    [each["ID"] for each in client.allocations.get_allocations(prefix=one["ID"][:8])] == [one["ID"]],
])
""",
    )

    assert ["rollout", True, "rollout", True, True] == text


def test_parameterized_jobs_are_dispatched_and_periodic_jobs_forced(agent: RunningAgent) -> None:
    text = run_script(
        agent,
        """
short = dict(script="exit 0", Type="batch")
client.job.register_job("each", a_job("each", ParameterizedJob={"MetaOptional": ["who"]}, **short))
client.job.register_job("nightly", a_job("nightly", Periodic={"Specs": ["0 0 * * *"], "SpecType": "cron", "Enabled": True}, **short))
child = client.job.dispatch_job("each", meta={"who": "me"})["DispatchedJobID"]
client.job.periodic_job("nightly")
def done(parent):
    children = [one["ID"] for one in client.jobs.get_jobs(prefix=parent + "/")]
    return children and all(client.job[one]["Status"] == "dead" for one in children) and children
report([done_child == [child] for done_child in [until(lambda: done("each"))]] + [len(until(lambda: done("nightly")))])
""",
    )

    assert [True, 1] == text


def test_variables_namespaces_searches_and_events_work(agent: RunningAgent) -> None:
    text = run_script(
        agent,
        """
client.variable.create_variable("app/settings", {"Items": {"colour": "blue"}})
client.namespace.create_namespace({"Name": "team", "Description": "a team"})
stream, stop, events = client.event.stream.get_stream(index=0)
stream.start()
first = events.get(timeout=30)
stop.set()
client.job.register_job("sought", a_job("sought"))
report([
    client.variable.get_variable("app/settings")["Items"],
    [one["Path"] for one in client.variables.get_variables()],
    sorted(one["Name"] for one in client.namespaces.get_namespaces()),
    client.search.search("soug", "jobs")["Matches"]["jobs"],
    client.search.fuzzy_search("ough", "jobs")["Matches"]["jobs"][0]["ID"],
    first["Index"] > 0,
    client.agent.get_members()["Members"][0]["Status"],
    client.status.leader.get_leader() in client.status.peers.get_peers(),
])
os._exit(0 if not sys.stdout.flush() else 1)  # Its stream's thread waits for the next event.
""",
    )

    assert {"colour": "blue"} == text[0]
    assert ["app/settings"] == text[1]
    assert ["default", "team"] == text[2]
    assert [["sought"], "sought", True, "alive", True] == text[3:]

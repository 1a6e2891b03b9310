"""Files, artifacts and secrets of a task at its start on a real node, and the effects of a changed rendered file."""

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.artifacts.archives import build_endless_archive
from tests.node.artifacts.site import Site, body, running_site
from tests.node.nodes import NodeProcess, build_raw_job, find_termination, run_node, run_server
from tests.waiting import wait_until

SOON_NS = 1_000_000
WAIT_SCRIPT = (
    "trap 'echo HUP >>$WHARF_TASK_DIR/signals' HUP; echo yes >$WHARF_TASK_DIR/ready; while true; do sleep 0.05; done"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("prepared")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


def find_allocation(node: NodeProcess, job: str) -> dict[str, Any]:
    """Return the first allocation of the job; empty until its task has a state."""
    allocations = node.allocations(job)
    return allocations[0] if allocations and allocations[0]["TaskStates"] else {}


def find_ended(node: NodeProcess, job: str) -> dict[str, Any] | None:
    allocation = find_allocation(node, job)
    return allocation if allocation.get("ClientStatus") in ("complete", "failed") else None


def wait_for_end(node: NodeProcess, job: str) -> dict[str, Any]:
    return wait_until(lambda: find_ended(node, job), what=f"{job} is over")


def list_events(node: NodeProcess, job: str, kind: str) -> list[dict[str, Any]]:
    allocation = find_allocation(node, job)
    events = allocation["TaskStates"]["t"]["Events"] if allocation else []
    return [event for event in events if event["Type"] == kind]


def read_file(node: NodeProcess, allocation: dict[str, Any], path: str = "alloc/logs/t.stdout.0") -> str:
    file = node.folder / "alloc" / str(allocation["ID"]) / path
    return file.read_text() if file.exists() else ""


def put_variable(node: NodeProcess, path: str, **items: str) -> None:
    node.server.put(f"/v1/var/{path}", {"Items": items})


def stop(node: NodeProcess, job: str) -> None:
    request = urllib.request.Request(f"{node.server.address}/v1/job/{job}", method="DELETE")
    urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()


def variable_template(path: str, **more: object) -> dict[str, Any]:
    text = f'v={{{{ with nomadVar "{path}" }}}}{{{{ .v }}}}{{{{ end }}}}\n'
    return {"EmbeddedTmpl": text, "DestPath": "local/conf", "Splay": SOON_NS, **more}


def test_a_task_waits_for_missing_template_data_and_names_them(node: NodeProcess) -> None:
    templates = [
        variable_template("waits/for", Perms="0640"),
        {"EmbeddedTmpl": 'FROM="a template"\n# no more\n', "DestPath": "secrets/env", "Envvars": True},
    ]
    script = 'cat local/conf; echo "$FROM"; stat -c %a local/conf'
    node.run(build_raw_job("waits", script, Templates=templates))
    events = wait_until(lambda: list_events(node, "waits", "Template"), what="missing data are reported")
    assert ["Missing: nomad.var.block(waits/for@default.global)"] == [event["DisplayMessage"] for event in events]
    assert "pending" == find_allocation(node, "waits")["ClientStatus"]
    put_variable(node, "waits/for", v="7")
    allocation = wait_for_end(node, "waits")
    assert "0" == find_termination(allocation)["exit_code"]
    assert "v=7\na template\n640\n" == read_file(node, allocation)


@pytest.mark.needs("mounts")
def test_secrets_are_in_memory_and_disappear_with_their_task(node: NodeProcess) -> None:
    template = {"EmbeddedTmpl": "hidden", "DestPath": "secrets/key", "Perms": "0600"}
    node.run(build_raw_job("hides", WAIT_SCRIPT, Templates=[template], KillSignal="SIGKILL"))
    wait_until(lambda: find_allocation(node, "hides").get("ClientStatus") == "running", what="the allocation runs")
    allocation = find_allocation(node, "hides")
    assert "hidden" == read_file(node, allocation, "t/secrets/key")
    secrets = node.folder / "alloc" / str(allocation["ID"]) / "t" / "secrets"
    assert f" {secrets} tmpfs " in Path("/proc/self/mounts").read_text()
    stop(node, "hides")
    assert "complete" == wait_for_end(node, "hides")["ClientStatus"]
    wait_until(lambda: str(secrets) not in Path("/proc/self/mounts").read_text(), what="the secrets are unmounted")
    assert "" == read_file(node, allocation, "t/secrets/key")


def test_a_task_is_signaled_when_a_rendered_file_has_changed(node: NodeProcess) -> None:
    put_variable(node, "signaled", v="1")
    template = variable_template("signaled", ChangeMode="signal", ChangeSignal="sighup")
    node.run(build_raw_job("signaled", WAIT_SCRIPT, Templates=[template], KillSignal="SIGKILL"))
    wait_until(lambda: find_allocation(node, "signaled").get("ClientStatus") == "running", what="the allocation runs")
    allocation = find_allocation(node, "signaled")
    wait_until(lambda: read_file(node, allocation, "t/local/ready"), what="the task handles signals")
    put_variable(node, "signaled", v="2")
    wait_until(lambda: read_file(node, allocation, "t/local/signals"), what="the task has received the signal")
    assert "v=2\n" == read_file(node, allocation, "t/local/conf")
    events = wait_until(lambda: list_events(node, "signaled", "Signaling"), what="the signal is recorded")
    assert ["Task being sent signal SIGHUP: Template re-rendered"] == [event["DisplayMessage"] for event in events]
    stop(node, "signaled")


def test_a_task_is_restarted_when_a_rendered_file_has_changed_even_without_a_running_agent(node: NodeProcess) -> None:
    put_variable(node, "again", v="1")
    job = build_raw_job(
        "again", f"cat local/conf; {WAIT_SCRIPT}", Templates=[variable_template("again")], KillSignal="SIGKILL"
    )
    node.run(job)
    wait_until(lambda: find_allocation(node, "again").get("ClientStatus") == "running", what="the allocation runs")
    allocation = find_allocation(node, "again")
    wait_until(lambda: read_file(node, allocation) == "v=1\n", what="the task has started")
    put_variable(node, "again", v="2")
    wait_until(lambda: read_file(node, allocation) == "v=1\nv=2\n", what="the task has restarted")
    node.kill_agent()
    put_variable(node, "again", v="3")
    wait_until(lambda: read_file(node, allocation) == "v=1\nv=2\nv=3\n", what="the task has restarted")
    restarts = wait_until(lambda: list_events(node, "again", "Restart Signaled"), what="the restart is recorded")
    assert "Template with change_mode restart re-rendered" == restarts[-1]["DisplayMessage"]
    stop(node, "again")


def test_a_change_script_runs_in_the_task_when_a_rendered_file_has_changed(node: NodeProcess) -> None:
    put_variable(node, "script", v="1")
    script = {"Command": "/bin/sh", "Args": ["-c", "echo $WHARF_TASK_NAME >>$WHARF_TASK_DIR/ran"]}
    template = variable_template("script", ChangeMode="script", ChangeScript=script)
    node.run(build_raw_job("script", WAIT_SCRIPT, Templates=[template], KillSignal="SIGKILL"))
    wait_until(lambda: find_allocation(node, "script").get("ClientStatus") == "running", what="the allocation runs")
    allocation = find_allocation(node, "script")
    put_variable(node, "script", v="2")
    wait_until(lambda: read_file(node, allocation, "t/local/ran") == "t\n", what="the script ran")
    stop(node, "script")


def test_a_template_with_a_syntax_error_fails_its_task_with_line_and_column(node: NodeProcess) -> None:
    # Servers parse the first 2,000 characters of actions.
    text = f"one\n{{{{/* {'x' * 2_500}*/}}}}{{{{ nothing }}}}"
    node.run(build_raw_job("broken", "true", Templates=[{"EmbeddedTmpl": text, "DestPath": "local/x"}]))
    allocation = wait_for_end(node, "broken")
    failures = list_events(node, "broken", "Setup Failure")
    assert "failed" == allocation["ClientStatus"]
    assert "template local/x: line 2, column" in failures[0]["DisplayMessage"]


def test_slow_templates_delay_no_other_task_and_end_with_their_job(node: NodeProcess) -> None:
    slow = '{{ $x := "' + "a" * 100_000 + '" }}{{ range loop 90000 }}{{ $y := sha256Hex $x }}{{ end }}'
    job = build_raw_job("slow-templates", "true", Templates=[{"EmbeddedTmpl": slow, "DestPath": "local/x"}])
    job["TaskGroups"][0]["Count"] = 3
    node.run(job)
    wait_until(lambda: find_allocation(node, "slow-templates"), what="the node has the allocations")
    node.run(build_raw_job("beside", "true"))
    states = wait_for_end(node, "beside")["ClientStatus"], find_allocation(node, "slow-templates")["ClientStatus"]
    stop(node, "slow-templates")
    assert ("complete", "pending") == states
    assert "complete" == wait_for_end(node, "slow-templates")["ClientStatus"]


def test_an_unknown_reference_fails_the_validation_of_its_task(node: NodeProcess) -> None:
    node.run(build_raw_job("refers", "echo ${attr.zzz} ${meta.yyy}"))
    allocation = wait_for_end(node, "refers")
    assert "failed" == allocation["ClientStatus"]
    messages = [event["DisplayMessage"] for event in list_events(node, "refers", "Failed Validation")]
    assert ["unknown reference: ${attr.zzz}, ${meta.yyy}"] == messages


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("env", {"Env": {"A": "${NOMAD_META_LARGE}" * 1_000}}, 'env "A" has more than 131072 characters'),
        (
            "argument",
            {"Config": {"command": "/bin/echo", "args": ["${NOMAD_META_LARGE}" * 1_000]}},
            "config.args[0] has",
        ),
        (
            "together",
            {"Config": {"command": "/bin/echo", "args": ["${NOMAD_META_LARGE}"] * 100}},
            "together with the texts before it, config.args[",
        ),
        ("zero", {"Env": {"A": "a\0b"}}, 'env "A" contains a zero byte'),
        ("variable", {"Env": {"A=B": "1"}}, "env 'A=B' is not a name of a variable"),
        ("command", {"Config": {"command": "/bin/echo", "args": ["a\0b"]}}, "config.args[0] contains a zero byte"),
    ],
)
def test_values_that_no_task_can_receive_fail_the_validation_of_the_task(
    node: NodeProcess, name: str, task: dict[str, Any], message: str
) -> None:
    supervisor = node.supervisor()
    job = build_raw_job(f"wrong-{name}", "true", Meta={"LARGE": "x" * 50_000})
    job["TaskGroups"][0]["Tasks"][0] |= task
    node.run(job)
    assert "failed" == wait_for_end(node, f"wrong-{name}")["ClientStatus"]
    messages = [event["DisplayMessage"] for event in list_events(node, f"wrong-{name}", "Failed Validation")]
    assert [message] == [text[: len(message)] for text in messages]
    assert supervisor == node.supervisor()


def test_a_task_with_more_variables_than_its_supervisor_can_receive_fails_with_a_reason(node: NodeProcess) -> None:
    supervisor = node.supervisor()
    meta = {f"m{number}": "x" * 100_000 for number in range(11)}  # The node makes four variables of each.
    node.run(build_raw_job("huge", "true", Meta=meta))
    assert "failed" == wait_for_end(node, "huge")["ClientStatus"]
    messages = [event["DisplayMessage"] for event in list_events(node, "huge", "Driver Failure")]
    assert messages[-1].startswith("command and environment have 44")
    assert supervisor == node.supervisor()


def test_tags_of_services_that_grow_by_references_fail_the_validation(node: NodeProcess) -> None:
    service = {"Name": "grows", "Provider": "wharf", "Tags": ["${NOMAD_META_LARGE}"] * 4}
    node.run(build_raw_job("grows", "true", Meta={"LARGE": "x" * 20_000}, Services=[service]))
    assert "failed" == wait_for_end(node, "grows")["ClientStatus"]
    messages = [event["DisplayMessage"] for event in list_events(node, "grows", "Failed Validation")]
    assert messages[0].startswith('together with the texts before it, tag 4 of service "grows" has more than 65536')


def test_a_template_writes_nothing_outside_of_its_allocation(node: NodeProcess) -> None:
    # The server cannot reject the path, because it is resolved on the node.
    template = {"EmbeddedTmpl": "x", "DestPath": "${WHARF_META_WHERE}/outside"}
    node.run(build_raw_job("outside", "true", Templates=[template], Meta={"WHERE": "../../.."}))
    wait_for_end(node, "outside")
    assert "leads out of the task's folder" in list_events(node, "outside", "Setup Failure")[0]["DisplayMessage"]
    assert not (node.folder / "outside").exists()


def test_artifacts_are_fetched_before_the_task_starts(node: NodeProcess, site: Site) -> None:
    site.answers["/tool"] = body(b"from the site\n")
    artifacts = [{"GetterSource": f"{site.address}/tool", "RelativeDest": "local/"}]
    node.run(build_raw_job("fetches", "cat local/tool", Artifacts=artifacts))
    allocation = wait_for_end(node, "fetches")
    assert "from the site\n" == read_file(node, allocation)
    assert 1 == len(list_events(node, "fetches", "Downloading Artifacts"))


def test_archives_that_take_long_delay_no_other_job_and_end_with_their_own(node: NodeProcess, site: Site) -> None:
    site.answers["/large.tgz"] = body(build_endless_archive())
    site.answers["/tool"] = body(b"from the site\n")
    hostile = build_raw_job("hostile", "true", count=4, Artifacts=[{"GetterSource": f"{site.address}/large.tgz//in"}])
    (task,) = hostile["TaskGroups"][0]["Tasks"]
    hostile["TaskGroups"][0]["Tasks"] = [task, {**task, "Name": "second"}]
    node.run(hostile)
    allocations = node.folder / "alloc"
    wait_until(lambda: len(list(allocations.glob("*/*/local/x"))) >= 3, what="three archives are unpacked")

    node.run(build_raw_job("friendly", "cat local/tool", Artifacts=[{"GetterSource": f"{site.address}/tool"}]))
    assert "from the site\n" == read_file(node, wait_for_end(node, "friendly"))
    scratch_folders = list(allocations.glob("*/.artifact-*"))
    stop(node, "hostile")

    assert len(scratch_folders) == 8
    wait_until(lambda: not list(allocations.glob("*/.artifact-*")), what="all downloads have ended", within_s=5)


def test_secrets_in_the_url_of_an_artifact_are_never_shown(node: NodeProcess, site: Site) -> None:
    site.answers["/tool"] = body(b"something else\n")
    host = site.address.removeprefix("http://")
    sources = [
        f"http://me:hidden@{host}/none?key=hidden",
        f"http://me:hidden@{host}/tool?key=hidden&checksum=md5:{'0' * 32}",
    ]
    for number, source in enumerate(sources):
        node.run(build_raw_job(f"hides-{number}", "true", Artifacts=[{"GetterSource": source}]))
        wait_for_end(node, f"hides-{number}")
        (event,) = list_events(node, f"hides-{number}", "Failed Artifact Download")
        assert "hidden" not in str(event)
        assert event["DisplayMessage"].startswith(f"failed to download artifact {site.address}/")


def test_an_artifact_that_cannot_be_downloaded_fails_its_task_with_a_reason(node: NodeProcess, site: Site) -> None:
    node.run(build_raw_job("fails", "true", Artifacts=[{"GetterSource": f"{site.address}/missing"}]))
    allocation = wait_for_end(node, "fails")
    assert "failed" == allocation["ClientStatus"]
    assert "bad response code: 404" in list_events(node, "fails", "Failed Artifact Download")[0]["DisplayMessage"]


def test_the_payload_of_a_dispatch_is_a_file_of_the_task(node: NodeProcess) -> None:
    job = build_raw_job("dispatched", "cat local/in/payload.json", DispatchPayload={"File": "in/payload.json"})
    node.run({**job, "ParameterizedJob": {"Payload": "required"}})
    reply = node.server.put("/v1/job/dispatched/dispatch", {"Payload": "eyJhIjogMX0="})
    assert isinstance(reply, dict)
    child = str(reply["DispatchedJobID"]).replace("/", "%2F")
    allocation = wait_for_end(node, child)
    assert {"a": 1} == json.loads(read_file(node, allocation))


def test_a_task_stopped_during_its_preparation_ends_at_once(node: NodeProcess) -> None:
    node.run(build_raw_job("given-up", "true", Templates=[variable_template("never/there")]))
    wait_until(lambda: find_allocation(node, "given-up"), what="the node has the allocation")
    stop(node, "given-up")
    assert "complete" == wait_for_end(node, "given-up")["ClientStatus"]


def test_artifacts_are_fetched_once_although_the_supervisor_died_meanwhile(node: NodeProcess, site: Site) -> None:
    requested_paths: list[str] = []

    def reply_later(handler: BaseHTTPRequestHandler) -> None:
        requested_paths.append(handler.path)
        may_reply.wait(60)
        body(b"from the site\n")(handler)

    may_reply = threading.Event()
    site.answers["/tool"] = reply_later
    artifacts = [{"GetterSource": f"{site.address}/tool", "RelativeDest": "local/"}]
    node.run(build_raw_job("slow", "cat local/tool", Artifacts=artifacts))
    wait_until(lambda: requested_paths, what="the artifact is requested")
    supervisor = node.supervisor()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    node.run(build_raw_job("other", "true"))
    wait_for_end(node, "other")  # Run by the next supervisor, so the agent has recovered by then.
    may_reply.set()

    assert "from the site\n" == read_file(node, wait_for_end(node, "slow"))
    assert (["/tool"], 1) == (requested_paths, len(list_events(node, "slow", "Downloading Artifacts")))

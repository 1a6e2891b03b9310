"""What a task finds when it starts on a real node, and what happens when a rendered file changes."""

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
from tests.node.artifacts.site import Site, body, running_site
from tests.node.nodes import ANode, a_node, a_raw_job, a_server, ended
from tests.waiting import wait_until

SOON_NS = 1_000_000
WAITS = (
    "trap 'echo told >>$WHARF_TASK_DIR/told' HUP; echo yes >$WHARF_TASK_DIR/listens; while true; do sleep 0.05; done"
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    folder = tmp_path_factory.mktemp("prepared")
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        yield it


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


def only(node: ANode, job: str) -> dict[str, Any]:
    found = node.allocations(job)
    return found[0] if found and found[0]["TaskStates"] else {}


def is_over(node: ANode, job: str) -> dict[str, Any] | None:
    found = only(node, job)
    return found if found.get("ClientStatus") in ("complete", "failed") else None


def over(node: ANode, job: str) -> dict[str, Any]:
    return wait_until(lambda: is_over(node, job), what=f"{job} is over")


def events(node: ANode, job: str, kind: str) -> list[dict[str, Any]]:
    found = only(node, job)
    return [each for each in found["TaskStates"]["t"]["Events"] if each["Type"] == kind] if found else []


def text(node: ANode, allocation: dict[str, Any], path: str = "alloc/logs/t.stdout.0") -> str:
    file = node.folder / "alloc" / str(allocation["ID"]) / path
    return file.read_text() if file.exists() else ""


def put_variable(node: ANode, path: str, **items: str) -> None:
    node.server.put(f"/v1/var/{path}", {"Items": items})


def stop(node: ANode, job: str) -> None:
    request = urllib.request.Request(f"{node.server.address}/v1/job/{job}", method="DELETE")
    urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S).close()


def variable_template(path: str, **more: object) -> dict[str, Any]:
    text = f'v={{{{ with nomadVar "{path}" }}}}{{{{ .v }}}}{{{{ end }}}}\n'
    return {"EmbeddedTmpl": text, "DestPath": "local/conf", "Splay": SOON_NS, **more}


def test_a_task_waits_for_missing_template_data_and_names_them(node: ANode) -> None:
    templates = [
        variable_template("waits/for", Perms="0640"),
        {"EmbeddedTmpl": 'FROM="a template"\n# no more\n', "DestPath": "secrets/env", "Envvars": True},
    ]
    script = 'cat local/conf; echo "$FROM"; stat -c %a local/conf'
    node.run(a_raw_job("waits", script, Templates=templates))
    told = wait_until(lambda: events(node, "waits", "Template"), what="what is missing is said")
    assert ["Missing: nomad.var.block(waits/for@default.global)"] == [each["DisplayMessage"] for each in told]
    assert "pending" == only(node, "waits")["ClientStatus"]
    put_variable(node, "waits/for", v="7")
    allocation = over(node, "waits")
    assert "0" == ended(allocation)["exit_code"]
    assert "v=7\na template\n640\n" == text(node, allocation)


@pytest.mark.needs("mounts")
def test_secrets_are_in_memory_and_disappear_with_their_task(node: ANode) -> None:
    template = {"EmbeddedTmpl": "hidden", "DestPath": "secrets/key", "Perms": "0600"}
    node.run(a_raw_job("hides", WAITS, Templates=[template], KillSignal="SIGKILL"))
    wait_until(lambda: only(node, "hides").get("ClientStatus") == "running", what="it runs")
    allocation = only(node, "hides")
    assert "hidden" == text(node, allocation, "t/secrets/key")
    secrets = node.folder / "alloc" / str(allocation["ID"]) / "t" / "secrets"
    assert f" {secrets} tmpfs " in Path("/proc/self/mounts").read_text()
    stop(node, "hides")
    assert "complete" == over(node, "hides")["ClientStatus"]
    wait_until(lambda: str(secrets) not in Path("/proc/self/mounts").read_text(), what="they are not mounted any more")
    assert "" == text(node, allocation, "t/secrets/key")


def test_a_task_is_signaled_when_a_rendered_file_has_changed(node: ANode) -> None:
    put_variable(node, "tells", v="1")
    template = variable_template("tells", ChangeMode="signal", ChangeSignal="sighup")
    node.run(a_raw_job("tells", WAITS, Templates=[template], KillSignal="SIGKILL"))
    wait_until(lambda: only(node, "tells").get("ClientStatus") == "running", what="it runs")
    allocation = only(node, "tells")
    wait_until(lambda: text(node, allocation, "t/local/listens"), what="it would hear a signal")
    put_variable(node, "tells", v="2")
    wait_until(lambda: text(node, allocation, "t/local/told"), what="it was told")
    assert "v=2\n" == text(node, allocation, "t/local/conf")
    told = wait_until(lambda: events(node, "tells", "Signaling"), what="that is said")
    assert ["Task being sent signal SIGHUP: Template re-rendered"] == [each["DisplayMessage"] for each in told]
    stop(node, "tells")


def test_a_task_is_restarted_when_a_rendered_file_has_changed_even_without_a_running_agent(node: ANode) -> None:
    put_variable(node, "again", v="1")
    job = a_raw_job("again", f"cat local/conf; {WAITS}", Templates=[variable_template("again")], KillSignal="SIGKILL")
    node.run(job)
    wait_until(lambda: only(node, "again").get("ClientStatus") == "running", what="it runs")
    allocation = only(node, "again")
    wait_until(lambda: text(node, allocation) == "v=1\n", what="it has begun")
    put_variable(node, "again", v="2")
    wait_until(lambda: text(node, allocation) == "v=1\nv=2\n", what="it began again")
    node.kill_agent()
    put_variable(node, "again", v="3")
    wait_until(lambda: text(node, allocation) == "v=1\nv=2\nv=3\n", what="it began again")
    restarts = wait_until(lambda: events(node, "again", "Restart Signaled"), what="that is said")
    assert "Template with change_mode restart re-rendered" == restarts[-1]["DisplayMessage"]
    stop(node, "again")


def test_a_change_script_runs_in_the_task_when_a_rendered_file_has_changed(node: ANode) -> None:
    put_variable(node, "script", v="1")
    script = {"Command": "/bin/sh", "Args": ["-c", "echo $WHARF_TASK_NAME >>$WHARF_TASK_DIR/ran"]}
    template = variable_template("script", ChangeMode="script", ChangeScript=script)
    node.run(a_raw_job("script", WAITS, Templates=[template], KillSignal="SIGKILL"))
    wait_until(lambda: only(node, "script").get("ClientStatus") == "running", what="it runs")
    allocation = only(node, "script")
    put_variable(node, "script", v="2")
    wait_until(lambda: text(node, allocation, "t/local/ran") == "t\n", what="the script ran")
    stop(node, "script")


def test_a_template_with_a_syntax_error_fails_its_task_with_line_and_column(node: ANode) -> None:
    node.run(a_raw_job("broken", "true", Templates=[{"EmbeddedTmpl": "one\n{{ nothing }}", "DestPath": "local/x"}]))
    allocation = over(node, "broken")
    told = events(node, "broken", "Setup Failure")
    assert "failed" == allocation["ClientStatus"]
    assert "template local/x: line 2, column" in told[0]["DisplayMessage"]


def test_an_unknown_reference_fails_the_validation_of_its_task(node: ANode) -> None:
    node.run(a_raw_job("refers", "echo ${attr.zzz} ${meta.yyy}"))
    allocation = over(node, "refers")
    assert "failed" == allocation["ClientStatus"]
    told = [each["DisplayMessage"] for each in events(node, "refers", "Failed Validation")]
    assert ["unknown reference: ${attr.zzz}, ${meta.yyy}"] == told


def test_a_template_writes_nothing_outside_of_its_allocation(node: ANode) -> None:
    # What the server can see leads nowhere: it is put together on the node.
    template = {"EmbeddedTmpl": "x", "DestPath": "${WHARF_META_WHERE}/outside"}
    node.run(a_raw_job("outside", "true", Templates=[template], Meta={"WHERE": "../../.."}))
    over(node, "outside")
    assert "leads out of the task's folder" in events(node, "outside", "Setup Failure")[0]["DisplayMessage"]
    assert not (node.folder / "outside").exists()


def test_artifacts_are_fetched_before_the_task_starts(node: ANode, site: Site) -> None:
    site.answers["/tool"] = body(b"from the site\n")
    artifacts = [{"GetterSource": f"{site.address}/tool", "RelativeDest": "local/"}]
    node.run(a_raw_job("fetches", "cat local/tool", Artifacts=artifacts))
    allocation = over(node, "fetches")
    assert "from the site\n" == text(node, allocation)
    assert 1 == len(events(node, "fetches", "Downloading Artifacts"))


def test_secrets_in_the_url_of_an_artifact_are_never_shown(node: ANode, site: Site) -> None:
    site.answers["/tool"] = body(b"something else\n")
    place = site.address.removeprefix("http://")
    sources = [
        f"http://me:hidden@{place}/none?key=hidden",
        f"http://me:hidden@{place}/tool?key=hidden&checksum=md5:{'0' * 32}",
    ]
    for number, source in enumerate(sources):
        node.run(a_raw_job(f"hides-{number}", "true", Artifacts=[{"GetterSource": source}]))
        over(node, f"hides-{number}")
        (event,) = events(node, f"hides-{number}", "Failed Artifact Download")
        assert "hidden" not in str(event)
        assert event["DisplayMessage"].startswith(f"failed to download artifact {site.address}/")


def test_an_artifact_that_cannot_be_downloaded_fails_its_task_with_a_reason(node: ANode, site: Site) -> None:
    node.run(a_raw_job("fails", "true", Artifacts=[{"GetterSource": f"{site.address}/missing"}]))
    allocation = over(node, "fails")
    assert "failed" == allocation["ClientStatus"]
    assert "bad response code: 404" in events(node, "fails", "Failed Artifact Download")[0]["DisplayMessage"]


def test_the_payload_of_a_dispatch_is_a_file_of_the_task(node: ANode) -> None:
    job = a_raw_job("dispatched", "cat local/in/payload.json", DispatchPayload={"File": "in/payload.json"})
    node.run({**job, "ParameterizedJob": {"Payload": "required"}})
    asked = node.server.put("/v1/job/dispatched/dispatch", {"Payload": "eyJhIjogMX0="})
    assert isinstance(asked, dict)
    child = str(asked["DispatchedJobID"]).replace("/", "%2F")
    allocation = over(node, child)
    assert {"a": 1} == json.loads(text(node, allocation))


def test_a_task_stopped_during_its_preparation_ends_at_once(node: ANode) -> None:
    node.run(a_raw_job("given-up", "true", Templates=[variable_template("never/there")]))
    wait_until(lambda: only(node, "given-up"), what="the node has it")
    stop(node, "given-up")
    assert "complete" == over(node, "given-up")["ClientStatus"]


def test_artifacts_are_fetched_once_although_the_supervisor_died_meanwhile(node: ANode, site: Site) -> None:
    asked: list[str] = []

    def when_told(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        may_answer.wait(60)
        body(b"from the site\n")(handler)

    may_answer = threading.Event()
    site.answers["/tool"] = when_told
    artifacts = [{"GetterSource": f"{site.address}/tool", "RelativeDest": "local/"}]
    node.run(a_raw_job("slow", "cat local/tool", Artifacts=artifacts))
    wait_until(lambda: asked, what="it is fetched")
    supervisor = node.supervisor()
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    node.run(a_raw_job("other", "true"))
    over(node, "other")  # By the next supervisor: whatever was open is taken up again by then.
    may_answer.set()

    assert "from the site\n" == text(node, over(node, "slow"))
    assert (["/tool"], 1) == (asked, len(events(node, "slow", "Downloading Artifacts")))

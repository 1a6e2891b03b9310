"""Workload identities: where tasks find their tokens, when they are renewed and what they permit; on real processes
with access control.
"""

import base64
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, running
from tests.looking import files_named, folders_named
from tests.node.nodes import a_raw_job
from tests.waiting import wait_until
from wharf.node.supervisor.processes import list_pids

WAITS = "trap 'echo told >>$WHARF_TASK_DIR/told' HUP; while true; do sleep 0.05; done"
ACL = "[acl]\nenabled = true\n"
SECOND_NS = 1_000_000_000
SOON_NS = 1_000_000


class Cluster:
    """`wharf dev` with access control on, asked with its first token."""

    def __init__(self, agent: RunningAgent) -> None:
        self.agent = agent
        self.token = ""
        self.token = self.ask("PUT", "/v1/acl/bootstrap")["SecretID"]

    def ask(self, method: str, path: str, body: object = None, *, token: str | None = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.agent.address + path, sent, method=method)
        request.add_header("X-Cluster-Token", self.token if token is None else token)
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def status(self, path: str, token: str) -> int:
        try:
            self.ask("GET", path, token=token)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def run(self, job: dict[str, Any]) -> None:
        self.ask("PUT", "/v1/jobs", {"Job": job})

    def put_variable(self, path: str, **items: str) -> None:
        self.ask("PUT", f"/v1/var/{path}", {"Items": items})

    def policy_of_job(self, job: str, rules: str) -> None:
        body = {"Name": f"of-{job}", "Rules": rules, "JobACL": {"Namespace": "default", "JobID": job}}
        self.ask("PUT", f"/v1/acl/policy/of-{job}", body)

    def allocation(self, job: str) -> dict[str, Any]:
        found = self.ask("GET", f"/v1/job/{job}/allocations")
        return dict(found[0]) if found and found[0]["TaskStates"] else {}

    def running(self, job: str) -> dict[str, Any]:
        wait_until(lambda: self.allocation(job).get("ClientStatus") == "running", what=f"{job} runs")
        return self.allocation(job)

    def folder(self, allocation: dict[str, Any]) -> Path:
        return next(folders_named(self.agent.folder, str(allocation["ID"])))

    def events(self, job: str, kind: str) -> list[str]:
        allocation = self.allocation(job)
        events = allocation["TaskStates"]["t"]["Events"] if allocation else []
        return [each["DisplayMessage"] for each in events if each["Type"] == kind]

    def texts(self) -> str:
        """All that was logged, and all that people are shown of tasks."""
        shown = [self.ask("GET", "/v1/allocations?task_states=true"), self.ask("GET", "/v1/nodes")]
        logs = [path.read_text(errors="replace") for path in files_named(self.agent.folder, "*.log")]
        return "\n".join([self.agent.out, self.agent.err, *logs, json.dumps(shown)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("named")) as it:
        yield it


@contextmanager
def a_cluster(folder: Path) -> Iterator[Cluster]:
    (folder / "some.toml").write_text(ACL)
    words = ("dev", "--port", "0", "--data-dir", str(folder / "run" / "data"), "--config", str(folder / "some.toml"))
    with running(folder / "run", *words) as agent:
        agent.wait_ready()
        yield Cluster(agent)


def template(text: str, **more: object) -> dict[str, object]:
    return {"EmbeddedTmpl": text, "DestPath": "local/conf", "Splay": SOON_NS, **more}


def claims_of(jwt: str) -> dict[str, Any]:
    middle = jwt.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    return found


def test_a_template_can_read_only_the_variables_of_its_task(cluster: Cluster) -> None:
    cluster.put_variable("nomad/jobs/reads/g/t", v="mine")
    cluster.put_variable("nomad/jobs/other", v="theirs")
    mine = '{{ with nomadVar "nomad/jobs/reads/g/t" }}{{ .v }}{{ end }}'
    theirs = '{{ with nomadVar "nomad/jobs/other" }}{{ .v }}{{ end }}'
    cluster.run(a_raw_job("reads", WAITS, Templates=[template(mine)], KillSignal="SIGKILL"))
    cluster.run(a_raw_job("pries", WAITS, Templates=[template(theirs)], KillSignal="SIGKILL"))

    allocation = cluster.running("reads")
    told = wait_until(lambda: cluster.events("pries", "Template"), what="what is missing is told")

    assert "mine" == (cluster.folder(allocation) / "t/local/conf").read_text()
    assert ["Missing: nomad.var.block(nomad/jobs/other@default.global)"] == told
    assert "pending" == cluster.allocation("pries")["ClientStatus"]


def test_a_template_waits_for_a_policy_of_its_job_that_permits_listing_services(cluster: Cluster) -> None:
    text = "{{ range nomadServices }}{{ .Name }}{{ end }}."
    cluster.run(a_raw_job("lists", WAITS, Templates=[template(text)], KillSignal="SIGKILL"))
    told = wait_until(lambda: cluster.events("lists", "Template"), what="that it may not is told")
    cluster.policy_of_job("lists", 'namespace "default" { policy = "read" }')

    allocation = cluster.running("lists")

    assert ["Missing: services(): Permission denied"] == [each[:38] for each in told]
    assert "." == (cluster.folder(allocation) / "t/local/conf").read_text()


def test_identities_are_given_to_the_task_as_requested_and_appear_nowhere_else(cluster: Cluster) -> None:
    cluster.put_variable("nomad/jobs/names", v="kept for it")
    script = (
        f'echo "$WHARF_TOKEN $NOMAD_TOKEN $NOMAD_TOKEN_other_one $NOMAD_UNIX_ADDR" >$WHARF_SECRETS_DIR/seen; {WAITS}'
    )
    others = [{"Name": "other-one", "Audience": ["o"], "TTL": 3600 * SECOND_NS, "Env": True, "File": True}]
    job = a_raw_job("names", script, Identity={"Env": True, "File": True}, Identities=others, KillSignal="SIGKILL")
    cluster.run(job)

    secrets = cluster.folder(cluster.running("names")) / "t" / "secrets"
    seen = wait_until(lambda: (secrets / "seen").exists() and (secrets / "seen").read_text(), what="it has looked")
    ours, theirs, other, address = str(seen).split()

    assert (ours, ours, other) == (
        theirs,
        (secrets / "nomad_token").read_text(),
        (secrets / "nomad_other-one.jwt").read_text(),
    )
    assert "global:default:names:g:t:other-one" == claims_of(other)["sub"]
    assert (200, 403) == (cluster.status("/v1/var/nomad/jobs/names", ours), cluster.status("/v1/jobs", ours))
    assert f"unix://{secrets}/api.sock" == address
    everything = cluster.texts() + "".join(words for pid in list_pids() if (words := words_of(pid)))
    assert (False, False) == (ours.split(".")[2] in everything, other.split(".")[2] in everything)


def words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_task_can_send_api_requests_through_the_socket_in_its_secrets_folder(cluster: Cluster) -> None:
    cluster.put_variable("nomad/jobs/asks", v="asked")
    cluster.run(a_raw_job("asks", WAITS, Identity={"File": True}, KillSignal="SIGKILL"))
    secrets = cluster.folder(cluster.running("asks")) / "t" / "secrets"
    token = (secrets / "nomad_token").read_text()

    path = "/v1/var/nomad/jobs/asks"
    status, body = by_socket(secrets, path, f"Authorization: Bearer {token}\r\n")
    assert ("200", "asked") == (status, json.loads(body)["Items"]["v"])
    assert ("401", b"Unauthorized") == by_socket(secrets, path, "")
    assert "403" == by_socket(secrets, "/v1/jobs", f"X-Cluster-Token: {token}\r\n")[0]
    # What follows the first request on its connection is not heard.
    more = f"X-Cluster-Token: {token}\r\n\r\nGET /v1/jobs HTTP/1.1\r\nHost: x\r\n"
    assert "200" == by_socket(secrets, path, more)[0]


def by_socket(folder: Path, path: str, headers: str) -> tuple[str, bytes]:
    handle = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(f"/proc/self/fd/{handle}/api.sock")
        os.close(handle)
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        said = b""
        while piece := line.recv(65536):
            said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    assert said.count(b"HTTP/1.1 ") == 1
    return head.split()[1].decode(), body


def test_an_identity_is_renewed_before_it_expires_and_the_task_is_signaled(cluster: Cluster) -> None:
    short = {"Name": "short", "TTL": 4 * SECOND_NS, "File": True, "ChangeMode": "signal", "ChangeSignal": "SIGHUP"}
    cluster.run(a_raw_job("renews", WAITS, Identities=[short], KillSignal="SIGKILL"))
    folder = cluster.folder(cluster.running("renews")) / "t"
    first = (folder / "secrets" / "nomad_short.jwt").read_text()

    wait_until(lambda: (folder / "local" / "told").exists(), what="it was told")
    second = (folder / "secrets" / "nomad_short.jwt").read_text()

    assert claims_of(first)["exp"] < claims_of(second)["exp"]
    told = wait_until(lambda: cluster.events("renews", "Signaling"), what="that is said")
    assert "Task being sent signal SIGHUP: identity short was renewed" == told[0]


def test_a_node_has_a_signed_identity_that_can_be_renewed_on_request(cluster: Cluster) -> None:
    (node,) = cluster.ask("GET", "/v1/nodes")

    def claims() -> dict[str, Any]:
        try:
            found: dict[str, Any] = cluster.ask("GET", "/v1/client/identity")["Claims"]
        except urllib.error.HTTPError:  # Not signed yet.
            return {}
        return found

    first = wait_until(claims, what="it is signed")
    second = cluster.ask("PUT", "/v1/client/identity/renew", {"NodeID": node["ID"]})["Claims"]

    assert f"global:default:{node['ID']}:default" == str(first["sub"]).removeprefix("node:")
    assert (24 * 3600.0, True) == (first["exp"] - first["iat"], first["jti"] != second["jti"])
    assert second["jti"] == claims()["jti"]
    wait_until(
        lambda: cluster.ask("GET", f"/v1/node/{node['ID']}")["IdentitySigningKeyID"],
        what="servers know by which key it was signed",
    )

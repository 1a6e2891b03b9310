"""Workload identities: where tasks find their tokens, when the node renews them and which requests they permit. The
processes are real, with access control.
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
from tests.file_search import find_files, find_folders
from tests.node.nodes import build_raw_job
from tests.waiting import wait_until
from wharf.node.processes import list_pids

WAIT_SCRIPT = "trap 'echo HUP >>$WHARF_TASK_DIR/signals' HUP; while true; do sleep 0.05; done"
ACL = "[acl]\nenabled = true\n"
SECOND_NS = 1_000_000_000
SPLAY_NS = 1_000_000


class SecuredCluster:
    """`wharf dev` with access control. Requests use its first token."""

    def __init__(self, agent: RunningAgent) -> None:
        self.agent = agent
        self.token = ""
        self.token = self.request("PUT", "/v1/acl/bootstrap")["SecretID"]

    def request(self, method: str, path: str, body: object = None, *, token: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        http_request = urllib.request.Request(self.agent.address + path, data, method=method)
        http_request.add_header("X-Cluster-Token", self.token if token is None else token)
        with urllib.request.urlopen(http_request, timeout=ANSWERED_WITHIN_S) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def status(self, path: str, token: str) -> int:
        try:
            self.request("GET", path, token=token)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def run(self, job: dict[str, Any]) -> None:
        self.request("PUT", "/v1/jobs", {"Job": job})

    def put_variable(self, path: str, **items: str) -> None:
        self.request("PUT", f"/v1/var/{path}", {"Items": items})

    def put_job_policy(self, job: str, rules: str) -> None:
        body = {"Name": f"of-{job}", "Rules": rules, "JobACL": {"Namespace": "default", "JobID": job}}
        self.request("PUT", f"/v1/acl/policy/of-{job}", body)

    def allocation(self, job: str) -> dict[str, Any]:
        allocations = self.request("GET", f"/v1/job/{job}/allocations")
        return dict(allocations[0]) if allocations and allocations[0]["TaskStates"] else {}

    def wait_running(self, job: str) -> dict[str, Any]:
        wait_until(lambda: self.allocation(job).get("ClientStatus") == "running", what=f"{job} runs")
        return self.allocation(job)

    def folder(self, allocation: dict[str, Any]) -> Path:
        return next(find_folders(self.agent.folder, str(allocation["ID"])))

    def events(self, job: str, kind: str) -> list[str]:
        allocation = self.allocation(job)
        events = allocation["TaskStates"]["t"]["Events"] if allocation else []
        return [event["DisplayMessage"] for event in events if event["Type"] == kind]

    def read_all_texts(self) -> str:
        """Return all logs, and everything that the API shows of tasks and nodes."""
        views = [self.request("GET", "/v1/allocations?task_states=true"), self.request("GET", "/v1/nodes")]
        logs = [path.read_text(errors="replace") for path in find_files(self.agent.folder, "*.log")]
        return "\n".join([self.agent.out, self.agent.err, *logs, json.dumps(views)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with run_cluster(tmp_path_factory.mktemp("identities")) as cluster:
        yield cluster


@contextmanager
def run_cluster(folder: Path) -> Iterator[SecuredCluster]:
    (folder / "some.toml").write_text(ACL)
    arguments = (
        "dev",
        "--port",
        "0",
        "--data-dir",
        str(folder / "run" / "data"),
        "--config",
        str(folder / "some.toml"),
    )
    with running(folder / "run", *arguments) as agent:
        agent.wait_ready()
        yield SecuredCluster(agent)


def template(text: str, **more: object) -> dict[str, object]:
    return {"EmbeddedTmpl": text, "DestPath": "local/conf", "Splay": SPLAY_NS, **more}


def decode_claims(jwt: str) -> dict[str, Any]:
    payload = jwt.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


def test_a_template_can_read_only_the_variables_of_its_task(cluster: SecuredCluster) -> None:
    cluster.put_variable("nomad/jobs/reads/g/t", v="own")
    cluster.put_variable("nomad/jobs/other", v="foreign")
    own_template = '{{ with nomadVar "nomad/jobs/reads/g/t" }}{{ .v }}{{ end }}'
    foreign_template = '{{ with nomadVar "nomad/jobs/other" }}{{ .v }}{{ end }}'
    cluster.run(build_raw_job("reads", WAIT_SCRIPT, Templates=[template(own_template)], KillSignal="SIGKILL"))
    cluster.run(build_raw_job("forbidden", WAIT_SCRIPT, Templates=[template(foreign_template)], KillSignal="SIGKILL"))

    allocation = cluster.wait_running("reads")
    messages = wait_until(lambda: cluster.events("forbidden", "Template"), what="the missing variable is reported")

    assert "own" == (cluster.folder(allocation) / "t/local/conf").read_text()
    assert ["Missing: nomad.var.block(nomad/jobs/other@default.global)"] == messages
    assert "pending" == cluster.allocation("forbidden")["ClientStatus"]


def test_a_template_waits_for_a_policy_of_its_job_that_permits_listing_services(cluster: SecuredCluster) -> None:
    text = "{{ range nomadServices }}{{ .Name }}{{ end }}."
    cluster.run(build_raw_job("lists", WAIT_SCRIPT, Templates=[template(text)], KillSignal="SIGKILL"))
    messages = wait_until(lambda: cluster.events("lists", "Template"), what="the refusal is reported")
    cluster.put_job_policy("lists", 'namespace "default" { policy = "read" }')

    allocation = cluster.wait_running("lists")

    assert ["Missing: services(): Permission denied"] == [message[:38] for message in messages]
    assert "." == (cluster.folder(allocation) / "t/local/conf").read_text()


def test_identities_are_passed_to_the_task_as_requested_and_appear_nowhere_else(cluster: SecuredCluster) -> None:
    cluster.put_variable("nomad/jobs/names", v="secret")
    script = f'echo "$WHARF_TOKEN $NOMAD_TOKEN $NOMAD_TOKEN_other_one $NOMAD_UNIX_ADDR" >$WHARF_SECRETS_DIR/environment; {WAIT_SCRIPT}'
    other_identities = [{"Name": "other-one", "Audience": ["o"], "TTL": 3600 * SECOND_NS, "Env": True, "File": True}]
    job = build_raw_job(
        "names", script, Identity={"Env": True, "File": True}, Identities=other_identities, KillSignal="SIGKILL"
    )
    cluster.run(job)

    secrets = cluster.folder(cluster.wait_running("names")) / "t" / "secrets"
    environment = wait_until(
        lambda: (secrets / "environment").exists() and (secrets / "environment").read_text(),
        what="the task has started",
    )
    wharf_token, nomad_token, other_token, address = str(environment).split()

    assert (wharf_token, wharf_token, other_token) == (
        nomad_token,
        (secrets / "nomad_token").read_text(),
        (secrets / "nomad_other-one.jwt").read_text(),
    )
    assert "global:default:names:g:t:other-one" == decode_claims(other_token)["sub"]
    assert (200, 403) == (
        cluster.status("/v1/var/nomad/jobs/names", wharf_token),
        cluster.status("/v1/jobs", wharf_token),
    )
    assert f"unix://{secrets}/api.sock" == address
    everything = cluster.read_all_texts() + "".join(
        command for pid in list_pids() if (command := read_command_line(pid))
    )
    assert (False, False) == (wharf_token.split(".")[2] in everything, other_token.split(".")[2] in everything)


def read_command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_task_can_send_api_requests_through_the_socket_in_its_secrets_folder(cluster: SecuredCluster) -> None:
    cluster.put_variable("nomad/jobs/requests", v="value")
    cluster.run(build_raw_job("requests", WAIT_SCRIPT, Identity={"File": True}, KillSignal="SIGKILL"))
    secrets = cluster.folder(cluster.wait_running("requests")) / "t" / "secrets"
    token = (secrets / "nomad_token").read_text()

    path = "/v1/var/nomad/jobs/requests"
    status, body = request_through_socket(secrets, path, f"Authorization: Bearer {token}\r\n")
    assert ("200", "value") == (status, json.loads(body)["Items"]["v"])
    assert ("401", b"Unauthorized") == request_through_socket(secrets, path, "")
    assert "403" == request_through_socket(secrets, "/v1/jobs", f"X-Cluster-Token: {token}\r\n")[0]
    # A second request on the same connection is ignored.
    headers = f"X-Cluster-Token: {token}\r\n\r\nGET /v1/jobs HTTP/1.1\r\nHost: x\r\n"
    assert "200" == request_through_socket(secrets, path, headers)[0]


def request_through_socket(folder: Path, path: str, headers: str) -> tuple[str, bytes]:
    handle = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(f"/proc/self/fd/{handle}/api.sock")
        os.close(handle)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        reply = b""
        while chunk := connection.recv(65536):
            reply += chunk
    head, _, body = reply.partition(b"\r\n\r\n")
    assert reply.count(b"HTTP/1.1 ") == 1
    return head.split()[1].decode(), body


def test_an_identity_is_renewed_before_it_expires_and_the_task_is_signaled(cluster: SecuredCluster) -> None:
    # A slow task may get the first signal before its trap. It ignores this signal then, and gets another one.
    short = {"Name": "short", "TTL": 4 * SECOND_NS, "File": True, "ChangeMode": "signal", "ChangeSignal": "SIGWINCH"}
    script = WAIT_SCRIPT.replace("HUP", "WINCH")
    cluster.run(build_raw_job("renews", script, Identities=[short], KillSignal="SIGKILL"))
    folder = cluster.folder(cluster.wait_running("renews")) / "t"
    first = (folder / "secrets" / "nomad_short.jwt").read_text()

    wait_until(lambda: (folder / "local" / "signals").exists(), what="the task has received the signal")
    second = (folder / "secrets" / "nomad_short.jwt").read_text()

    assert decode_claims(first)["exp"] < decode_claims(second)["exp"]
    messages = wait_until(lambda: cluster.events("renews", "Signaling"), what="the signal is recorded")
    assert "Task being sent signal SIGWINCH: identity short was renewed" == messages[0]


def test_a_node_has_a_signed_identity_that_can_be_renewed_on_request(cluster: SecuredCluster) -> None:
    (node,) = cluster.request("GET", "/v1/nodes")

    def read_claims() -> dict[str, Any]:
        try:
            claims: dict[str, Any] = cluster.request("GET", "/v1/client/identity")["Claims"]
        except urllib.error.HTTPError:  # Not signed yet.
            return {}
        return claims

    first = wait_until(read_claims, what="the identity is signed")
    second = cluster.request("PUT", "/v1/client/identity/renew", {"NodeID": node["ID"]})["Claims"]

    assert f"global:default:{node['ID']}:default" == str(first["sub"]).removeprefix("node:")
    assert (24 * 3600.0, True) == (first["exp"] - first["iat"], first["jti"] != second["jti"])
    assert second["jti"] == read_claims()["jti"]
    wait_until(
        lambda: cluster.request("GET", f"/v1/node/{node['ID']}")["IdentitySigningKeyID"],
        what="servers have received the id of the signing key",
    )

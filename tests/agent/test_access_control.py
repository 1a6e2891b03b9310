"""A real agent with access control enabled: bootstrap token, audit log and keyring file."""

import json
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, running
from tests.agent.test_processes import write_agent_config
from tests.waiting import wait_until

ACL_ENABLED = "[acl]\nenabled = true\n"


def ask(agent: RunningAgent, method: str, path: str, body: object = None, *, token: str = "") -> tuple[int, str]:
    data = json.dumps(body).encode() if body is not None else None
    headers = {"X-Cluster-Token": token} if token else {}
    request = urllib.request.Request(agent.address + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def bootstrap_access(agent: RunningAgent) -> dict[str, str]:
    """Return the first token. An agent that has just become ready may have no leader yet."""

    def try_bootstrap() -> tuple[int, str] | None:
        status, body = ask(agent, "PUT", "/v1/acl/bootstrap", {})
        return (status, body) if body != "No cluster leader" else None

    status, body = wait_until(try_bootstrap, what="the cluster has a leader")
    assert status == 200, body
    token: dict[str, str] = json.loads(body)
    return token


class ControlledAgent(NamedTuple):
    """An agent with access control."""

    agent: RunningAgent
    token: dict[str, str]
    """The first management token."""
    before: tuple[int, str]
    """The reply to a request without a token before the first token existed."""


@contextmanager
def running_with_access_control(folder: Path) -> Iterator[ControlledAgent]:
    file = write_agent_config(folder, ACL_ENABLED)
    with running(folder, "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        before = ask(agent, "GET", "/v1/jobs")
        yield ControlledAgent(agent, bootstrap_access(agent), before)


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledAgent]:
    """One agent for all tests that do not restart it."""
    with running_with_access_control(tmp_path_factory.mktemp("controlled") / "a") as controlled:
        yield controlled


def test_an_agent_with_access_control_requires_a_token_and_audits_its_accessor(controlled: ControlledAgent) -> None:
    agent, token, before = controlled
    assert before == ask(agent, "GET", "/v1/jobs") == (403, "Permission denied")
    assert ask(agent, "GET", "/v1/jobs", token=token["SecretID"]) == (200, "[]")

    reply = ask(agent, "PUT", "/v1/acl/policy/p", {"Name": "p", "Rules": ""}, token=token["SecretID"])
    variable = ask(agent, "PUT", "/v1/var/db", {"Items": {"password": "tiger-tiger"}}, token=token["SecretID"])

    audit = [json.loads(line) for line in next(agent.folder.rglob("audit.log")).read_text().splitlines()]
    policy_entries = [entry for entry in audit if entry["endpoint"] == "acl.policy.store"]
    file_contents = b"".join(path.read_bytes() for path in agent.folder.rglob("*") if path.is_file())
    assert (reply[0], variable[0]) == (200, 200)
    assert [entry["accessor_id"] for entry in policy_entries] == [token["AccessorID"]]
    # Neither the state, nor the logs, nor the audit log contain a secret.
    assert b"tiger-tiger" not in file_contents
    assert token["SecretID"].encode() not in file_contents


def test_a_reset_file_in_the_data_folder_permits_a_second_bootstrap(controlled: ControlledAgent) -> None:
    agent = controlled.agent
    _, text = ask(agent, "PUT", "/v1/acl/bootstrap", {})
    number = text.rpartition(" ")[2].rstrip(")")

    (next(agent.folder.rglob("agent.lock")).parent / "acl-bootstrap-reset").write_text(number)

    assert bootstrap_access(agent)["Type"] == "management"


class StoppedServer(NamedTuple):
    """A server with access control that was stopped."""

    file: Path
    """Its configuration."""
    token: str
    """The secret of its first management token."""
    key: Path
    """Its keyring file."""
    key_bytes: bytes


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> StoppedServer:
    """Return a stopped server. Tests start it again, and leave its keyring file unchanged."""
    folder = tmp_path_factory.mktemp("stopped") / "a"
    with running_with_access_control(folder) as (agent, token, _):
        key = next(folder.rglob("keyring.key"))
        key_bytes = key.read_bytes()
        agent.process.terminate()
        agent.wait_end()
    return StoppedServer(folder / "wharf.toml", token["SecretID"], key, key_bytes)


def test_the_keyring_key_is_private_to_its_owner_and_the_same_after_a_restart(stopped: StoppedServer) -> None:
    with running(stopped.file.parent, "agent", "--config", str(stopped.file)) as agent:
        agent.wait_ready()

        assert (stat.S_IMODE(stopped.key.stat().st_mode), stopped.key.read_bytes()) == (0o600, stopped.key_bytes)
        status, body = ask(agent, "GET", "/v1/acl/token/self", token=stopped.token)
        assert (status, json.loads(body)["SecretID"]) == (200, stopped.token)


def test_a_missing_keyring_key_ends_the_start_with_an_error(stopped: StoppedServer, tmp_path: Path) -> None:
    stopped.key.rename(tmp_path / "keyring.key")
    try:
        with running(stopped.file.parent, "agent", "--config", str(stopped.file)) as agent:
            assert agent.wait_end() == 1
            assert "is missing, and the log holds keys that it wraps" in agent.err
            assert "Traceback" not in agent.err
        assert not stopped.key.exists()
    finally:
        (tmp_path / "keyring.key").rename(stopped.key)


def test_a_new_node_joins_only_with_an_introduction_token(tmp_path: Path) -> None:
    file = write_agent_config(tmp_path / "a", ACL_ENABLED)
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        token = bootstrap_access(agent)["SecretID"]
        _, body = ask(agent, "PUT", "/v1/acl/identity/client-introduction-token", {"TTL": "10m"}, token=token)
        assert ask(agent, "GET", "/v1/nodes", token=token) == (200, "[]")
        agent.process.terminate()
        agent.wait_end()

    # The server's own node is new too.
    environment = {"WHARF_CONFIG__CLIENT__INTRO_TOKEN": json.loads(body)["JWT"]}
    with running(tmp_path / "a", "agent", "--config", str(file), environment=environment) as agent:
        agent.wait_ready()

        def list_nodes() -> str:
            return ask(agent, "GET", "/v1/nodes", token=token)[1]

        wait_until(lambda: '"ready"' in list_nodes(), what="the node is ready")
        agent.process.terminate()
        agent.wait_end()

    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        wait_until(
            lambda: '"ready"' in ask(agent, "GET", "/v1/nodes", token=token)[1],
            what="the node is ready after it restarted with its secret",
        )


def test_dev_admits_its_own_nodes_and_prints_that_access_control_is_on(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "on.toml").write_text(ACL_ENABLED)
    with running(folder, "dev", "--port", "0", "--config", "on.toml", "--fake-nodes", "2") as agent:
        agent.wait_ready()
        token = bootstrap_access(agent)["SecretID"]

        def count_ready_nodes() -> int:
            return ask(agent, "GET", "/v1/nodes", token=token)[1].count('"Status":"ready"')

        wait_until(lambda: count_ready_nodes() == 3, what="the machine's node and both fake nodes are ready")
        node_id = json.loads(ask(agent, "GET", "/v1/nodes", token=token)[1])[0]["ID"]
        registration = {"Node": {"ID": node_id, "Name": "x"}, "SecretID": "y"}

        assert ask(agent, "PUT", f"/v1/node/{node_id}/register", registration)[0] == 403
        assert "control is on: every request needs a token" in agent.out
        assert "wharf acl bootstrap" in agent.out

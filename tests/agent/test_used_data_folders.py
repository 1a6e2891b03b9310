"""A server whose data folder has had a cluster begins no empty cluster, whichever engine it is started with.

An empty cluster has no tokens: everyone who reaches it could bootstrap its access control.
"""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, lines, run, running
from tests.agent.test_access_control import ACL_ENABLED, ask
from tests.cluster.engines.etcd_server import EtcdCluster, running_etcd
from tests.waiting import wait_until

pytestmark = pytest.mark.needs_program("etcd")

ENGINES = ("sqlite", "etcd", "memory")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def configure(folder: Path, etcd: EtcdCluster, engine: str, *, prefix: str = "", more: str = "") -> Path:
    """Write the configuration of a server with access control in the folder, and return the file."""
    folder.mkdir(exist_ok=True)
    file = folder / "wharf.toml"
    file.write_text(
        f'name = "{folder.name}"\ndata_dir = "{folder}/data"\n[ports]\nhttp = 0\n{ACL_ENABLED}'
        f'[keyring]\nfile = "{folder.parent}/keyring.key"\n[state]\nengine = "{engine}"\n[state.etcd]\n'
        f'endpoints = ["{etcd.endpoints[0]}"]\nprefix = "/{prefix or folder.parent.name}"\n[server]\nenabled = true\n{more}'
    )
    return file


def start_once(file: Path, *, should_bootstrap: bool = False) -> str:
    """Start the server until it is ready, and stop it. Return `ready`, or the error with which it ended."""
    with running(file.parent, "agent", "--config", str(file)) as agent:
        wait_until(lambda: agent.is_ready() or agent.process.poll() is not None, what="the agent is ready or has ended")
        if agent.process.poll() is None:
            if should_bootstrap:
                wait_for_management_token(agent)
            agent.signal(signal.SIGTERM)
            agent.wait_end()
            return "ready"
        assert agent.process.returncode == 1
        assert "Traceback" not in agent.err
        return lines(agent.err)[-1]


def wait_for_management_token(agent: RunningAgent) -> str:
    """Bootstrap access control as soon as the server leads, and return the secret of the first token."""

    def try_bootstrap() -> str:
        status, body = ask(agent, "PUT", "/v1/acl/bootstrap", {})
        return str(json.loads(body)["SecretID"]) if status == 200 else ""

    return wait_until(try_bootstrap, what="the first management token exists")


@pytest.mark.parametrize("first", ["sqlite", "etcd"])
def test_a_server_that_has_run_a_cluster_does_not_begin_one_with_another_engine(
    tmp_path: Path, etcd: EtcdCluster, first: str
) -> None:
    assert start_once(configure(tmp_path / "one", etcd, first), should_bootstrap=True) == "ready"

    errors = {then: start_once(configure(tmp_path / "one", etcd, then)) for then in ENGINES if then != first}

    assert len(errors) == 2
    for then, error in errors.items():
        assert f"{tmp_path}/one/data/cluster" in error, then
        assert "that this server has run a cluster" in error, then
        assert "to give up all jobs, variables, policies and tokens and begin an empty cluster" in error, then
        assert "state.engine" in error, then
    # With the right engine, the server continues.
    assert start_once(configure(tmp_path / "one", etcd, first)) == "ready"


def test_a_server_of_an_older_version_without_a_marker_does_not_begin_a_cluster_with_another_engine(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    assert start_once(configure(tmp_path / "one", etcd, "sqlite")) == "ready"
    (tmp_path / "one" / "data" / "cluster").unlink()

    errors = [start_once(configure(tmp_path / "one", etcd, engine)) for engine in ("etcd", "memory")]

    assert [f"move {tmp_path}/one/data/state away" in error for error in errors] == [True, True]


@pytest.mark.parametrize("then", ["etcd", "memory"])
def test_the_log_of_an_agent_with_engine_memory_is_not_missed(tmp_path: Path, etcd: EtcdCluster, then: str) -> None:
    assert start_once(configure(tmp_path / "one", etcd, "memory")) == "ready"

    assert start_once(configure(tmp_path / "one", etcd, then)) == "ready"


def test_a_wrong_etcd_prefix_begins_no_empty_cluster_until_the_marker_is_deleted(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    assert start_once(configure(tmp_path / "one", etcd, "etcd")) == "ready"
    file = configure(tmp_path / "one", etcd, "etcd", prefix=f"{tmp_path.name}-mistyped")

    error = start_once(file)

    assert f"etcd at {etcd.endpoints[0]} has no cluster under the prefix /{tmp_path.name}-mistyped" in error
    assert "state.etcd.prefix" in error
    (tmp_path / "one" / "data" / "cluster").unlink()
    assert start_once(file) == "ready"


def test_a_new_server_of_an_emptied_etcd_is_not_joined_by_the_servers_of_the_lost_cluster(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    file = configure(tmp_path / "one", etcd, "etcd")
    assert start_once(file) == "ready"
    etcd.ctl("del", "--prefix", f"/{tmp_path.name}")
    assert start_once(configure(tmp_path / "two", etcd, "etcd")) == "ready"

    error = start_once(file)

    assert f"{tmp_path}/one/data/cluster shows that this server belongs to the cluster" in error
    assert f"to join the other cluster, delete {tmp_path}/one/data/cluster" in error
    (tmp_path / "one" / "data" / "cluster").unlink()
    assert start_once(file) == "ready"


def test_servers_whose_etcd_is_emptied_while_they_run_wait_for_a_restored_snapshot(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    files = [configure(tmp_path / name, etcd, "etcd") for name in ("one", "two")]
    snapshot = tmp_path / "saved.snap"
    with running(tmp_path / "one", "agent", "--config", str(files[0])) as one:
        one.wait_ready()
        token = wait_for_management_token(one)
        with running(tmp_path / "two", "agent", "--config", str(files[1])) as two:
            two.wait_ready()
            assert (
                run(tmp_path, "operator", "snapshot", "save", "--config", str(files[0]), str(snapshot)).returncode == 0
            )

            etcd.ctl("del", "--prefix", f"/{tmp_path.name}")

            for server in (one, two):
                wait_until(lambda server=server: "has no cluster" in server.err, what="the server refuses to begin")  # type: ignore[misc]
            # The second refusal comes from a brain that has restarted with the empty log.
            wait_until(lambda: one.err.count("has no cluster") > 1, what="the server refuses again")
            assert [ask(server, "PUT", "/v1/acl/bootstrap", {})[0] == 200 for server in (one, two)] == [False, False]
            restored = run(
                tmp_path, "operator", "snapshot", "restore", "--yes", "--config", str(files[0]), str(snapshot)
            )
            assert restored.returncode == 0, restored.stderr
            for server in (one, two):
                wait_until(
                    lambda server=server: ask(server, "GET", "/v1/jobs", token=token)[0] == 200,  # type: ignore[misc]
                    what="the token is valid again",
                )
            assert "bootstrapped cluster" not in two.err


@pytest.fixture(scope="module")
def other_snapshot(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdCluster) -> Path:
    """Return the snapshot of a cluster. The keyring file that it needs is in the same folder."""
    folder = tmp_path_factory.mktemp("other")
    file, snapshot = configure(folder / "other", etcd, "sqlite"), folder / "other.snap"
    assert start_once(file) == "ready"
    assert run(folder, "operator", "snapshot", "save", "--config", str(file), str(snapshot)).returncode == 0
    return snapshot


def start_once_with_keyring_of(snapshot: Path, folder: Path, etcd: EtcdCluster) -> Path:
    """Start a server with a cluster of its own and stop it. It has the keyring file of the snapshot. Return its configuration."""
    shutil.copy(snapshot.parent / "keyring.key", folder.parent)
    file = configure(folder, etcd, "sqlite")
    assert start_once(file) == "ready"
    return file


def test_a_restored_snapshot_of_another_cluster_is_accepted_at_the_next_start(
    tmp_path: Path, etcd: EtcdCluster, other_snapshot: Path
) -> None:
    own, snapshot = start_once_with_keyring_of(other_snapshot, tmp_path / "own", etcd), other_snapshot

    restored = run(tmp_path, "operator", "snapshot", "restore", "--yes", "--config", str(own), str(snapshot))

    assert restored.returncode == 0, restored.stderr
    assert start_once(own) == "ready"


def test_a_snapshot_of_another_cluster_that_a_running_server_restores_is_accepted_at_the_next_start(
    tmp_path: Path, etcd: EtcdCluster, other_snapshot: Path
) -> None:
    own, snapshot = start_once_with_keyring_of(other_snapshot, tmp_path / "own", etcd), other_snapshot
    marker = tmp_path / "own" / "data" / "cluster"
    with running(tmp_path / "own", "agent", "--config", str(own)) as agent:
        agent.wait_ready()
        before = marker.read_text()

        restored = run(tmp_path, "operator", "snapshot", "restore", "--yes", "--config", str(own), str(snapshot))

        assert restored.returncode == 0, restored.stderr
        wait_until(lambda: marker.read_text() != before, what="the marker names the restored cluster")
        agent.signal(signal.SIGTERM)
        agent.wait_end()
    assert start_once(own) == "ready"


def test_a_server_that_may_begin_no_cluster_needs_a_log_with_one(tmp_path: Path, etcd: EtcdCluster) -> None:
    file = configure(tmp_path / "one", etcd, "sqlite")
    assert start_once(file) == "ready"
    file = configure(tmp_path / "one", etcd, "sqlite", more="begin_cluster = false\n")
    assert start_once(file) == "ready"
    shutil.rmtree(tmp_path / "one" / "data")  # As if its disk were not mounted.

    error = start_once(file)

    assert "server.begin_cluster is false" in error
    assert "set server.begin_cluster = true" in error


def test_a_server_whose_cluster_moved_to_etcd_does_not_start_with_its_old_log(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    snapshot, folder = tmp_path / "own.snap", tmp_path / "own"
    sqlite = configure(folder, etcd, "sqlite")
    assert start_once(sqlite) == "ready"
    assert run(tmp_path, "operator", "snapshot", "save", "--config", str(sqlite), str(snapshot)).returncode == 0
    moved = configure(folder, etcd, "etcd")
    assert (
        run(tmp_path, "operator", "snapshot", "restore", "--yes", "--config", str(moved), str(snapshot)).returncode == 0
    )
    assert start_once(moved) == "ready"
    sqlite = configure(folder, etcd, "sqlite")

    refused = start_once(sqlite)

    assert f"the log {folder}/data/state/log.db is older than the cluster of this server" in refused
    restored = run(tmp_path, "operator", "snapshot", "restore", "--yes", "--config", str(sqlite), str(snapshot))
    assert (restored.returncode, start_once(sqlite)) == (0, "ready")

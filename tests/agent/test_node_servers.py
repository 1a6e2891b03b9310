"""An agent that is only a node, with a list of servers."""

import signal
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, running
from tests.waiting import wait_until

SERVER = "[ports]\nhttp = 0\n[server]\nenabled = true\n"


def is_ready_at(server: RunningAgent) -> bool:
    nodes = server.get("/v1/nodes")
    assert isinstance(nodes, list)
    return [node["Status"] for node in nodes] == ["ready"]


def test_a_node_connects_to_the_next_server_if_the_first_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "a.toml").write_text(f'data_dir = "{tmp_path}/server/data"\n{SERVER}')
    with running(tmp_path / "server", "agent", "--config", "a.toml") as server:
        server.wait_ready()
        (tmp_path / "node").mkdir()
        (tmp_path / "node" / "a.toml").write_text(
            f'data_dir = "{tmp_path}/node/data"\n[client]\nenabled = true\nservers = ["127.0.0.1:1", "{server.address}"]\n'
        )
        with running(tmp_path / "node", "agent", "--config", "a.toml"):
            wait_until(lambda: is_ready_at(server), what="the node is ready at the second server")


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "a new node needs an introduction token"),
        ("secret-of-nobody", "the introduction token is invalid or has expired"),
    ],
)
def test_a_node_that_is_not_admitted_says_why_and_not_that_it_is_ready(tmp_path: Path, token: str, reason: str) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "a.toml").write_text(f'data_dir = "{tmp_path}/server/data"\n{SERVER}[acl]\nenabled = true\n')
    with running(tmp_path / "server", "agent", "--config", "a.toml") as server:
        server.wait_ready()
        (tmp_path / "node").mkdir()
        (tmp_path / "node" / "a.toml").write_text(
            f'data_dir = "{tmp_path}/node/data"\n[client]\nenabled = true\nservers = ["{server.address}"]\n'
            f'intro_token = "{token}"\n'
        )
        with running(tmp_path / "node", "agent", "--config", "a.toml") as node:
            wait_until(lambda: f"error=Permission denied: {reason}" in node.err, what="the node says why")
            assert "ready" not in node.out
            node.signal(signal.SIGTERM)

            assert node.wait_end() == 0

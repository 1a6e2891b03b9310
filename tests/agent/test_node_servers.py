"""An agent that is only a node, with a list of servers."""

from pathlib import Path

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

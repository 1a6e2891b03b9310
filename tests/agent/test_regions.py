"""Two real agents in two regions: global records are written in one region and replicated to the other."""

import json
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.agent.processes import RunningAgent, running
from tests.agent.test_access_control import ask, bootstrap_access
from tests.waiting import wait_until

AGENT = """
region = "{region}"
data_dir = "{folder}/data"
[ports]
http = 0
[server]
enabled = true
authoritative_region = "east"
[acl]
enabled = true
{more_acl}
{more}
"""


def write_region_config(folder: Path, region: str, *, more_acl: str = "", more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "wharf.toml"
    file.write_text(AGENT.format(region=region, folder=folder, more_acl=more_acl, more=more))
    return file


def has_token(agent: RunningAgent, token: str) -> bool:
    return ask(agent, "GET", "/v1/acl/token/self", token=token)[0] == 200


def test_global_tokens_and_namespaces_are_replicated_to_the_other_region_also_after_a_data_loss(
    tmp_path: Path,
) -> None:
    east_file = write_region_config(tmp_path / "east", "east")
    with running(tmp_path / "east", "agent", "--config", str(east_file)) as east:
        east.wait_ready()
        root = bootstrap_access(east)["SecretID"]
        west_file = write_region_config(
            tmp_path / "west",
            "west",
            more_acl=f'replication_token = "{root}"',
            more=f'[regions.east]\nservers = ["{east.address}"]',
        )
        with running(tmp_path / "west", "agent", "--config", str(west_file)) as west:
            west.wait_ready()
            wait_until(lambda: has_token(west, root), what="the west region accepts the first token")

            # Requested in the west, written in the east, and replicated back to the west.
            status, created = ask(west, "PUT", "/v1/acl/token", {"Type": "management", "Global": True}, token=root)
            assert status == 200, created
            secret = json.loads(created)["SecretID"]
            assert has_token(east, secret)
            wait_until(lambda: has_token(west, secret), what="the west region accepts the new token")

            assert ask(east, "PUT", "/v1/namespace", {"Name": "shop"}, token=secret)[0] == 200
            wait_until(
                lambda: ask(west, "GET", "/v1/namespace/shop", token=secret)[0] == 200,
                what="the namespace exists in the west region",
            )

            ask(east, "DELETE", f"/v1/acl/token/{json.loads(created)['AccessorID']}", token=root)
            wait_until(lambda: not has_token(west, secret), what="the west region rejects the deleted token")
            # Read while the agent runs, so that the write-ahead log is included.
            file_contents = b"".join(
                path.read_bytes() for path in (tmp_path / "west" / "data").rglob("*") if path.is_file()
            )
            assert (secret.encode() in file_contents, root.encode() in file_contents) == (False, False)
            assert root not in west.err


def test_a_websocket_for_another_region_is_relayed_to_it(tmp_path: Path) -> None:
    east_file = write_region_config(tmp_path / "east", "east")
    path = "/v1/client/allocation/11111111-1111-4111-8111-111111111111/exec?task=t&command=%5B%22ls%22%5D&region=east"
    with running(tmp_path / "east", "agent", "--config", str(east_file)) as east:
        east.wait_ready()
        root = bootstrap_access(east)["SecretID"]
        servers = f'[regions.east]\nservers = ["{east.address}"]'
        west_file = write_region_config(
            tmp_path / "west", "west", more_acl=f'replication_token = "{root}"', more=servers
        )
        with running(tmp_path / "west", "agent", "--config", str(west_file)) as west:
            west.wait_ready()
            address = west.address.replace("http", "ws", 1) + path

            def request_exec(token: str) -> tuple[int, str]:
                with connect(address, additional_headers={"X-Cluster-Token": token}, proxy=None) as socket:
                    with pytest.raises(ConnectionClosed):
                        socket.recv(timeout=30)
                    return socket.close_code or 0, socket.close_reason or ""

            assert request_exec(root) == (1008, 'Unknown allocation "11111111-1111-4111-8111-111111111111"')
            assert request_exec("11111111-1111-4111-8111-111111111111") == (1008, "Permission denied")

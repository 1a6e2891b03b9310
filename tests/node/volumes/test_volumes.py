"""Volumes of a host: made, told of and taken away through the node's channel, and used by tasks."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import ANode, a_node, a_raw_job, a_server, find_termination
from tests.waiting import wait_until

WAITS = "while true; do sleep 0.05; done"
PLUGIN = """\
#!/bin/sh
case "$1" in
fingerprint) echo '{"version": "2.1"}' ;;
create)
    case "$DHV_PARAMETERS" in *refuse*) echo "the disk is full" >&2; exit 3 ;; esac
    mkdir -p "$DHV_VOLUMES_DIR/$DHV_VOLUME_ID-$DHV_VOLUME_NAME"
    echo "{\\"path\\": \\"$DHV_VOLUMES_DIR/$DHV_VOLUME_ID-$DHV_VOLUME_NAME\\", \\"bytes\\": $DHV_CAPACITY_MIN_BYTES}" ;;
delete) rmdir "$DHV_CREATED_PATH" ;;
esac
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ANode]:
    folder = tmp_path_factory.mktemp("volumes")
    for name in ("plain", "frozen"):
        (folder / "node" / "static" / name).mkdir(parents=True)
        (folder / "node" / "static" / name / "told").write_text(name)
    plugins = folder / "node" / "host_volume_plugins"
    plugins.mkdir()
    for name, text in (("folders", PLUGIN), ("broken", "#!/bin/sh\nexit 1\n")):
        (plugins / name).write_text(text)
        (plugins / name).chmod(0o755)
    with a_server(folder / "server") as server, a_node(server, folder / "node") as it:
        wait_reachable(it)
        yield it


def wait_reachable(node: ANode) -> None:
    """Its channel is open: it can be asked to do something."""
    here = asked(node, "GET", "/v1/nodes")[1][0]["ID"]
    path = f"/v1/client/metadata?node_id={here}"
    wait_until(lambda: asked(node, "GET", path)[0] == 200, what="the node can be reached")


def asked(node: ANode, method: str, path: str, body: object = None) -> tuple[int, Any]:
    sent = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(node.server.address + path, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
            text = reply.read()
            return reply.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wanted(name: str, **fields: Any) -> dict[str, Any]:
    capabilities = [{"AccessMode": "single-node-multi-writer", "AttachmentMode": "file-system"},
                    {"AccessMode": "single-node-reader-only", "AttachmentMode": "file-system"}]  # fmt: skip
    return {"Volume": {"Name": name, "RequestedCapabilities": capabilities, **fields}}


def created(node: ANode, name: str, **fields: Any) -> dict[str, Any]:
    status, reply = asked(node, "PUT", "/v1/volume/host/create", wanted(name, **fields))
    assert status == 200, reply
    return ready(node, reply["Volume"]["ID"])


def volume(node: ANode, id: str) -> dict[str, Any]:
    found: dict[str, Any] = asked(node, "GET", f"/v1/volume/host/{id}")[1]
    return found


def ready(node: ANode, id: str) -> dict[str, Any]:
    wait_until(lambda: volume(node, id)["State"] == "ready", what=f"volume {id} is ready")
    return volume(node, id)


def a_job(id: str, script: str, volume: str, *, reads: bool = False, **mount: Any) -> dict[str, Any]:
    mounts = [{"Volume": "data", "Destination": "/data", **mount}]
    job = a_raw_job(id, script, VolumeMounts=mounts, KillSignal="SIGKILL")
    mode = {} if reads else {"AccessMode": "single-node-multi-writer"}
    request = {"Type": "host", "Source": volume, "ReadOnly": reads, "AttachmentMode": "file-system", **mode}
    job["TaskGroups"][0]["Volumes"] = {"data": request}
    return job


def is_in(node: ANode, job: str, *statuses: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = node.allocations(job)
        return found[0] if found and found[0]["ClientStatus"] in statuses else None

    return wait_until(look, what=f"{job} is {statuses}")


def said(node: ANode, allocation: dict[str, Any]) -> str:
    return (node.folder / "alloc" / str(allocation["ID"]) / "alloc/logs/t.stdout.0").read_text()


def test_a_volume_is_made_used_kept_over_the_death_of_the_agent_and_taken_away_when_unused(node: ANode) -> None:
    made = created(node, "kept", Parameters={"mode": "0755"})
    node.run(a_job("writes", f"echo it >data/file; {WAITS}", "kept"))
    is_in(node, "writes", "running")
    file = Path(made["HostPath"]) / "file"
    wait_until(lambda: file.exists() and file.read_text() == "it\n", what="it was written")

    refused = asked(node, "DELETE", f"/v1/volume/host/{made['ID']}")
    node.kill_agent()
    node.wait_ready()
    wait_reachable(node)
    node.run(a_job("reads", "cat data/file", "kept", reads=True))
    reads = is_in(node, "reads", "complete", "failed")

    assert (refused[0], "in use by allocations" in refused[1]) == (400, True)
    assert ("it\n", "0") == (said(node, reads), find_termination(reads)["exit_code"])
    asked(node, "DELETE", "/v1/job/writes")
    is_in(node, "writes", "complete")
    assert 200 == asked(node, "DELETE", f"/v1/volume/host/{made['ID']}")[0]
    assert (False, 404) == (Path(made["HostPath"]).exists(), asked(node, "GET", f"/v1/volume/host/{made['ID']}")[0])
    has = asked(node, "GET", "/v1/nodes")[1][0]["ID"]
    wait_until(
        lambda: "kept" not in asked(node, "GET", f"/v1/node/{has}")[1]["HostVolumes"],
        what="the node says so",
    )


@pytest.mark.needs("mounts")
def test_what_is_only_to_be_read_cannot_be_written(node: ANode) -> None:
    script = "cat data/told; echo new >data/new || echo refused"
    node.run(a_job("plain", script, "plain"))
    node.run(a_job("asks-to-read", script, "plain", ReadOnly=True))
    node.run(a_job("is-frozen", script, "frozen", reads=True))

    told = [said(node, is_in(node, job, "complete", "failed")) for job in ("plain", "asks-to-read", "is-frozen")]

    assert ["plain", "plainrefused\n", "frozenrefused\n"] == told


def test_a_folder_that_is_there_is_registered_and_not_taken_away(node: ANode, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    here = asked(node, "GET", "/v1/nodes")[1][0]["ID"]
    where = {"NodeID": here, "HostPath": str(tmp_path)}
    missing = asked(node, "PUT", "/v1/volume/host/register", wanted("gone", **where | {"HostPath": "/not/there"}))
    status, reply = asked(node, "PUT", "/v1/volume/host/register", wanted("old", **where))
    made = ready(node, reply["Volume"]["ID"])
    again = asked(node, "PUT", "/v1/volume/host/create", wanted("old"))

    node.run(a_job("finds", "cat data/file", "old", reads=True))

    assert (400, "there is nothing at /not/there on this node") == (missing[0], missing[1].rpartition(": ")[2])
    assert (400, 'has a volume "old" already') == (again[0], again[1][again[1].find("has") : again[1].find(" (")])
    assert (200, "old") == (status, said(node, is_in(node, "finds", "complete", "failed")))
    assert 200 == asked(node, "DELETE", f"/v1/volume/host/{made['ID']}")[0]
    assert "old" == (tmp_path / "file").read_text()


def test_a_plugin_is_a_program_that_makes_and_takes_away_volumes(node: ANode) -> None:
    made = created(node, "ours", PluginID="folders", RequestedCapacityMinBytes=4096)
    no_room = asked(node, "PUT", "/v1/volume/host/create", wanted("no", PluginID="folders", Parameters={"a": "refuse"}))
    broken = asked(node, "PUT", "/v1/volume/host/create", wanted("no", PluginID="broken"))
    here = asked(node, "GET", "/v1/nodes")[1][0]["ID"]
    attributes = asked(node, "GET", f"/v1/node/{here}")[1]["Attributes"]

    assert (4096, f"{made['ID']}-ours") == (made["CapacityBytes"], Path(made["HostPath"]).name)
    assert (
        400,
        "volume no cannot be made: plugin folders failed to create with exit code 3: the disk is full",
    ) == no_room
    assert (400, 'no node can create the volume: without the plugin "broken" (1)') == broken
    assert {"folders": "2.1", "mkdir": "1.0.0"} == {
        name.split(".")[2]: version for name, version in attributes.items() if name.startswith("plugins.host_volume.")
    }
    assert [made["ID"]] == [each["ID"] for each in asked(node, "GET", "/v1/volumes?type=host")[1]]
    assert 200 == asked(node, "DELETE", f"/v1/volume/host/{made['ID']}")[0]
    assert not Path(made["HostPath"]).exists()

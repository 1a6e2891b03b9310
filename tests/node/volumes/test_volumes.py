"""Host volumes: created, registered and deleted through the node channel, and used by tasks."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.node.nodes import NodeProcess, build_raw_job, find_termination, run_node, run_server
from tests.waiting import wait_until

WAIT_FOREVER = "while true; do sleep 0.05; done"
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
SLOW_PLUGIN = """\
#!/bin/sh
case "$1" in
fingerprint) echo '{"version": "1"}' ;;
create) mkdir -p "$DHV_VOLUMES_DIR/$DHV_VOLUME_ID"; echo "{\\"path\\": \\"$DHV_VOLUMES_DIR/$DHV_VOLUME_ID\\"}" ;;
delete)
    touch "$DHV_VOLUMES_DIR/begun"
    while ! [ -e "$DHV_VOLUMES_DIR/fail" ]; do
        if [ -e "$DHV_VOLUMES_DIR/succeed" ]; then rm -r "$DHV_CREATED_PATH"; exit 0; fi
        sleep 0.05
    done
    echo "the disk is read-only" >&2; exit 1 ;;
esac
"""
"""Its deletions wait for a file that decides about their result."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("volumes")
    for name in ("plain", "frozen"):
        (folder / "node" / "static" / name).mkdir(parents=True)
        (folder / "node" / "static" / name / "content").write_text(name)
    plugins = folder / "node" / "host_volume_plugins"
    plugins.mkdir()
    for name, text in (("folders", PLUGIN), ("slow", SLOW_PLUGIN), ("broken", "#!/bin/sh\nexit 1\n")):
        (plugins / name).write_text(text)
        (plugins / name).chmod(0o755)
    with run_server(folder / "server") as server, run_node(server, folder / "node") as running_node:
        wait_reachable(running_node)
        yield running_node


def wait_reachable(node: NodeProcess) -> None:
    """Wait until the node channel is open."""
    node_id = request(node, "GET", "/v1/nodes")[1][0]["ID"]
    path = f"/v1/client/metadata?node_id={node_id}"
    wait_until(lambda: request(node, "GET", path)[0] == 200, what="the node can be reached")


def request(node: NodeProcess, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    http_request = urllib.request.Request(node.server.address + path, data, method=method)
    try:
        with urllib.request.urlopen(http_request, timeout=ANSWERED_WITHIN_S) as reply:
            text = reply.read()
            return reply.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def build_volume(name: str, **fields: Any) -> dict[str, Any]:
    capabilities = [{"AccessMode": "single-node-multi-writer", "AttachmentMode": "file-system"},
                    {"AccessMode": "single-node-reader-only", "AttachmentMode": "file-system"}]  # fmt: skip
    return {"Volume": {"Name": name, "RequestedCapabilities": capabilities, **fields}}


def create_volume(node: NodeProcess, name: str, **fields: Any) -> dict[str, Any]:
    status, reply = request(node, "PUT", "/v1/volume/host/create", build_volume(name, **fields))
    assert status == 200, reply
    return wait_ready_volume(node, reply["Volume"]["ID"])


def read_volume(node: NodeProcess, id: str) -> dict[str, Any]:
    found: dict[str, Any] = request(node, "GET", f"/v1/volume/host/{id}")[1]
    return found


def wait_ready_volume(node: NodeProcess, id: str) -> dict[str, Any]:
    wait_until(lambda: read_volume(node, id)["State"] == "ready", what=f"volume {id} is ready")
    return read_volume(node, id)


def build_job(id: str, script: str, volume: str, *, reads: bool = False, **mount: Any) -> dict[str, Any]:
    mounts = [{"Volume": "data", "Destination": "/data", **mount}]
    job = build_raw_job(id, script, VolumeMounts=mounts, KillSignal="SIGKILL")
    mode = {} if reads else {"AccessMode": "single-node-multi-writer"}
    request = {"Type": "host", "Source": volume, "ReadOnly": reads, "AttachmentMode": "file-system", **mode}
    job["TaskGroups"][0]["Volumes"] = {"data": request}
    return job


def wait_for_status(node: NodeProcess, job: str, *statuses: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        found = node.allocations(job)
        return found[0] if found and found[0]["ClientStatus"] in statuses else None

    return wait_until(find, what=f"{job} is {statuses}")


def read_output(node: NodeProcess, allocation: dict[str, Any]) -> str:
    return (node.folder / "alloc" / str(allocation["ID"]) / "alloc/logs/t.stdout.0").read_text()


def test_a_volume_survives_a_killed_agent_and_is_deleted_only_when_unused(node: NodeProcess) -> None:
    volume = create_volume(node, "kept", Parameters={"mode": "0755"})
    node.run(build_job("writes", f"echo it >data/file; {WAIT_FOREVER}", "kept"))
    wait_for_status(node, "writes", "running")
    file = Path(volume["HostPath"]) / "file"
    wait_until(lambda: file.exists() and file.read_text() == "it\n", what="the file is written")

    deletion = request(node, "DELETE", f"/v1/volume/host/{volume['ID']}")
    node.kill_agent()
    node.wait_ready()
    wait_reachable(node)
    node.run(build_job("reads", "cat data/file", "kept", reads=True))
    reads = wait_for_status(node, "reads", "complete", "failed")

    assert (deletion[0], "in use by allocations" in deletion[1]) == (400, True)
    assert ("it\n", "0") == (read_output(node, reads), find_termination(reads)["exit_code"])
    request(node, "DELETE", "/v1/job/writes")
    wait_for_status(node, "writes", "complete")
    assert 200 == request(node, "DELETE", f"/v1/volume/host/{volume['ID']}")[0]
    assert (False, 404) == (
        Path(volume["HostPath"]).exists(),
        request(node, "GET", f"/v1/volume/host/{volume['ID']}")[0],
    )
    node_id = request(node, "GET", "/v1/nodes")[1][0]["ID"]
    wait_until(
        lambda: "kept" not in request(node, "GET", f"/v1/node/{node_id}")[1]["HostVolumes"],
        what="the node reports the deletion",
    )


@pytest.mark.needs("mounts")
def test_a_read_only_volume_cannot_be_written(node: NodeProcess) -> None:
    script = "cat data/content; echo new >data/new || echo refused"
    node.run(build_job("plain", script, "plain"))
    node.run(build_job("asks-to-read", script, "plain", ReadOnly=True))
    node.run(build_job("is-frozen", script, "frozen", reads=True))

    outputs = [
        read_output(node, wait_for_status(node, job, "complete", "failed"))
        for job in ("plain", "asks-to-read", "is-frozen")
    ]

    assert ["plain", "plainrefused\n", "frozenrefused\n"] == outputs


def test_an_existing_folder_can_be_registered_and_is_not_deleted(node: NodeProcess, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    node_id = request(node, "GET", "/v1/nodes")[1][0]["ID"]
    location = {"NodeID": node_id, "HostPath": str(tmp_path)}
    missing = request(
        node, "PUT", "/v1/volume/host/register", build_volume("gone", **location | {"HostPath": "/not/there"})
    )
    status, reply = request(node, "PUT", "/v1/volume/host/register", build_volume("old", **location))
    volume = wait_ready_volume(node, reply["Volume"]["ID"])
    second = request(node, "PUT", "/v1/volume/host/create", build_volume("old"))

    node.run(build_job("finds", "cat data/file", "old", reads=True))

    assert (400, "/not/there does not exist on this node") == (missing[0], missing[1].rpartition(": ")[2])
    assert (400, 'has a volume "old" already') == (second[0], second[1][second[1].find("has") : second[1].find(" (")])
    assert (200, "old") == (status, read_output(node, wait_for_status(node, "finds", "complete", "failed")))
    assert 200 == request(node, "DELETE", f"/v1/volume/host/{volume['ID']}")[0]
    assert "old" == (tmp_path / "file").read_text()


def test_a_plugin_creates_and_deletes_volumes(node: NodeProcess) -> None:
    volume = create_volume(node, "ours", PluginID="folders", RequestedCapacityMinBytes=4096)
    full_disk = request(
        node, "PUT", "/v1/volume/host/create", build_volume("no", PluginID="folders", Parameters={"a": "refuse"})
    )
    broken = request(node, "PUT", "/v1/volume/host/create", build_volume("no", PluginID="broken"))
    node_id = request(node, "GET", "/v1/nodes")[1][0]["ID"]
    attributes = request(node, "GET", f"/v1/node/{node_id}")[1]["Attributes"]

    assert (4096, f"{volume['ID']}-ours") == (volume["CapacityBytes"], Path(volume["HostPath"]).name)
    assert (
        400,
        "volume no not created: plugin folders failed to create with exit code 3: the disk is full",
    ) == full_disk
    assert (400, 'no node can create the volume: without the plugin "broken" (1)') == broken
    assert {"folders": "2.1", "mkdir": "1.0.0", "slow": "1"} == {
        name.split(".")[2]: version for name, version in attributes.items() if name.startswith("plugins.host_volume.")
    }
    assert [volume["ID"]] == [each["ID"] for each in request(node, "GET", "/v1/volumes?type=host")[1]]
    assert 200 == request(node, "DELETE", f"/v1/volume/host/{volume['ID']}")[0]
    assert not Path(volume["HostPath"]).exists()


class SlowDeletion:
    """The deletion of a volume that the plugin `slow` has begun, and ends when the test says how."""

    def __init__(self, node: NodeProcess, volume: dict[str, Any]) -> None:
        self._folder = Path(volume["HostPath"]).parent
        for name in ("begun", "fail", "succeed"):
            (self._folder / name).unlink(missing_ok=True)
        self._reply: tuple[int, Any] = (0, None)
        self._thread = threading.Thread(target=self._delete, args=(node, volume["ID"]))
        self._thread.start()
        wait_until((self._folder / "begun").exists, what="the plugin has begun to delete the volume")

    def _delete(self, node: NodeProcess, volume_id: str) -> None:
        self._reply = request(node, "DELETE", f"/v1/volume/host/{volume_id}")

    def end(self, result: str) -> tuple[int, Any]:
        """Let the plugin `fail` or `succeed`, and return the reply to the request."""
        (self._folder / result).touch()
        self._thread.join(ANSWERED_WITHIN_S)
        return self._reply


def wait_blocked(node: NodeProcess, job: str) -> None:
    """Wait until the job is evaluated and waits for a node."""
    path = f"/v1/job/{job}/evaluations"
    wait_until(
        lambda: any(each["Status"] == "blocked" for each in request(node, "GET", path)[1]), what=f"{job} is blocked"
    )


def test_no_job_is_placed_on_a_volume_that_is_being_deleted_until_that_failed(node: NodeProcess) -> None:
    volume = create_volume(node, "contested", PluginID="slow")
    deletion = SlowDeletion(node, volume)

    node.run(build_job("late", f"echo it >data/file; {WAIT_FOREVER}", "contested"))
    wait_blocked(node, "late")
    allocations_during_deletion = node.allocations("late")
    status, text = deletion.end("fail")
    wait_for_status(node, "late", "running")

    assert allocations_during_deletion == []
    assert (status, text.rpartition(": ")[2]) == (400, "the disk is read-only")
    assert read_volume(node, volume["ID"])["State"] == "ready"
    # While an allocation of a purged job has not ended, no volume of its node can be deleted.
    request(node, "DELETE", "/v1/job/late")
    wait_for_status(node, "late", "complete")


def test_a_volume_whose_deletion_was_interrupted_is_unavailable_until_it_is_deleted_again(node: NodeProcess) -> None:
    volume = create_volume(node, "half", PluginID="slow")
    deletion = SlowDeletion(node, volume)

    node.kill_agent()
    interrupted_status, _ = deletion.end("fail")
    node.wait_ready()
    wait_reachable(node)
    state = read_volume(node, volume["ID"])["State"]
    repeated_status, _ = SlowDeletion(node, volume).end("succeed")

    assert (interrupted_status >= 400, state, repeated_status) == (True, "unavailable", 200)
    assert request(node, "GET", f"/v1/volume/host/{volume['ID']}")[0] == 404
    assert not Path(volume["HostPath"]).exists()

"""A volume whose deletion was interrupted stays unavailable until it is deleted or created: a part of its data may be gone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.nodes.channel import ChannelRequest
from wharf.contract.wire.volumes import NodeVolume
from wharf.node.settings import NodeLocation, NodeSettings
from wharf.node.volumes.node_volumes import VOLUMES_FILE, NodeVolumes, StoredVolume

FAILING_PLUGIN = """\
#!/bin/sh
case "$1" in
fingerprint) echo '{"version": "1"}' ;;
*) exit 1 ;;
esac
"""


async def no_input() -> AsyncIterator[bytes]:
    for part in list[bytes]():
        yield part


async def restore_volumes(folder: Path) -> NodeVolumes:
    location = NodeLocation("n1", "dc1", "global", folder / "state", folder / "alloc")
    volumes = NodeVolumes(
        NodeSettings(host_volume_plugin_dir=str(folder / "plugins")),
        location,
        "n1",
        report_event=lambda *_arguments, **_details: None,
        on_change=lambda: None,
        list_users=lambda _name: [],
    )
    await volumes.restore()
    return volumes


@pytest.mark.parametrize("verb", ["volume_create", "volume_delete"])
def test_a_failed_request_does_not_make_a_volume_available_whose_deletion_was_interrupted(
    tmp_path: Path, verb: str
) -> None:
    for name in ("state", "plugins", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "plugins" / "failing").write_text(FAILING_PLUGIN)
    (tmp_path / "plugins" / "failing").chmod(0o755)
    volume = NodeVolume(id="v1", name="data", plugin_id="failing", host_path=str(tmp_path / "data"))
    interrupted = StoredVolume(volume, is_created=True, is_deleting=True)
    (tmp_path / "state" / VOLUMES_FILE).write_bytes(msgspec.json.encode({"v1": interrupted}))

    async def send_request() -> list[str]:
        volumes = await restore_volumes(tmp_path)
        request = ChannelRequest(1, verb, "", {}, msgspec.json.encode(volume))
        with pytest.raises(Refusal, match="plugin failing failed"):
            await volumes.handlers()[verb](request, no_input())
        return list(volumes.by_name)

    available = asyncio.run(send_request())

    stored = msgspec.json.decode((tmp_path / "state" / VOLUMES_FILE).read_bytes(), type=dict[str, StoredVolume])
    assert (available, stored) == ([], {"v1": interrupted})

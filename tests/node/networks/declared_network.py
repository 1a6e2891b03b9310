"""A network that an operator declares, with a plugin that is a shell script and records its calls."""

import json
from pathlib import Path

NAME, TTL, ADDRESS = "office", "77", "192.0.2.7"
PLUGIN = """#!/bin/sh
cd {folder}
[ "$CNI_COMMAND" ] || {{ echo "CNI desk plugin v0.0.1" >&2; exit; }}
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_ARGS" >>calls
case $CNI_COMMAND in
DEL) rm -f connected/"$CNI_CONTAINERID" ;;
ADD)
    if [ -e fails ]; then echo '{{"code": 11, "msg": "all desks are taken", "details": "ask for another"}}'; exit 1; fi
    touch connected/"$CNI_CONTAINERID"
    if mv hangs hung 2>/dev/null; then while [ -e hung ]; do sleep 0.1; done; fi
    nsenter --net="$CNI_NETNS" sh -c 'echo {ttl} >/proc/sys/net/ipv4/ip_default_ttl' || exit 1
    echo '{{"cniVersion": "0.4.0", "ips": [{{"version": "4", "address": "{address}/24"}}]}}' ;;
esac
"""


def declare(node: Path) -> None:
    """Declare the network in the folder of a node that has not started."""
    folder = node / "cni"
    for part in ("bin", "config", "connected"):
        (folder / part).mkdir(parents=True)
    plugin = folder / "bin" / "desk"
    plugin.write_text(PLUGIN.format(folder=folder, ttl=TTL, address=ADDRESS))
    plugin.chmod(0o755)
    network = {"cniVersion": "0.4.0", "name": NAME, "plugins": [{"type": "desk"}]}
    (folder / "config" / "office.conflist").write_text(json.dumps(network))


class DeclaredNetwork:
    """The declared network of a node, as its plugin sees it."""

    def __init__(self, node: Path) -> None:
        self.folder = node / "cni"

    def list_commands(self, allocation: str) -> list[str]:
        """Return the commands that the plugin received for an allocation, in order."""
        words = [line.split() for line in (self.folder / "calls").read_text().splitlines()]
        return [command for command, id, *_ in words if id == allocation]

    def list_connected(self) -> list[str]:
        """Return the ids of the allocations that are connected."""
        return [path.name for path in (self.folder / "connected").iterdir()]

    def start_failing(self) -> None:
        (self.folder / "fails").touch()

    def stop_failing(self) -> None:
        (self.folder / "fails").unlink()

    def hang_once(self) -> None:
        (self.folder / "hangs").touch()

    @property
    def is_hanging(self) -> bool:
        return (self.folder / "hung").exists()

    def stop_hanging(self) -> None:
        (self.folder / "hung").unlink(missing_ok=True)

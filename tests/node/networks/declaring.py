"""A network as an operator declares it, with a plugin of a few lines: what it makes can be seen by tasks and by tests."""

import json
from pathlib import Path

NAME, TTL, ADDRESS = "office", "77", "192.0.2.7"
PLUGIN = """#!/bin/sh
cd {folder}
[ "$CNI_COMMAND" ] || {{ echo "CNI desk plugin v0.0.1" >&2; exit; }}
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_ARGS" >>asked
case $CNI_COMMAND in
DEL) rm -f given/"$CNI_CONTAINERID" ;;
ADD)
    if [ -e refuses ]; then echo '{{"code": 11, "msg": "all desks are taken", "details": "ask for another"}}'; exit 1; fi
    touch given/"$CNI_CONTAINERID"
    if mv hangs hung 2>/dev/null; then while [ -e hung ]; do sleep 0.1; done; fi
    nsenter --net="$CNI_NETNS" sh -c 'echo {ttl} >/proc/sys/net/ipv4/ip_default_ttl' || exit 1
    echo '{{"cniVersion": "0.4.0", "ips": [{{"version": "4", "address": "{address}/24"}}]}}' ;;
esac
"""


def declare(node: Path) -> None:
    """In the folder of a node that has not begun."""
    folder = node / "cni"
    for part in ("bin", "config", "given"):
        (folder / part).mkdir(parents=True)
    plugin = folder / "bin" / "desk"
    plugin.write_text(PLUGIN.format(folder=folder, ttl=TTL, address=ADDRESS))
    plugin.chmod(0o755)
    network = {"cniVersion": "0.4.0", "name": NAME, "plugins": [{"type": "desk"}]}
    (folder / "config" / "office.conflist").write_text(json.dumps(network))


class Office:
    """The declared network of a node, from the plugin's side."""

    def __init__(self, node: Path) -> None:
        self.folder = node / "cni"

    def asked(self, allocation: str) -> list[str]:
        """What the plugin was told to do for an allocation, in order."""
        words = [line.split() for line in (self.folder / "asked").read_text().splitlines()]
        return [command for command, id, *_ in words if id == allocation]

    def given(self) -> list[str]:
        """For which allocations something is there now."""
        return [path.name for path in (self.folder / "given").iterdir()]

    def refuse(self) -> None:
        (self.folder / "refuses").touch()

    def refuse_no_more(self) -> None:
        (self.folder / "refuses").unlink()

    def hang_once(self) -> None:
        (self.folder / "hangs").touch()

    @property
    def hangs(self) -> bool:
        return (self.folder / "hung").exists()

    def hang_no_more(self) -> None:
        (self.folder / "hung").unlink(missing_ok=True)

"""Removal of the control groups that a killed node leaves behind."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
NODES: Final = ("node/node.json", "*/node/node.json", "*/*/node/node.json")


def remove_groups_of(node: str) -> None:
    """Remove the node's empty control groups, in all hierarchies of cgroup v1 and in that of v2."""
    for folder in (ROOT / "wharf" / node, *ROOT.glob(f"*/wharf/{node}")):
        for group in (*folder.glob("*/"), folder):
            with suppress(OSError):
                group.rmdir()


def remove_groups_below(folder: Path) -> None:
    """Remove the control groups of all nodes whose data is in a test's folder."""
    for pattern in NODES:
        for file in folder.glob(pattern):
            with suppress(ValueError, KeyError, IsADirectoryError):
                remove_groups_of(str(json.loads(file.read_text())["id"]))

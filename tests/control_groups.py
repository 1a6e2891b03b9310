"""What a node that was killed leaves of its control groups: it cannot take them away any more."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
NODES: Final = ("node/node.json", "*/node/node.json", "*/*/node/node.json")


def remove_groups_of(node: str) -> None:
    """In all trees of the first version, and in the one of the second. Those that hold a process stay."""
    for folder in (ROOT / "wharf" / node, *ROOT.glob(f"*/wharf/{node}")):
        for group in (*folder.glob("*/"), folder):
            with suppress(OSError):
                group.rmdir()


def remove_groups_below(folder: Path) -> None:
    """Of the nodes whose data are in a test's folder."""
    for pattern in NODES:
        for file in folder.glob(pattern):
            with suppress(ValueError, KeyError):
                remove_groups_of(str(json.loads(file.read_text())["id"]))

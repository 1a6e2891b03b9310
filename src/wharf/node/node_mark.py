"""Marks of networks and containers: which node they belong to, and whether that node's data folder still exists.

A network or container outlives the processes of its node. So it carries the id and the state folder of its node, by which
a later agent can prove that the node is lost.
"""

import enum
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from wharf.node.credentials import NodeCredentials

NODE_IDENTITY_FILE: Final = "node.json"
"""The file with the id of a node, in its state folder."""


class FolderLoss(enum.Enum):
    """What has happened to a folder that a process, a network or a container uses."""

    NONE = enum.auto()  # It exists, or that cannot be known.
    DELETED = enum.auto()
    ABSENT = enum.auto()
    """Its path leads to nothing or to another folder. It may come back."""


class NodeMark(NamedTuple):
    """The node that a network or container belongs to."""

    node_id: str
    state_folder: str = ""
    """Empty if it is unknown: marks of older versions do not contain it."""


class MarkedContainer(NamedTuple):
    """A container of any node of this machine."""

    id: str
    owner: NodeMark
    log_folder: str = ""
    """Empty if the task has no log files."""


def build_node_mark(node_id: str, state_folder: Path) -> NodeMark:
    """Return the mark of this machine's node. The folder is included only if it contains the id of the node."""
    is_stored = find_node_loss(NodeMark(node_id, str(state_folder))) is FolderLoss.NONE
    return NodeMark(node_id, str(state_folder.absolute()) if is_stored else "")


def find_node_loss(mark: NodeMark) -> FolderLoss:
    """Return whether the state folder of the mark still is the folder of its node."""
    try:
        content = Path(mark.state_folder, NODE_IDENTITY_FILE).read_bytes()
        is_own = msgspec.json.decode(content, type=NodeCredentials).id == mark.node_id
    except (FileNotFoundError, NotADirectoryError):
        return FolderLoss.ABSENT
    except (OSError, msgspec.MsgspecError, ValueError):
        return FolderLoss.NONE
    return FolderLoss.NONE if is_own else FolderLoss.ABSENT


def find_log_folder_loss(container: MarkedContainer) -> FolderLoss:
    """Return whether the log folder of a container exists. Only this can be known of containers of older versions."""
    try:
        os.stat(container.log_folder)
    except (FileNotFoundError, NotADirectoryError):
        return FolderLoss.ABSENT
    except (OSError, ValueError):
        return FolderLoss.NONE
    return FolderLoss.NONE

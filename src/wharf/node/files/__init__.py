"""Reads the files of an allocation for remote callers: lists, contents, growing files, and logs that span several
files.

Shows nothing outside the allocation's folder, even if a task creates links that lead there, and no secrets. Writes nothing.
"""

from wharf.node.files.folder import ReadOnlyFolder
from wharf.node.files.streams import (
    FileFrame,
    ReadOrigin,
    TaskLogPosition,
    encode_frames,
    extract_data,
    follow_file,
    follow_logs,
    parse_log_position,
)

__all__ = [
    "FileFrame",
    "ReadOnlyFolder",
    "ReadOrigin",
    "TaskLogPosition",
    "encode_frames",
    "extract_data",
    "follow_file",
    "follow_logs",
    "parse_log_position",
]

"""The files of an allocation, read from afar: lists, parts, what is written while one looks, and logs over all their files.

Responsible for showing what lies in an allocation's folder and nothing beside it, whatever links a task makes there.
Secrets are not read. It writes nothing.
"""

from wharf.node.files.folder import ReadOnlyFolder
from wharf.node.files.streams import FileFrame, ReadOrigin, encode_frames, extract_data, follow_file, follow_logs

__all__ = ["FileFrame", "ReadOnlyFolder", "ReadOrigin", "encode_frames", "extract_data", "follow_file", "follow_logs"]

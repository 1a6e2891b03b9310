"""The files of an allocation, read from afar: lists, parts, what is written while one looks, and logs over all their files.

Responsible for showing what lies in an allocation's folder and nothing beside it, whatever links a task makes there.
Secrets are not read. It writes nothing.
"""

from wharf.node.files.folder import Folder
from wharf.node.files.following import Origin, follow_file, follow_logs
from wharf.node.files.frames import Frame, encoded, plain

__all__ = ["Folder", "Frame", "Origin", "encoded", "follow_file", "follow_logs", "plain"]

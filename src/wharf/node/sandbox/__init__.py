"""The sandbox around a host program: its filesystem, namespaces and privileges.

It is set up by standard programs and a few lines of shell, in namespaces that end with the program, so nothing needs
cleanup.
"""

from wharf.node.sandbox.launcher import (
    EntryCommand,
    LaunchCommand,
    SandboxSpec,
    build_entry_command,
    build_launch_command,
)
from wharf.node.sandbox.privileges import (
    DEFAULT_CAPABILITIES,
    KNOWN_CAPABILITIES,
    PrivilegeError,
    ProcessPrivileges,
    UnknownPrivilege,
    read_process_privileges,
    resolve_capabilities,
    resolve_privileges,
)
from wharf.node.sandbox.root_filesystem import DEFAULT_FOLDERS, BindMount, RootFilesystem, RootFilesystemError

__all__ = [
    "DEFAULT_CAPABILITIES",
    "DEFAULT_FOLDERS",
    "KNOWN_CAPABILITIES",
    "BindMount",
    "EntryCommand",
    "LaunchCommand",
    "PrivilegeError",
    "ProcessPrivileges",
    "RootFilesystem",
    "RootFilesystemError",
    "SandboxSpec",
    "UnknownPrivilege",
    "build_entry_command",
    "build_launch_command",
    "read_process_privileges",
    "resolve_capabilities",
    "resolve_privileges",
]

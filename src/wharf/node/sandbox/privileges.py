"""Resolves the user and the capabilities of a program in a sandbox."""

import os
import pwd
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

DEFAULT_USER: Final = "nobody"
ALL_CAPABILITIES_KEYWORD: Final = "all"
CAPABILITY_NAMES: Final = (
    *("chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap"),
    *("linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner"),
    *("sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice"),
    *("sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap"),
    *("mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf"),
    "checkpoint_restore",
)
"""The kernel's capabilities in the order of their numbers."""
KNOWN_CAPABILITIES: Final = frozenset(CAPABILITY_NAMES)
DEFAULT_CAPABILITIES: Final = (
    *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "setfcap"),
    *("setgid", "setpcap", "setuid", "sys_chroot"),
)
"""Capabilities that tasks can request if the operator does not configure others."""
EXPLICIT_CAPABILITIES: Final = frozenset({"mknod"})
"""Granted only on request: a process that can create device files can read every disk."""


class PrivilegeError(Exception):
    """The error of a job that requests privileges that it may not have.

    Its message is a sentence for the job's owner.
    """


class UnknownPrivilege(PrivilegeError):
    """The error of a user or capability that does not exist."""


class ProcessPrivileges(NamedTuple):
    """The user, groups and capabilities of a process."""

    uid: int
    gid: int
    groups: tuple[int, ...]  # supplementary group ids
    name: str  # the user's name
    home: str  # the user's home folder
    capabilities: tuple[str, ...]
    """For root: the upper limit of its capabilities. For other users: those that the process starts with."""

    @property
    def words(self) -> list[str]:
        """The arguments with which a program of `wharf.node.sandbox_setup` takes these privileges.

        They are user, group, further groups and capabilities, these as the number whose bits are set.
        """
        bits = sum(1 << get_capability_number(name) for name in self.capabilities)
        return [str(self.uid), str(self.gid), ",".join(map(str, self.groups)), str(bits)]


def get_capability_number(name: str) -> int:
    """Return the kernel's number of a capability such as `chown`; `cap_41` has the number 41."""
    return CAPABILITY_NAMES.index(name) if name in KNOWN_CAPABILITIES else int(name.removeprefix("cap_"))


def find_user(name: str) -> pwd.struct_passwd | None:
    """Return the user of this machine with this name or numeric id; None if it does not exist."""
    try:
        return pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, ValueError, OverflowError):  # Unknown, or a text that is no name, or a number that is too large.
        return None


def resolve_privileges(
    user: str, *, add: Iterable[str], drop: Iterable[str], allowed: Iterable[str]
) -> ProcessPrivileges:
    """Return the privileges of a program that runs as this user; without a user, as `nobody`.

    `add` and `drop` are capabilities that the job requests and renounces, `allowed` those that a job may request.
    Raises PrivilegeError.
    """
    user_name = user or DEFAULT_USER
    user_entry = find_user(user_name)
    if user_entry is None:
        raise UnknownPrivilege(f"user {user_name} does not exist on this machine")
    groups = tuple(os.getgrouplist(user_entry.pw_name, user_entry.pw_gid))
    capabilities = resolve_capabilities(add=add, drop=drop, allowed=allowed, is_root=user_entry.pw_uid == 0)
    return ProcessPrivileges(
        user_entry.pw_uid, user_entry.pw_gid, groups, user_entry.pw_name, user_entry.pw_dir, capabilities
    )


def read_process_privileges(pid: int) -> ProcessPrivileges:
    """Return the current user, groups and capabilities of a process. Raises OSError if it does not exist."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    uid, gid = int(status["Uid"][1]), int(status["Gid"][1])
    bits = int(status["CapBnd" if uid == 0 else "CapAmb"][0], 16)
    capabilities = tuple(f"cap_{number}" for number in range(bits.bit_length()) if bits >> number & 1)
    try:
        known = pwd.getpwuid(uid)
    except KeyError:  # The user id has no entry in the user database.
        return ProcessPrivileges(uid, gid, tuple(map(int, status["Groups"])), str(uid), "/", capabilities)
    return ProcessPrivileges(uid, gid, tuple(map(int, status["Groups"])), known.pw_name, known.pw_dir, capabilities)


def resolve_capabilities(
    *, add: Iterable[str], drop: Iterable[str], allowed: Iterable[str], is_root: bool
) -> tuple[str, ...]:
    """Return the capabilities of a program. Raises PrivilegeError if `add` exceeds `allowed`.

    Root gets the default capabilities that are allowed, without those in `drop`, and those in `add`. Other users get
    only those in `add`.
    """
    allowed_names = _parse_capabilities(allowed)
    requested, dropped = _parse_capabilities(add), _parse_capabilities(drop)
    if refused := sorted(requested - allowed_names):
        raise PrivilegeError(
            f"this node does not allow {', '.join(refused)}; client.drivers.exec.allow_caps lists the allowed capabilities"
        )
    defaults = (allowed_names & frozenset(DEFAULT_CAPABILITIES)) - EXPLICIT_CAPABILITIES if is_root else frozenset()
    return tuple(sorted((defaults - dropped) | requested))


def _parse_capabilities(names: Iterable[str]) -> frozenset[str]:
    """Return capability names in lower case without `CAP_`; `all` stands for all known names.

    Raises UnknownPrivilege.
    """
    plain = {name.lower().removeprefix("cap_") for name in names}
    if ALL_CAPABILITIES_KEYWORD in plain:
        return KNOWN_CAPABILITIES
    if unknown := sorted(plain - KNOWN_CAPABILITIES):
        raise UnknownPrivilege(f"unknown capability {', '.join(unknown)}")
    return frozenset(plain)

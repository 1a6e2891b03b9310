"""Who a walled program is, and what of the rights of root it keeps."""

import os
import pwd
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

DEFAULT_USER: Final = "nobody"
ALL_CAPABILITIES_KEYWORD: Final = "all"
KNOWN_CAPABILITIES: Final = frozenset(
    (
        *("audit_control", "audit_read", "audit_write", "block_suspend", "bpf", "checkpoint_restore", "chown"),
        *("dac_override", "dac_read_search", "fowner", "fsetid", "ipc_lock", "ipc_owner", "kill", "lease"),
        *("linux_immutable", "mac_admin", "mac_override", "mknod", "net_admin", "net_bind_service", "net_broadcast"),
        *("net_raw", "perfmon", "setfcap", "setgid", "setpcap", "setuid", "sys_admin", "sys_boot", "sys_chroot"),
        *("sys_module", "sys_nice", "sys_pacct", "sys_ptrace", "sys_rawio", "sys_resource", "sys_time"),
        *("sys_tty_config", "syslog", "wake_alarm"),
    )
)
DEFAULT_CAPABILITIES: Final = (
    *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "setfcap"),
    *("setgid", "setpcap", "setuid", "sys_chroot"),
)
"""What tasks may ask for where the operator says nothing."""
EXPLICIT_CAPABILITIES: Final = frozenset({"mknod"})
"""Whoever may make devices reads every disk of the machine."""


class PrivilegeError(Exception):
    """What a job asks for and may not have: a sentence for its owner."""


class UnknownPrivilege(PrivilegeError):
    """There is no such thing."""


class ProcessPrivileges(NamedTuple):
    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str
    capabilities: tuple[str, ...]
    """For root: all that it can ever have. For others: what they have from the start."""

    @property
    def setpriv_command(self) -> list[str]:
        """In front of a command, which then has these rights and can gain no others."""
        kept = ",".join(["-all", *(f"+{each}" for each in self.capabilities)])
        handed_on = "-all" if self.uid == 0 else kept
        groups = ",".join(map(str, self.groups))
        return [
            *("/usr/bin/setpriv", f"--reuid={self.uid}", f"--regid={self.gid}"),
            f"--groups={groups}" if groups else "--clear-groups",
            *(
                "--no-new-privs",
                f"--bounding-set={kept}",
                f"--inh-caps={handed_on}",
                f"--ambient-caps={handed_on}",
                "--",
            ),
        ]


def resolve_privileges(
    user: str, *, add: Iterable[str], drop: Iterable[str], allowed: Iterable[str]
) -> ProcessPrivileges:
    """Raises WrongRight. An empty name is `nobody`."""
    name = user or DEFAULT_USER
    try:
        found = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        raise UnknownPrivilege(f"this machine has no user {name}") from None
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    has = resolve_capabilities(add=add, drop=drop, allowed=allowed, is_root=found.pw_uid == 0)
    return ProcessPrivileges(found.pw_uid, found.pw_gid, groups, found.pw_name, found.pw_dir, has)


def read_process_privileges(pid: int) -> ProcessPrivileges:
    """Those of a process as it is now. Raises OSError where it is gone."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    said = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    uid, gid = int(said["Uid"][1]), int(said["Gid"][1])
    bits = int(said["CapBnd" if uid == 0 else "CapAmb"][0], 16)
    has = tuple(f"cap_{number}" for number in range(bits.bit_length()) if bits >> number & 1)
    try:
        known = pwd.getpwuid(uid)
    except KeyError:  # A program may become whom nobody knows.
        return ProcessPrivileges(uid, gid, tuple(map(int, said["Groups"])), str(uid), "/", has)
    return ProcessPrivileges(uid, gid, tuple(map(int, said["Groups"])), known.pw_name, known.pw_dir, has)


def resolve_capabilities(
    *, add: Iterable[str], drop: Iterable[str], allowed: Iterable[str], is_root: bool
) -> tuple[str, ...]:
    """Raises PrivilegeError."""
    may = _named(allowed)
    asked, dropped = _named(add), _named(drop)
    if refused := sorted(asked - may):
        raise PrivilegeError(f"this node does not allow {', '.join(refused)}: see client.drivers.exec.allow_caps")
    usual = (may & frozenset(DEFAULT_CAPABILITIES)) - EXPLICIT_CAPABILITIES if is_root else frozenset()
    return tuple(sorted((usual - dropped) | asked))


def _named(names: Iterable[str]) -> frozenset[str]:
    """With or without `CAP_`, in any case; `all` is all of them."""
    plain = {name.lower().removeprefix("cap_") for name in names}
    if ALL_CAPABILITIES_KEYWORD in plain:
        return KNOWN_CAPABILITIES
    if unknown := sorted(plain - KNOWN_CAPABILITIES):
        raise UnknownPrivilege(f"there is no capability {', '.join(unknown)}")
    return frozenset(plain)

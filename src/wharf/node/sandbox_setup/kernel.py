"""System calls that Python lacks, through the C library that is loaded before the sandbox is entered."""

import ctypes
import os
import sys

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MNT_DETACH = 2
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION = 0x20080522
MAX_CAPABILITIES = 64
"""The number of bits in which the kernel stores capabilities."""
SIGINT = 2
SIGPIPE = 13
SIGXFSZ = 25
ENVIRONMENT_DESCRIPTOR = 6
"""The descriptor from which a program of a sandbox reads the environment of its command."""
FAILED_EXIT_CODE = 125
"""The exit code of a sandbox that cannot be set up or entered."""

libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = (
    *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong),
    ctypes.c_char_p,
)
libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.signal.restype = ctypes.c_void_p


class SetupError(Exception):
    """The error of a sandbox that cannot be set up. Its message is a phrase for the task's owner."""


class _CapabilityHeader(ctypes.Structure):
    """The kernel's `cap_user_header_t`."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityWord(ctypes.Structure):
    """The kernel's `cap_user_data_t`: 32 capabilities of each set."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def check(result: int, what: str) -> None:
    """Raise OSError about `what` if a libc call has failed."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def mount(source: str, target: int, file_system: str, flags: int, options: str = "") -> None:
    """Mount `source` on the open file or folder `target`, wherever its path leads now. Raises OSError."""
    check(
        libc.mount(
            os.fsencode(source), b"/proc/self/fd/%d" % target, file_system.encode(), flags, options.encode() or None
        ),
        file_system or source,
    )


def close_all_except(retained: tuple[int, ...]) -> None:
    """Close all descriptors from 3 on that are not in `retained`."""
    low = 3
    for descriptor in (*sorted(retained), os.sysconf("SC_OPEN_MAX")):
        os.closerange(low, descriptor)
        low = descriptor + 1


def forbid_imports() -> None:
    """Let no later import read a file: the paths of modules lead into the sandbox from now on."""
    sys.meta_path.clear()
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()


def hide_from_tasks() -> None:
    """Let no process without CAP_SYS_PTRACE open the descriptors and memory of this one, until it becomes a program.

    A task that runs as root sees the process in its namespace. Raises OSError.
    """
    check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def restore_signals() -> None:
    """Undo what Python does to signals: a program would inherit those that it ignores."""
    for number in (SIGINT, SIGPIPE, SIGXFSZ):
        libc.signal(number, None)


def take_privileges(uid: int, gid: int, groups: list[int], capabilities: int) -> None:
    """Become a user with these capabilities (bits), and never gain others. Raises SetupError and OSError.

    For root, `capabilities` are an upper limit: those that this process lacks are left out.
    """
    held = _read_permitted()
    if uid == 0:
        capabilities &= held
    elif capabilities & ~held:
        raise SetupError("the node itself lacks a capability that the task requests")
    for number in range(MAX_CAPABILITIES):
        if libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) < 0:  # The kernel knows no capability of this number.
            break
        if not capabilities >> number & 1:
            check(libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0), "bounding set")
    check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl")
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    inherited = 0 if uid == 0 else capabilities
    _write_capabilities(capabilities, inherited)
    check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient set")
    for number in range(MAX_CAPABILITIES):
        if inherited >> number & 1:
            check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0), "ambient set")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _read_permitted() -> int:
    """Return the capabilities that this process may use, as bits. Raises OSError."""
    words = (_CapabilityWord * 2)()
    check(libc.capget(ctypes.byref(_CapabilityHeader(CAPABILITY_VERSION, 0)), words), "capget")
    return int(words[0].permitted) | int(words[1].permitted) << 32


def _write_capabilities(used: int, inherited: int) -> None:
    """Set the capabilities of this process: `used` are effective and permitted. Raises OSError."""
    words = (_CapabilityWord * 2)(
        *(
            _CapabilityWord(used >> shift & 0xFFFFFFFF, used >> shift & 0xFFFFFFFF, inherited >> shift & 0xFFFFFFFF)
            for shift in (0, 32)
        )
    )
    check(libc.capset(ctypes.byref(_CapabilityHeader(CAPABILITY_VERSION, 0)), words), "capset")

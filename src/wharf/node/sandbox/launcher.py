"""The words by which a program is started within walls, and by which a command enters those of a task that runs.

The task's environment is read from a file by the last shell, which is already the task's user: what a job writes into it
(`LD_PRELOAD`) must not reach the programs before it, which may do everything.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.sandbox.privileges import ProcessPrivileges
from wharf.node.sandbox.root_filesystem import RootFilesystem, RootFilesystemError
from wharf.node.supervisor.run import ALONE_VARIABLE

SHELL: Final = "/bin/dash"
LAUNCH_SCRIPT_PATH: Final = str(Path(__file__).with_name("launch.sh"))
ENTER_SCRIPT_PATH: Final = str(Path(__file__).with_name("enter.sh"))
SETSID_PATH: Final = "/usr/bin/setsid"
REQUIRED_PROGRAMS: Final = (
    *(
        "/bin/dash",
        "/bin/mount",
        "/bin/umount",
        "/bin/cp",
        "/bin/ln",
        "/bin/chmod",
        "/bin/chown",
        "/bin/mkdir",
        "/bin/sleep",
        "/sbin/pivot_root",
    ),
    *("/usr/bin/env", "/usr/bin/nsenter", "/usr/bin/setpriv", "/usr/bin/setsid", "/usr/bin/unshare"),
)
REQUIRED_SANDBOX_PROGRAMS: Final = ("/bin/dash", "/bin/umount", "/usr/bin/env", "/usr/bin/setpriv", "/usr/bin/setsid")
LAUNCH_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""The environment of all that runs before the task does."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
SHELL_SPECIAL_NAMES: Final = frozenset({"OPTIND", "LINENO"})
"""Names that a shell gives a meaning of its own."""
EXEC_SCRIPT: Final = '. "/proc/self/fd/$0" && exec 6<&- 7<&- && exec "$@"'
EXEC_IN_FOLDER_SCRIPT: Final = 'cd "$1" && shift && unset OLDPWD && . "/proc/self/fd/$0" && exec "$@"'
INPUT_DESCRIPTORS: Final = (6, 7)
"""The descriptors of the environment and of the mounts."""


class SandboxDevice(NamedTuple):
    """A device of the machine, and where the program finds it."""

    path: str
    target: str
    mode: str
    """For its user alone, as `chmod` reads it."""


class SandboxSpec(NamedTuple):
    """What a program within walls is to find."""

    environment: Mapping[str, str]
    privileges: ProcessPrivileges
    work_folder: str
    hostname: str = ""
    has_own_ipc: bool = True
    devices: tuple[SandboxDevice, ...] = ()


class LaunchCommand(NamedTuple):
    command: tuple[str, ...]
    inputs: tuple[str, ...]


class EntryCommand(NamedTuple):
    command_prefix: tuple[str, ...]
    """In front of a command."""
    input_text: str


def build_launch_command(
    root: RootFilesystem,
    inside: SandboxSpec,
    command: tuple[str, ...],
    *,
    input_descriptors: tuple[int, int] = INPUT_DESCRIPTORS,
) -> LaunchCommand:
    """Raises RootFilesystemError."""
    environment_at, mounts_at = input_descriptors
    spaces = ["--mount", "--uts", *(["--ipc"] if inside.has_own_ipc else [])]
    words = [
        "/usr/bin/unshare",
        *spaces,
        "--",
        SHELL,
        LAUNCH_SCRIPT_PATH,
        str(root.folder),
        f"/proc/self/fd/{mounts_at}",
    ]
    words += [inside.hostname, inside.work_folder]
    for device in inside.devices:
        words += [os.path.realpath(device.path), _target_of(device), device.mode, str(inside.privileges.uid)]
    words += ["--", *inside.privileges.setpriv_command]
    words += [SHELL, "-c", EXEC_SCRIPT, str(environment_at), *_odd(inside.environment), SETSID_PATH, *command]
    return LaunchCommand(tuple(words), (build_environment_script(inside.environment), root.build_fstab()))


def build_user_command(
    rights: Sequence[str], environment: Mapping[str, str], command: Sequence[str], *, input_descriptor: int
) -> EntryCommand:
    """Without walls, as somebody else: `rights` are the words that make it that. The whole of the command is in its words."""
    words = [*rights, SHELL, "-c", EXEC_SCRIPT, str(input_descriptor), *_odd(environment), *command]
    return EntryCommand(tuple(words), build_environment_script(environment))


def _target_of(device: SandboxDevice) -> str:
    """Raises RootFilesystemError."""
    target = os.path.normpath(device.target)
    if not target.startswith("/dev/"):
        raise RootFilesystemError(f"a device can be put only below /dev, and not at {device.target}")
    return target


def build_entry_command(
    pid: int, inside: SandboxSpec, groups: list[Path], *, input_descriptor: int, session_command: tuple[str, ...] = ()
) -> EntryCommand:
    """`pid`: the task's. `paper_at`: the descriptor at which the paper will be. `leads`: words that make the command lead a
    session. They stand within the namespaces: from there nobody knows those who lead one outside."""
    words = [SHELL, ENTER_SCRIPT_PATH, *(str(group / "cgroup.procs") for group in groups), "--"]
    words += ["/usr/bin/nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--"]
    words += [
        *inside.privileges.setpriv_command,
        *session_command,
        SHELL,
        "-c",
        EXEC_IN_FOLDER_SCRIPT,
        str(input_descriptor),
        inside.work_folder,
    ]
    return EntryCommand((*words, *_odd(inside.environment)), build_environment_script(inside.environment))


def build_environment_script(environment: Mapping[str, str]) -> str:
    """As a shell reads it."""
    lines = [f"export {name}={_quoted(value)}\n" for name, value in environment.items() if _is_plain(name)]
    return "".join([f"unset {' '.join((*LAUNCH_ENVIRONMENT, ALONE_VARIABLE))}\n", *lines])


def _odd(environment: Mapping[str, str]) -> list[str]:
    """What no shell hands on goes in front of the command."""
    odd = [f"{name}={value}" for name, value in environment.items() if not _is_plain(name)]
    return ["/usr/bin/env", "--", *odd] if odd else []


def _is_plain(name: str) -> bool:
    return SHELL_NAME.fullmatch(name) is not None and name not in SHELL_SPECIAL_NAMES


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"

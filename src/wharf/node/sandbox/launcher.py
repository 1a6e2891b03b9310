"""Builds the command lines that start a program in a sandbox, and that run a command in a task's sandbox.

The last shell reads the task's environment from a file and already runs as the task's user. Variables that a job sets,
such as `LD_PRELOAD`, must not reach the programs before it, which run as root.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.drivers.port import GivenDevice
from wharf.node.input_texts import FIRST_INPUT_DESCRIPTOR
from wharf.node.sandbox.privileges import ProcessPrivileges
from wharf.node.sandbox.root_filesystem import RootFilesystem, RootFilesystemError
from wharf.node.supervisor.run import ALONE_VARIABLE, SHELL_NAME

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
"""Programs of the host that set up a sandbox."""
REQUIRED_SANDBOX_PROGRAMS: Final = ("/bin/dash", "/bin/umount", "/usr/bin/env", "/usr/bin/setpriv", "/usr/bin/setsid")
"""Programs that must exist in the sandbox too: they run after it is entered."""
LAUNCH_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""The environment of all programs that run before the task."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL_SPECIAL_NAMES: Final = frozenset({"OPTIND", "LINENO"})
"""Variables that have a special meaning in a shell."""
EXEC_SCRIPT: Final = '. "/proc/self/fd/$0" && exec 6<&- 7<&- && exec "$@"'
"""Reads the environment from the descriptor whose number is $0, and becomes the command."""
EXEC_IN_FOLDER_SCRIPT: Final = 'cd "$1" && shift && unset OLDPWD && . "/proc/self/fd/$0" && exec 6<&- 7<&- && exec "$@"'
"""Changes to the folder $1, reads the environment from the descriptor $0, and becomes the command."""
ENVIRONMENT_DESCRIPTOR: Final = FIRST_INPUT_DESCRIPTOR
MOUNTS_DESCRIPTOR: Final = FIRST_INPUT_DESCRIPTOR + 1
"""The descriptors of the environment script and of the mount table."""


class SandboxSpec(NamedTuple):
    """The environment, privileges, working folder and devices of a program in a sandbox."""

    environment: Mapping[str, str]
    privileges: ProcessPrivileges
    work_folder: str  # an absolute path in the sandbox
    hostname: str = ""
    has_own_ipc: bool = True  # it has an IPC namespace of its own
    devices: tuple[GivenDevice, ...] = ()
    """Their owner in the sandbox is the task's user."""


class LaunchCommand(NamedTuple):
    """A command line that starts a program, and the texts that it reads from the input descriptors."""

    command: tuple[str, ...]
    inputs: tuple[str, ...]  # the environment script and the mount table


class EntryCommand(NamedTuple):
    """A prefix for a command that runs beside a task or as another user, and the text that the prefix reads."""

    command_prefix: tuple[str, ...]
    """Put in front of a command."""
    input_text: str  # read from the input descriptor: the script that sets the environment


def build_launch_command(
    root: RootFilesystem,
    spec: SandboxSpec,
    command: tuple[str, ...],
) -> LaunchCommand:
    """Return the command line that sets up the sandbox and then becomes the program `command`.

    Mount points are created in the task's folder. Raises RootFilesystemError.
    """
    namespace_options = ["--mount", "--uts", *(["--ipc"] if spec.has_own_ipc else [])]
    command_line = [
        "/usr/bin/unshare",
        *namespace_options,
        "--",
        SHELL,
        LAUNCH_SCRIPT_PATH,
        str(root.folder),
        f"/proc/self/fd/{MOUNTS_DESCRIPTOR}",
    ]
    command_line += [spec.hostname, spec.work_folder]
    for device in spec.devices:
        command_line += [
            os.path.realpath(device.path),
            _check_device_target(device),
            _convert_device_permissions(device.permissions),
            str(spec.privileges.uid),
        ]
    command_line += ["--", *spec.privileges.setpriv_command]
    command_line += [
        SHELL,
        "-c",
        EXEC_SCRIPT,
        str(ENVIRONMENT_DESCRIPTOR),
        *_build_env_prefix(spec.environment),
        SETSID_PATH,
        *command,
    ]
    return LaunchCommand(tuple(command_line), (build_environment_script(spec.environment), root.build_fstab()))


def build_user_command(
    user_switch: Sequence[str], environment: Mapping[str, str], command: Sequence[str]
) -> EntryCommand:
    """Return the command line that runs `command` as another user, without a sandbox.

    `user_switch` is the prefix that switches the user. The result's `command_prefix` contains the whole command line.
    """
    command_line = [
        *user_switch,
        SHELL,
        "-c",
        EXEC_SCRIPT,
        str(ENVIRONMENT_DESCRIPTOR),
        *_build_env_prefix(environment),
        *command,
    ]
    return EntryCommand(tuple(command_line), build_environment_script(environment))


def _convert_device_permissions(permissions: str) -> str:
    """Return chmod's mode for a device file, such as `u=rw,go=`, from permission letters (`r`, `w`, `m`)."""
    letters = "".join(letter for letter in "rw" if letter in permissions)
    return f"u={letters},go="


def _check_device_target(device: GivenDevice) -> str:
    """Return the normalized path of a device in the sandbox. Raises RootFilesystemError if it is not below /dev."""
    target = os.path.normpath(device.target)
    if not target.startswith("/dev/"):
        raise RootFilesystemError(f"a device must be below /dev, not at {device.target}")
    return target


def build_entry_command(
    pid: int, spec: SandboxSpec, cgroups: list[Path], *, session_command: tuple[str, ...] = ()
) -> EntryCommand:
    """Return the prefix that runs a command in the sandbox of process `pid`.

    The command joins the control groups whose folders are `cgroups`. `session_command` makes it a session leader: it
    runs inside the namespaces, where a session leader from outside would not be visible.
    """
    command_line = [SHELL, ENTER_SCRIPT_PATH, *(str(cgroup / "cgroup.procs") for cgroup in cgroups), "--"]
    command_line += [
        "/usr/bin/nsenter",
        f"--target={pid}",
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
        "--root",
        "--",
    ]
    command_line += [
        *spec.privileges.setpriv_command,
        *session_command,
        SHELL,
        "-c",
        EXEC_IN_FOLDER_SCRIPT,
        str(ENVIRONMENT_DESCRIPTOR),
        spec.work_folder,
    ]
    return EntryCommand(
        (*command_line, *_build_env_prefix(spec.environment)), build_environment_script(spec.environment)
    )


def build_environment_script(environment: Mapping[str, str]) -> str:
    """Return the shell script that sets these variables, and unsets those of the launching programs.

    Variables whose names a shell cannot use are left out.
    """
    lines = [f"export {name}={_quote(value)}\n" for name, value in environment.items() if _is_shell_variable(name)]
    return "".join([f"unset {' '.join((*LAUNCH_ENVIRONMENT, ALONE_VARIABLE))}\n", *lines])


def _build_env_prefix(environment: Mapping[str, str]) -> list[str]:
    """Return the `env` command prefix that sets those variables whose names a shell cannot use.

    Empty if there are none.
    """
    assignments = [f"{name}={value}" for name, value in environment.items() if not _is_shell_variable(name)]
    return ["/usr/bin/env", "--", *assignments] if assignments else []


def _is_shell_variable(name: str) -> bool:
    """Return whether a shell script can set a variable with this name."""
    return SHELL_NAME.fullmatch(name) is not None and name not in SHELL_SPECIAL_NAMES


def _quote(text: str) -> str:
    """Return the text quoted as one word of a shell command."""
    return "'" + text.replace("'", "'\\''") + "'"

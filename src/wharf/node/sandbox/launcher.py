"""Builds the command lines that start a program in a sandbox, and that run a command in a task's sandbox.

Programs of `wharf.node.sandbox_setup` set the sandbox up or enter it, and take the task's privileges: a task may cover
every other program with a mount. The shell after them reads the task's environment from a file and already runs as the
task's user. Variables that a job sets, such as `LD_PRELOAD`, must not reach the programs before it, which run as root.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.drivers.port import GivenDevice
from wharf.node.input_texts import FIRST_INPUT_DESCRIPTOR
from wharf.node.sandbox.privileges import ProcessPrivileges
from wharf.node.sandbox.root_filesystem import DeviceFile, RootFilesystem, RootFilesystemError
from wharf.node.supervisor.run import ALONE_VARIABLE, SHELL_NAME

SHELL: Final = "/bin/dash"
ENTER_SCRIPT_PATH: Final = str(Path(__file__).with_name("enter.sh"))
SETSID_PATH: Final = "/usr/bin/setsid"
REQUIRED_PROGRAMS: Final = (
    *("/bin/dash", "/bin/sleep", "/usr/bin/env", "/usr/bin/nsenter", "/usr/bin/setsid", "/usr/bin/unshare"),
)
"""Programs of the host that set up a sandbox, besides Python."""
REQUIRED_SANDBOX_PROGRAMS: Final = ("/bin/dash", "/usr/bin/env", "/usr/bin/setsid")
"""Programs that must exist in the sandbox too: they run after it is entered, as the task's user."""
PACKAGES_FOLDER: Final = str(Path(__file__).parents[3])
"""The folder of the package `wharf`."""
FOREIGN_DEVICE_PREFIXES: Final = ("/dev/pts/", "/dev/shm/")
"""File systems of their own are mounted at these folders."""
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
"""The descriptor of the environment script; the plan of the mounts follows it."""


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
    inputs: tuple[str, ...]  # the environment script and the plan of the mounts


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

    Raises RootFilesystemError.
    """
    namespace_options = ["--mount", "--uts", *(["--ipc"] if spec.has_own_ipc else [])]
    devices = [
        DeviceFile(
            os.path.realpath(device.path),
            _check_device_target(device),
            _convert_device_permissions(device.permissions),
            spec.privileges.uid,
        )
        for device in spec.devices
    ]
    command_line = ["/usr/bin/unshare", *namespace_options, "--", *_build_program_command("launch")]
    command_line += [spec.hostname, spec.work_folder, *spec.privileges.words, "--"]
    command_line += [
        SHELL,
        "-c",
        EXEC_SCRIPT,
        str(ENVIRONMENT_DESCRIPTOR),
        *_build_env_prefix(spec.environment),
        SETSID_PATH,
        *command,
    ]
    return LaunchCommand(tuple(command_line), (build_environment_script(spec.environment), root.build_plan(devices)))


def _build_program_command(name: str) -> list[str]:
    """Return the command line of a program of `wharf.node.sandbox_setup`, without its arguments.

    Python ignores its environment and the packages beside this one, and so starts in a few milliseconds.
    """
    script = f"import sys; sys.path.append(sys.argv[1]); from wharf.node.sandbox_setup import {name}; {name}.main(sys.argv[2:])"
    return [sys.executable, "-I", "-S", "-c", script, PACKAGES_FOLDER]


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


def _convert_device_permissions(permissions: str) -> int:
    """Return the permission bits of a device file, for its owner only, from permission letters (`r`, `w`, `m`)."""
    return (0o400 if "r" in permissions else 0) | (0o200 if "w" in permissions else 0)


def _check_device_target(device: GivenDevice) -> str:
    """Return the normalized path of a device in the sandbox. Raises RootFilesystemError if it is not below /dev."""
    target = os.path.normpath(device.target)
    if not target.startswith("/dev/") or target.startswith(FOREIGN_DEVICE_PREFIXES):
        raise RootFilesystemError(f"a device must be below /dev, not at {device.target}")
    return target


def build_entry_command(
    pid: int, spec: SandboxSpec, cgroups: list[Path], *, session_command: tuple[str, ...] = ()
) -> EntryCommand:
    """Return the prefix that runs a command in the sandbox of process `pid`.

    The command joins the control groups whose folders are `cgroups`. `session_command` makes it a session leader: it
    runs inside the namespaces, where a session leader from outside would not be visible.
    """
    command_line = [*_build_program_command("enter"), str(pid), *spec.privileges.words]
    command_line += [*(str(cgroup / "cgroup.procs") for cgroup in cgroups), "--"]
    command_line += [
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

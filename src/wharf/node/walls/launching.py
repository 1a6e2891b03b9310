"""The words by which a program is started within walls, and by which a command enters those of a task that runs.

The task's environment is read from a file by the last shell, which is already the task's user: what a job writes into it
(`LD_PRELOAD`) must not reach the programs before it, which may do everything.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.supervisor.run import ALONE
from wharf.node.walls.rights import Rights
from wharf.node.walls.root import Root, WrongRoot

SHELL: Final = "/bin/dash"
LAUNCH: Final = str(Path(__file__).with_name("launch.sh"))
ENTER: Final = str(Path(__file__).with_name("enter.sh"))
SESSION: Final = "/usr/bin/setsid"
NEEDED: Final = (
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
NEEDED_INSIDE: Final = ("/bin/dash", "/bin/umount", "/usr/bin/env", "/usr/bin/setpriv", "/usr/bin/setsid")
BETWEEN: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""The environment of all that runs before the task does."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
SPECIAL: Final = frozenset({"OPTIND", "LINENO"})
"""Names that a shell gives a meaning of its own."""
BECOME: Final = '. "/proc/self/fd/$0" && exec 6<&- 7<&- && exec "$@"'
BECOME_IN: Final = 'cd "$1" && shift && unset OLDPWD && . "/proc/self/fd/$0" && exec "$@"'
PAPERS_AT: Final = (6, 7)
"""The descriptors of the environment and of the mounts."""


class Device(NamedTuple):
    """A device of the machine, and where the program finds it."""

    path: str
    target: str
    mode: str
    """For its user alone, as `chmod` reads it."""


class Inside(NamedTuple):
    """What a program within walls is to find."""

    environment: Mapping[str, str]
    rights: Rights
    work_folder: str
    hostname: str = ""
    has_own_ipc: bool = True
    devices: tuple[Device, ...] = ()


class Launch(NamedTuple):
    command: tuple[str, ...]
    papers: tuple[str, ...]


class Entry(NamedTuple):
    words: tuple[str, ...]
    """In front of a command."""
    paper: str


def launch(root: Root, inside: Inside, command: tuple[str, ...], *, papers_at: tuple[int, int] = PAPERS_AT) -> Launch:
    """Raises WrongRoot."""
    environment_at, mounts_at = papers_at
    spaces = ["--mount", "--uts", *(["--ipc"] if inside.has_own_ipc else [])]
    words = ["/usr/bin/unshare", *spaces, "--", SHELL, LAUNCH, str(root.folder), f"/proc/self/fd/{mounts_at}"]
    words += [inside.hostname, inside.work_folder]
    for device in inside.devices:
        words += [os.path.realpath(device.path), _target_of(device), device.mode, str(inside.rights.uid)]
    words += ["--", *inside.rights.words]
    words += [SHELL, "-c", BECOME, str(environment_at), *_odd(inside.environment), SESSION, *command]
    return Launch(tuple(words), (script_of(inside.environment), root.make()))


def become(rights: Sequence[str], environment: Mapping[str, str], command: Sequence[str], *, paper_at: int) -> Entry:
    """Without walls, as somebody else: `rights` are the words that make it that. The whole of the command is in its words."""
    words = [*rights, SHELL, "-c", BECOME, str(paper_at), *_odd(environment), *command]
    return Entry(tuple(words), script_of(environment))


def _target_of(device: Device) -> str:
    """Raises WrongRoot."""
    target = os.path.normpath(device.target)
    if not target.startswith("/dev/"):
        raise WrongRoot(f"a device can be put only below /dev, and not at {device.target}")
    return target


def entry(pid: int, inside: Inside, groups: list[Path], *, paper_at: int, leads: tuple[str, ...] = ()) -> Entry:
    """`pid`: the task's. `paper_at`: the descriptor at which the paper will be. `leads`: words that make the command lead a
    session. They stand within the namespaces: from there nobody knows those who lead one outside."""
    words = [SHELL, ENTER, *(str(group / "cgroup.procs") for group in groups), "--"]
    words += ["/usr/bin/nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--"]
    words += [*inside.rights.words, *leads, SHELL, "-c", BECOME_IN, str(paper_at), inside.work_folder]
    return Entry((*words, *_odd(inside.environment)), script_of(inside.environment))


def script_of(environment: Mapping[str, str]) -> str:
    """As a shell reads it."""
    lines = [f"export {name}={_quoted(value)}\n" for name, value in environment.items() if _is_plain(name)]
    return "".join([f"unset {' '.join((*BETWEEN, ALONE))}\n", *lines])


def _odd(environment: Mapping[str, str]) -> list[str]:
    """What no shell hands on goes in front of the command."""
    odd = [f"{name}={value}" for name, value in environment.items() if not _is_plain(name)]
    return ["/usr/bin/env", "--", *odd] if odd else []


def _is_plain(name: str) -> bool:
    return SHELL_NAME.fullmatch(name) is not None and name not in SPECIAL


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"

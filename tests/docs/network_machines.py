"""Machines of a page in network namespaces on this one. Each has a shell, an address, and folders of its own in the usual places.

A machine's commands are those of the page. Stand-ins replace what would change this machine or needs a network: installing
packages (`python3 -m venv`, `pip install`), `scp` and `systemctl`. The processes of all machines end with the process namespace
of the test. Use it in a network and mount namespace of its own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BRIDGE: Final = "wharfbr0"
END_MARK: Final = "end of the commands of the page"
_SCP: Final = """\
import shutil, sys
from pathlib import Path
*files, target = sys.argv[1:]
address, _, folder = target.removeprefix("root@").partition(":")
root = Path("/proc", Path(PIDS, address).read_text(), "root")
for file in files:
    shutil.copy(file, root / folder.lstrip("/"))
"""
_PYTHON: Final = """\
import os, sys
from pathlib import Path
assert sys.argv[1:3] == ["-m", "venv"], sys.argv
folder = Path(sys.argv[3], "bin")
folder.mkdir(parents=True)
for name, text in (("pip", PIP), ("wharf", WHARF)):
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
"""
_PIP: Final = """\
import re, sys
from pathlib import Path
verb, wheel = sys.argv[1:]
assert verb == "install" and Path(wheel).exists(), sys.argv
Path("/opt/wharf/version").write_text(re.search(r"-([0-9.]+)-", wheel)[1])
"""
_WHARF: Final = """\
#!/bin/sh
exec env PYTHONPATH="{sources}/$(cat /opt/wharf/version)" {python} -m wharf "$@"
"""
_SETUP: Final = """\
mount --bind {folder}/etc /etc
for folder in /opt /run /var/lib; do mount -t tmpfs tmpfs $folder; done
hostname {name}
export PATH={stand_ins}:$PATH HOME={folder}/home COLUMNS=120
cd {folder}/home
trap 'failed=$?' ERR
"""


class Machine:
    """A shell in namespaces of its own. Variables and the current folder last from one call to the next."""

    def __init__(self, name: str, address: str, folder: Path, stand_ins: Path) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        (folder / "home").mkdir(parents=True)
        shutil.copytree("/etc", folder / "etc", symlinks=True)
        self._shell = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        )
        self.pid = self._shell.pid
        self.run("true")
        self._connect()
        self.run(_SETUP.format(folder=folder, name=name, stand_ins=stand_ins))

    def _connect(self) -> None:
        """Connect the machine to the others by a bridge."""
        port = f"w{self.name}"
        for command in (
            f"link add {port} type veth peer name eth0 netns {self.pid}",
            f"link set {port} master {BRIDGE} up",
        ):
            run_ip(command)
        self.run(f"ip addr add {self.address}/24 dev eth0 && ip link set eth0 up && ip link set lo up")

    def run(self, commands: str) -> str:
        """Run commands in the shell and return what they print. Raises AssertionError if one of them fails."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"failed=0\n{commands}\necho; echo {END_MARK!r} $failed\n")
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.startswith(END_MARK):
                break
            lines.append(line)
        else:
            raise AssertionError(f"the shell of {self.name} ended: {''.join(lines)}")
        printed = "".join(lines).removesuffix("\n")
        assert line.split()[-1] == "0", f"{self.name}: {commands}\n{printed}\n{line}"
        return printed

    def read_logs(self) -> str:
        """Return the end of the logs of the services of this machine."""
        return self.run("tail -n 15 /var/lib/*.log 2>&1 || true") if self._shell.poll() is None else ""

    def end(self) -> None:
        self._shell.kill()
        self._shell.communicate()  # Closes the pipes.


def run_ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


@contextmanager
def running_machines(folder: Path, addresses: Mapping[str, str], versions: list[str]) -> Iterator[dict[str, Machine]]:
    """Run machines with these names and addresses, each with the wheels of these versions in its folder."""
    run_ip(f"link add {BRIDGE} type bridge")
    run_ip(f"link set {BRIDGE} up")
    stand_ins = write_stand_ins(folder, versions)
    machines: dict[str, Machine] = {}
    try:
        for name, address in addresses.items():
            machine = machines[name] = Machine(name, address, folder / name, stand_ins)
            (folder / "pids" / address).write_text(str(machine.pid))
            for version in versions:
                (machine.folder / "home" / f"wharfinger-{version}-py3-none-any.whl").touch()
            shutil.copy(ROOT / "packaging/wharf.service", machine.folder / "home")
        yield machines
    except AssertionError as error:
        for name, machine in machines.items():
            error.add_note(f"--- {name}\n{machine.read_logs()}")
        raise
    finally:
        for machine in machines.values():
            machine.end()


def write_stand_ins(folder: Path, versions: list[str]) -> Path:
    """Write the programs that replace others, and the sources of each version. Return the folder of the programs."""
    (folder / "pids").mkdir()
    for version in versions:
        sources = folder / "sources" / version / "wharf"
        shutil.copytree(ROOT / "src/wharf", sources)
        file = sources / "__init__.py"
        file.write_text(file.read_text().replace('__version__ = "', f'__version__ = "{version}"  # "'))
    wharf = _WHARF.format(sources=folder / "sources", python=sys.executable)
    pip = f"#!{sys.executable}\n{_PIP}"
    programs = {
        "systemctl": (Path(__file__).parent / "stand_ins/systemctl.py").read_text(),
        "scp": f"PIDS = {str(folder / 'pids')!r}\n{_SCP}",
        "python3": f"PIP = {pip!r}\nWHARF = {wharf!r}\n{_PYTHON}",
    }
    stand_ins = folder / "stand-ins"
    stand_ins.mkdir()
    for name, text in programs.items():
        (stand_ins / name).write_text(f"#!{sys.executable}\n{text}")
        (stand_ins / name).chmod(0o755)
    return stand_ins

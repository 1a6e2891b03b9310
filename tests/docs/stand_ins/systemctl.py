"""Stands in for `systemctl` on machines without systemd: starts and stops the services of units.

It reads the commands and environments of the units, and ignores everything else, such as `daemon-reload` and dependencies.
"""

import os
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

FOLDERS = (Path("/etc/systemd/system"), Path("/lib/systemd/system"))
STOP_WITHIN_S = 60.0


def read_unit(service: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a unit, and its environment."""
    file = next(folder / f"{service}.service" for folder in FOLDERS if (folder / f"{service}.service").exists())
    settings = [line.partition("=")[::2] for line in file.read_text().splitlines() if not line.startswith("#")]
    lines: list[str] = []
    for key, value in settings:
        if key == "Environment":
            lines.append(value.replace("%H", os.uname().nodename))
        elif key == "EnvironmentFile":
            path = Path(value.removeprefix("-").replace("%p", service))
            lines += path.read_text().splitlines() if path.exists() else []
    variables = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    # A service does not get the variables of the user's shell.
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **variables}
    (command,) = [value for key, value in settings if key == "ExecStart"]
    words = [environment.get(word[1:], "") if word.startswith("$") else word for word in shlex.split(command)]
    return [word for word in words if word], environment


def start(service: str) -> None:
    command, environment = read_unit(service)
    with Path(f"/var/lib/{service}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd="/",
            umask=0o077,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    Path(f"/run/{service}.pid").write_text(str(process.pid))


def stop(service: str) -> None:
    """Send SIGTERM and wait for the end, also of a process whose parent does not notice it."""
    file = Path(f"/run/{service}.pid")
    if not file.exists():
        return
    process = os.pidfd_open(int(file.read_text()))
    signal.pidfd_send_signal(process, signal.SIGTERM)
    if not select.select([process], [], [], STOP_WITHIN_S)[0]:
        raise SystemExit(f"{service} did not stop within {STOP_WITHIN_S:g} s")
    file.unlink()


if __name__ == "__main__":
    verb, *services = [word for word in sys.argv[1:] if not word.startswith("-")]
    for name in services:
        if verb in ("stop", "restart"):
            stop(name)
        if verb in ("start", "restart", "enable"):
            start(name)

"""The machine that an agent runs on, read from the kernel's files when somebody asks. Secrets are taken out."""

import os
import platform
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.agent.redaction import REDACTED, Redactor, is_secret_name
from wharf.server.agent_door import HostFacts

MOST_BYTES: Final = 100_000


def look(redactor: Redactor) -> HostFacts:
    return HostFacts(
        os=f"{platform.system().lower()} {platform.release()}",
        networks=list(_networks()),
        resolv_conf=redactor.clean(_text(Path("/etc/resolv.conf"))),
        hosts=redactor.clean(_text(Path("/etc/hosts"))),
        environment={
            name: REDACTED if is_secret_name(name) else redactor.clean(value)
            for name, value in sorted(os.environ.items())
        },
        disks=dict(_disks()),
    )


def _networks() -> Iterator[Mapping[str, str]]:
    for _, name in socket.if_nameindex():
        folder = Path("/sys/class/net") / name
        yield {
            "name": name,
            "mac": _text(folder / "address").strip(),
            "mtu": _text(folder / "mtu").strip(),
            "state": _text(folder / "operstate").strip(),
        }


def _disks() -> Iterator[tuple[str, Mapping[str, int]]]:
    """What is mounted from a device."""
    for line in _text(Path("/proc/self/mounts")).splitlines():
        device, mount, *_ = line.split(" ")
        if not device.startswith("/"):
            continue
        with suppress(OSError):  # It was unmounted while we looked.
            room = os.statvfs(mount)
            yield (
                mount,
                {
                    "size": room.f_blocks * room.f_frsize,
                    "free": room.f_bavail * room.f_frsize,
                    "inodes": room.f_files,
                    "inodes_free": room.f_ffree,
                },
            )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""

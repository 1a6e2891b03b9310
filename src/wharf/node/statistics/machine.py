"""The figures of the machine: memory, processors, disks, as the kernel counts them.

Shares of a processor are those since the last look, or of a moment just now where nobody has looked for a while.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from wharf.world import World

PROC: Final = Path("/proc")
FIRST_SAMPLE_S: Final = 0.1
"""How long is looked where there is no earlier look to compare with."""
CACHE_TTL_S: Final = 1.0
MAX_SAMPLE_AGE_S: Final = 30.0
BYTES_PER_KB: Final = 1024
DISK_FILE_SYSTEMS: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "vfat", "reiserfs", "jfs"}
)


class CpuTicks(NamedTuple):
    user: int
    system: int
    idle: int
    total: int


async def return_no_devices() -> None:
    return None


class MachineMeter:
    """`folder`: where allocations are. `mhz`: of all processors together."""

    def __init__(
        self,
        world: World,
        folder: Path,
        *,
        mhz: int,
        measure_devices: Callable[[], Awaitable[list[dict[str, Any]] | None]] = return_no_devices,
    ) -> None:
        self._figures_of_devices = measure_devices
        self._world = world
        self._folder = folder
        self._mhz = mhz
        self._looked_s: float | None = None
        self._ticks: dict[str, CpuTicks] = {}
        self._told: dict[str, Any] = {}
        self._looking = asyncio.Lock()

    async def read_statistics(self) -> dict[str, Any]:  # In the words of the interface.
        async with self._looking:
            now_s = self._world.monotonic_s()
            if self._looked_s is not None and now_s - self._looked_s < CACHE_TTL_S and self._told:
                return self._told
            if self._looked_s is None or now_s - self._looked_s > MAX_SAMPLE_AGE_S:
                self._ticks = read_ticks()
                await asyncio.sleep(FIRST_SAMPLE_S)
            ticks = read_ticks()
            cpus = [self._cpu(name, self._ticks.get(name), now) for name, now in sorted(ticks.items(), key=_number)]
            self._ticks, self._looked_s = ticks, self._world.monotonic_s()
            self._told = {
                "Memory": read_memory(),
                "CPU": cpus,
                "DiskStats": read_disks(),
                "AllocDirStats": read_disk_usage(str(self._folder), device="", mount_point=""),
                "DeviceStats": await self._figures_of_devices(),
                "Uptime": int(float((PROC / "uptime").read_text().split()[0])),
                "Timestamp": self._world.now_ns(),
                "CPUTicksConsumed": sum(cpu["TotalTicks"] for cpu in cpus),
            }
            return self._told

    def _cpu(self, name: str, before: CpuTicks | None, now: CpuTicks) -> dict[str, Any]:
        before = before or CpuTicks(0, 0, 0, 0)
        total = max(1, now.total - before.total)
        user, system, idle = (100.0 * (new - old) / total for new, old in zip(now[:3], before[:3], strict=True))
        busy = max(0.0, 100.0 - idle)
        count = max(1, os.cpu_count() or 1)
        return {
            "CPU": name,
            "User": user,
            "System": system,
            "Idle": idle,
            "TotalPercent": busy,
            "TotalTicks": busy / 100 * self._mhz / count,
        }


def _number(pair: tuple[str, CpuTicks]) -> int:
    return int(pair[0].removeprefix("cpu"))


def read_ticks() -> dict[str, CpuTicks]:
    found = {}
    for line in (PROC / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, wait, hard, soft, stolen = (int(field) for field in fields[:8])
            all_ = user + nice + system + idle + wait + hard + soft + stolen
            found[name] = CpuTicks(user + nice, system + hard + soft, idle + wait, all_)
    return found


def read_memory() -> dict[str, int]:
    lines = (line.split() for line in (PROC / "meminfo").read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * BYTES_PER_KB for words in lines if len(words) >= 2}
    total, free = sizes.get("MemTotal", 0), sizes.get("MemFree", 0)
    available = sizes.get("MemAvailable", free)
    return {"Total": total, "Available": available, "Used": total - available, "Free": free}


def read_disks() -> list[dict[str, Any]]:
    found = []
    seen: set[str] = set()
    for line in (PROC / "self/mounts").read_text().splitlines():
        device, place, kind = line.split()[:3]
        if kind not in DISK_FILE_SYSTEMS or device in seen:
            continue
        seen.add(device)
        place = place.encode().decode("unicode_escape")
        try:
            found.append(read_disk_usage(place, device=device, mount_point=place))
        except OSError:
            continue
    return found


def read_disk_usage(path: str, *, device: str, mount_point: str) -> dict[str, Any]:
    """Raises OSError."""
    room = os.statvfs(path)
    size, available = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    used = (room.f_blocks - room.f_bfree) * room.f_frsize
    return {
        "Device": device,
        "Mountpoint": mount_point,
        "Size": size,
        "Used": used,
        "Available": available,
        "UsedPercent": 100.0 * used / (used + available) if used + available else 0.0,
        "InodesUsedPercent": 100.0 * (room.f_files - room.f_ffree) / room.f_files if room.f_files else 0.0,
    }

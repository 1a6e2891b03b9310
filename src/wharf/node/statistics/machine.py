"""Reads the resource usage of the machine from the kernel: memory, processors and disks.

CPU percentages cover the time since the last call; if that was long ago, a short time just now.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from wharf.world import World

PROC: Final = Path("/proc")
FIRST_SAMPLE_S: Final = 0.1
"""Seconds to measure if no recent sample exists to compare with."""
CACHE_TTL_S: Final = 1.0
"""Calls within this time after a measurement return the same result."""
MAX_SAMPLE_AGE_S: Final = 30.0
"""Seconds after which a sample is too old to compare with."""
BYTES_PER_KB: Final = 1024
DISK_FILE_SYSTEMS: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "vfat", "reiserfs", "jfs"}
)
"""The file systems that are reported as disks."""


class CpuTicks(NamedTuple):
    """The time counters of one processor since boot, in clock ticks."""

    user: int  # includes processes with a nice value
    system: int
    idle: int  # includes waiting for disks
    total: int


async def return_no_devices() -> None:
    """Return None as the device statistics; used by nodes without devices."""


class MachineMeter:
    """Measures the usage of memory, processors, disks and devices of the machine.

    `folder` holds the allocations; `mhz` is the speed of all processors together.
    """

    def __init__(
        self,
        world: World,
        folder: Path,
        *,
        mhz: int,
        measure_devices: Callable[[], Awaitable[list[dict[str, Any]] | None]] = return_no_devices,
    ) -> None:
        self._measure_devices = measure_devices
        self._world = world
        self._folder = folder
        self._mhz = mhz
        self._last_sample_s: float | None = None
        self._ticks: dict[str, CpuTicks] = {}
        self._last_statistics: dict[str, Any] = {}
        self._lock = asyncio.Lock()

    async def read_statistics(self) -> dict[str, Any]:  # JSON.
        """Return the usage of the machine in the format of the API.

        A result is returned again for `CACHE_TTL_S`. If the last reading of the CPU counters is too old, a new one is
        taken first, which takes `FIRST_SAMPLE_S`.
        """
        async with self._lock:
            now_s = self._world.monotonic_s()
            if self._last_sample_s is not None and now_s - self._last_sample_s < CACHE_TTL_S and self._last_statistics:
                return self._last_statistics
            if self._last_sample_s is None or now_s - self._last_sample_s > MAX_SAMPLE_AGE_S:
                self._ticks = read_ticks()
                await asyncio.sleep(FIRST_SAMPLE_S)
            ticks = read_ticks()
            cpus = [
                self._build_cpu_usage(name, self._ticks.get(name), now)
                for name, now in sorted(ticks.items(), key=_get_cpu_number)
            ]
            self._ticks, self._last_sample_s = ticks, self._world.monotonic_s()
            self._last_statistics = {
                "Memory": read_memory(),
                "CPU": cpus,
                "DiskStats": read_disks(),
                "AllocDirStats": read_disk_usage(str(self._folder), device="", mount_point=""),
                "DeviceStats": await self._measure_devices(),
                "Uptime": int(float((PROC / "uptime").read_text().split()[0])),
                "Timestamp": self._world.now_ns(),
                "CPUTicksConsumed": sum(cpu["TotalTicks"] for cpu in cpus),
            }
            return self._last_statistics

    def _build_cpu_usage(self, name: str, previous: CpuTicks | None, current: CpuTicks) -> dict[str, Any]:
        """Return the usage of one processor between two readings, in the format of the API.

        Without a previous reading, the usage since boot.
        """
        previous = previous or CpuTicks(0, 0, 0, 0)
        total = max(1, current.total - previous.total)
        user, system, idle = (100.0 * (new - old) / total for new, old in zip(current[:3], previous[:3], strict=True))
        busy = max(0.0, 100.0 - idle)
        cpu_count = max(1, os.cpu_count() or 1)
        return {
            "CPU": name,
            "User": user,
            "System": system,
            "Idle": idle,
            "TotalPercent": busy,
            "TotalTicks": busy / 100 * self._mhz / cpu_count,
        }


def _get_cpu_number(pair: tuple[str, CpuTicks]) -> int:
    """Return the number in a name such as `cpu3` of a (name, counters) pair, as a sort key."""
    return int(pair[0].removeprefix("cpu"))


def read_ticks() -> dict[str, CpuTicks]:
    """Return the counters of every processor, by a name such as `cpu0`."""
    ticks = {}
    for line in (PROC / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, iowait, irq, softirq, steal = (int(field) for field in fields[:8])
            total = user + nice + system + idle + iowait + irq + softirq + steal
            ticks[name] = CpuTicks(user + nice, system + irq + softirq, idle + iowait, total)
    return ticks


def read_memory() -> dict[str, int]:
    """Return the total, available, used and free memory of the machine in bytes."""
    lines = (line.split() for line in (PROC / "meminfo").read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * BYTES_PER_KB for words in lines if len(words) >= 2}
    total, free = sizes.get("MemTotal", 0), sizes.get("MemFree", 0)
    available = sizes.get("MemAvailable", free)
    return {"Total": total, "Available": available, "Used": total - available, "Free": free}


def read_disks() -> list[dict[str, Any]]:
    """Return the usage of every mounted disk in the format of the API; each device once."""
    disks = []
    seen: set[str] = set()
    for line in (PROC / "self/mounts").read_text().splitlines():
        device, mount_point, file_system = line.split()[:3]
        if file_system not in DISK_FILE_SYSTEMS or device in seen:
            continue
        seen.add(device)
        mount_point = mount_point.encode().decode("unicode_escape")
        try:
            disks.append(read_disk_usage(mount_point, device=device, mount_point=mount_point))
        except OSError:
            continue
    return disks


def read_disk_usage(path: str, *, device: str, mount_point: str) -> dict[str, Any]:
    """Return the usage of the file system that holds `path`, in the format of the API. Raises `OSError`.

    `device` and `mount_point` are only copied into the result.
    """
    disk = os.statvfs(path)
    size, available = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    return {
        "Device": device,
        "Mountpoint": mount_point,
        "Size": size,
        "Used": used,
        "Available": available,
        "UsedPercent": 100.0 * used / (used + available) if used + available else 0.0,
        "InodesUsedPercent": 100.0 * (disk.f_files - disk.f_ffree) / disk.f_files if disk.f_files else 0.0,
    }

"""Bounds on what a program uses, by control groups of either version. What this machine does not let us bound, is not."""

import contextlib
from pathlib import Path
from typing import Final

from wharf.node.supervisor.messages import RunLimits

BYTES_PER_MB: Final = 1 << 20
MIN_CPU_SHARES: Final = 2
MAX_CPU_SHARES: Final = 262_144
CONTROLLERS: Final = ("cpu", "memory", "pids", "cpuset")


class CgroupLimits:
    """`memory`, `cpu`, `pids`, `cores`: the folders in which each run has its group; None where it cannot be bounded."""

    def __init__(
        self,
        memory: Path | None,
        cpu: Path | None,
        pids: Path | None = None,
        cores: Path | None = None,
        *,
        version: int,
    ) -> None:
        self._memory, self._cpu, self._pids, self._cores = memory, cpu, pids, cores
        self._version = version
        self.folders = [folder for folder in (memory, cpu, pids, cores) if folder is not None]
        found = (("cpu", cpu), ("memory", memory), ("pids", pids), ("cores", cores))
        self.enforced_limits = tuple(name for name, folder in found if folder is not None)

    def create_cgroups(self, run: str, limits: RunLimits) -> list[Path]:
        """The groups that hold it, for those bounds that it has. Raises OSError."""
        groups = []
        if self._memory is not None and limits.memory_mb:
            group = _made(self._memory / run)
            of = str(limits.memory_mb * BYTES_PER_MB)
            names = ("memory.max", "memory.swap.max") if self._version == 2 else V1_MEMORY_FILES
            (group / names[0]).write_text(of)
            with contextlib.suppress(OSError):  # Where swap is not counted there is no such file.
                (group / names[1]).write_text("0" if self._version == 2 else of)
            groups.append(group)
        if self._cpu is not None and limits.cpu_shares:
            group = _made(self._cpu / run)
            shares = min(max(limits.cpu_shares, MIN_CPU_SHARES), MAX_CPU_SHARES)
            if self._version == 2:
                (group / "cpu.weight").write_text(str(convert_shares_to_weight(shares)))
            else:
                (group / "cpu.shares").write_text(str(shares))
            groups.append(group)
        if self._pids is not None and limits.processes:
            group = _made(self._pids / run)
            (group / "pids.max").write_text(str(limits.processes))
            groups.append(group)
        if self._cores is not None and limits.cores:
            group = _made(self._cores / run)
            if self._version == 1:
                _take_all_of(self._cores.parents[1], self._cores.parent, self._cores, group)
            (group / CPUSET_CPUS_FILE).write_text(limits.cores)
            groups.append(group)
        return groups

    def has_oom_kill(self, run: str) -> bool:
        if self._memory is None:
            return False
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        try:
            lines = (self._memory / run / name).read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)


V1_MEMORY_FILES: Final = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def convert_shares_to_weight(shares: int) -> int:
    """The second version counts from 1 to 10,000 where the first counts from 2 to 262,144."""
    return 1 + (shares - MIN_CPU_SHARES) * 9_999 // (MAX_CPU_SHARES - MIN_CPU_SHARES)


def build_limits_v1(root: Path, node: str) -> CgroupLimits:
    """Each controller has a tree of its own."""
    found = {name: _usable(root / name / "wharf" / node, f"{name}.{file}") for name, file in V1_FILES}
    return CgroupLimits(found["memory"], found["cpu"], found["pids"], found["cpuset"], version=1)


def _take_all_of(above: Path, *folders: Path) -> None:
    """Each of them, the cores and the memory of the one above it: a new group has none, and nothing can enter it. Raises
    OSError."""
    for folder in folders:
        for file in (CPUSET_MEMS_FILE, CPUSET_CPUS_FILE):
            if not (folder / file).read_text().strip():
                (folder / file).write_text((above / file).read_text())
        above = folder


CPUSET_CPUS_FILE: Final = "cpuset.cpus"
CPUSET_MEMS_FILE: Final = "cpuset.mems"


V1_FILES: Final = (("memory", "limit_in_bytes"), ("cpu", "shares"), ("pids", "max"), ("cpuset", "cpus"))


def build_limits_v2(root: Path, node: str) -> CgroupLimits:
    """One tree; what is to be bounded in a group must be allowed in all above it."""
    folder = root / "wharf" / node
    for above in (root, root / "wharf", folder):
        for name in CONTROLLERS:
            with contextlib.suppress(OSError):
                above.mkdir(exist_ok=True)
                (above / "cgroup.subtree_control").write_text(f"+{name}")
    memory, cpu, pids, cores = (
        _usable(folder, file) for file in ("memory.max", "cpu.weight", "pids.max", CPUSET_CPUS_FILE)
    )
    return CgroupLimits(memory, cpu, pids, cores, version=2)


def _usable(folder: Path, file: str) -> Path | None:
    trial = folder / "trial"
    try:
        trial.mkdir(parents=True, exist_ok=True)
        is_there = (trial / file).exists()
        trial.rmdir()
    except OSError:
        return None
    return folder if is_there else None


def _made(group: Path) -> Path:
    group.mkdir(parents=True, exist_ok=True)
    return group

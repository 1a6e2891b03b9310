"""Limits the resources of programs with control groups of version 1 or 2.

A limit that this machine does not support is skipped.
"""

import contextlib
from pathlib import Path
from typing import Final

from wharf.node.supervisor.messages import RunLimits

BYTES_PER_MB: Final = 1 << 20
MIN_CPU_SHARES: Final = 2
MAX_CPU_SHARES: Final = 262_144
"""The kernel's limits of cpu.shares."""
CONTROLLERS: Final = ("cpu", "memory", "pids", "cpuset")
V1_MEMORY_FILES: Final = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
"""The files of the memory limit, without and with swap."""
V1_FILES: Final = (("memory", "limit_in_bytes"), ("cpu", "shares"), ("pids", "max"), ("cpuset", "cpus"))
"""A file by which each supported controller is detected."""
CPUSET_CPUS_FILE: Final = "cpuset.cpus"
CPUSET_MEMS_FILE: Final = "cpuset.mems"


class CgroupLimits:
    """The control groups with which the resources of runs are limited. A run is one start of a task.

    `memory`, `cpu`, `pids` and `cores` are the parent folders of the runs' control groups; None if that limit is not
    supported. `version` is the version of control groups.
    """

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
        folders = (("cpu", cpu), ("memory", memory), ("pids", pids), ("cores", cores))
        self.enforced_limits = tuple(name for name, folder in folders if folder is not None)

    def create_cgroups(self, run: str, limits: RunLimits) -> list[Path]:
        """Create the control groups that enforce the run's limits, and return their folders. Raises OSError.

        Limits that are 0 or not supported need no group.
        """
        groups = []
        if self._memory is not None and limits.memory_mb:
            group = _create_folder(self._memory / run)
            limit_text = str(limits.memory_mb * BYTES_PER_MB)
            names = ("memory.max", "memory.swap.max") if self._version == 2 else V1_MEMORY_FILES
            (group / names[0]).write_text(limit_text)
            with contextlib.suppress(OSError):  # The file does not exist if the kernel does not account for swap.
                (group / names[1]).write_text("0" if self._version == 2 else limit_text)
            groups.append(group)
        if self._cpu is not None and limits.cpu_shares:
            group = _create_folder(self._cpu / run)
            shares = min(max(limits.cpu_shares, MIN_CPU_SHARES), MAX_CPU_SHARES)
            if self._version == 2:
                (group / "cpu.weight").write_text(str(convert_shares_to_weight(shares)))
            else:
                (group / "cpu.shares").write_text(str(shares))
            groups.append(group)
        if self._pids is not None and limits.processes:
            group = _create_folder(self._pids / run)
            (group / "pids.max").write_text(str(limits.processes))
            groups.append(group)
        if self._cores is not None and limits.cores:
            group = _create_folder(self._cores / run)
            if self._version == 1:
                _inherit_cpuset(self._cores.parents[1], self._cores.parent, self._cores, group)
            (group / CPUSET_CPUS_FILE).write_text(limits.cores)
            groups.append(group)
        return groups

    def has_oom_kill(self, run: str) -> bool:
        """Return whether the kernel killed a process of the run because it reached its memory limit."""
        if self._memory is None:
            return False
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        try:
            lines = (self._memory / run / name).read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)


def convert_shares_to_weight(shares: int) -> int:
    """Return the weight of cgroup version 2 (1 to 10,000) for CPU shares of version 1 (2 to 262,144).

    The conversion is linear.
    """
    return 1 + (shares - MIN_CPU_SHARES) * 9_999 // (MAX_CPU_SHARES - MIN_CPU_SHARES)


def build_limits_v1(root: Path, node_id: str) -> CgroupLimits:
    """Return the limits that this machine can enforce with control groups of version 1.

    Each controller has its own tree below `root`; `node_id` is the node's id.
    """
    folders = {
        name: _find_supported_folder(root / name / "wharf" / node_id, f"{name}.{file}") for name, file in V1_FILES
    }
    return CgroupLimits(folders["memory"], folders["cpu"], folders["pids"], folders["cpuset"], version=1)


def _inherit_cpuset(parent: Path, *folders: Path) -> None:
    """Copy the cores and memory nodes of `parent` to the control groups `folders`, each below the one before.

    A new cpuset group has none, and no process can enter it. Raises OSError.
    """
    for folder in folders:
        for file in (CPUSET_MEMS_FILE, CPUSET_CPUS_FILE):
            if not (folder / file).read_text().strip():
                (folder / file).write_text((parent / file).read_text())
        parent = folder


def build_limits_v2(root: Path, node_id: str) -> CgroupLimits:
    """Enable the controllers and return the limits that this machine can enforce with control groups of version 2.

    A controller works in a group only if all groups above it enable the controller. `node_id` separates several nodes on one machine.
    """
    folder = root / "wharf" / node_id
    for parent in (root, root / "wharf", folder):
        for name in CONTROLLERS:
            with contextlib.suppress(OSError):
                parent.mkdir(exist_ok=True)
                (parent / "cgroup.subtree_control").write_text(f"+{name}")
    memory, cpu, pids, cores = (
        _find_supported_folder(folder, file) for file in ("memory.max", "cpu.weight", "pids.max", CPUSET_CPUS_FILE)
    )
    return CgroupLimits(memory, cpu, pids, cores, version=2)


def _find_supported_folder(folder: Path, file: str) -> Path | None:
    """Return `folder` if control groups below it have the file `file`; else None.

    A trial group is created and removed.
    """
    trial = folder / "trial"
    try:
        trial.mkdir(parents=True, exist_ok=True)
        has_file = (trial / file).exists()
        trial.rmdir()
    except OSError:
        return None
    return folder if has_file else None


def _create_folder(cgroup_folder: Path) -> Path:
    """Create the control group's folder with its parents, and return it. Raises OSError."""
    cgroup_folder.mkdir(parents=True, exist_ok=True)
    return cgroup_folder

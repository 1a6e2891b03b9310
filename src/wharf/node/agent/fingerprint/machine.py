"""Reads the attributes and resources of the machine from the kernel, in the terms that jobs can request."""

import os
import platform
import re
import socket
from pathlib import Path
from typing import Final

import msgspec

from wharf import __version__
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.nodes.resources import (
    NodeCpu,
    NodeDisk,
    NodeMemory,
    NodeNetwork,
    NodeNetworkAddress,
    NodeProcessors,
    NodeResources,
    ProcessorCore,
    ProcessorTopology,
)
from wharf.node.mounts import can_mount_tmpfs
from wharf.node.tasks.environment import format_ranges
from wharf.world.host_address import find_default_address

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
DEFAULT_CORE_MHZ: Final = 1_000
"""The speed of a core if the kernel does not report one."""
SIGNALS: Final = "SIGABRT,SIGALRM,SIGBUS,SIGCHLD,SIGCONT,SIGFPE,SIGHUP,SIGILL,SIGINT,SIGIO,SIGIOT,SIGKILL,SIGPIPE,SIGPROF,SIGQUIT,SIGSEGV,SIGSTOP,SIGSYS,SIGTERM,SIGTRAP,SIGTSTP,SIGTTIN,SIGTTOU,SIGURG,SIGUSR1,SIGUSR2,SIGWINCH,SIGXCPU,SIGXFSZ"
"""The signals that tasks can be sent."""
BYTES_PER_MB: Final = 1 << 20
CLOUDS: Final = (
    ("aws", "sys_vendor", "Amazon EC2"),
    ("gce", "product_name", "Google Compute Engine"),
    # Machines on the same hypervisor outside of the cloud have the vendor's name, but not this tag.
    ("azure", "chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    ("digitalocean", "sys_vendor", "DigitalOcean"),
)
"""How to recognize a cloud: its name, the firmware field and the beginning of its value."""
DISK_SIZE_ATTRIBUTE: Final = "unique.storage.bytestotal"
MIN_DISK_GROWTH: Final = 0.1
"""The part of the disk by which free space must grow to change the node's capacity; protects servers from a new
registration with each removed file."""
VARYING_ATTRIBUTES: Final = ("cpu.frequency", "cpu.totalcompute", "cpu.usablecompute")
"""Attributes that change all the time; changes of them alone are not reported."""


class MachineInfo(msgspec.Struct, frozen=True):
    """Attributes and resources of the machine, and the IP address that tasks use."""

    attributes: dict[str, str]
    resources: NodeResources
    address: str


def probe_machine(folder: Path, *, interface: str = "", min_port: int = 20_000, max_port: int = 32_000) -> MachineInfo:
    """Return attributes and resources of the machine, and its address.

    `folder` holds the allocations; its file system gives the disk size. Dynamic ports range from `min_port` to
    `max_port`.
    """
    cores, model = _read_cores()
    mhz = sum(core.base_speed for core in cores)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    disk = os.statvfs(folder)
    device, address = find_default_address(interface)
    nodes = tuple(sorted({core.node_id for core in cores}))
    os_release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    attributes = {
        "kernel.name": platform.system().lower(),
        "kernel.version": platform.release(),
        "kernel.arch": platform.machine(),
        "cpu.arch": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "cpu.modelname": model,
        "cpu.numcores": str(len(cores)),
        "cpu.frequency": str(max((core.base_speed for core in cores), default=0)),
        "cpu.reservablecores": str(len(cores)),
        "cpu.totalcompute": str(mhz),
        "cpu.usablecompute": str(mhz),
        "numa.node.count": str(len(nodes)),
        **{
            f"numa.node{node}.cores": format_ranges(tuple(core.id for core in cores if core.node_id == node))
            for node in nodes
        },
        "platform.cloud": detect_cloud(SYS / "class/dmi/id"),
        "memory.totalbytes": str(memory_bytes),
        "os.name": os_release.get("ID", "linux"),
        "os.version": os_release.get("VERSION_ID", ""),
        "os.signals": SIGNALS,
        "os.cgroups.version": "2" if (SYS / "fs/cgroup/cgroup.controllers").exists() else "1",
        "unique.hostname": socket.gethostname(),
        "unique.storage.volume": str(folder),
        DISK_SIZE_ATTRIBUTE: str(disk.f_blocks * disk.f_frsize),
        "unique.network.ip-address": address,
        "unique.storage.secrets": "memory" if can_mount_tmpfs() else "disk",
        # Both names: constraints that servers add use `wharf`, job files that were written for Nomad use `nomad`.
        **{f"{name}.version": __version__ for name in ("wharf", "nomad")},
        **{f"{name}.service_discovery": "true" for name in ("wharf", "nomad")},
    }
    resources = NodeResources(
        cpu=NodeCpu(cpu_shares=mhz, total_cpu_cores=len(cores), reservable_cpu_cores=tuple(core.id for core in cores)),
        processors=NodeProcessors(
            topology=ProcessorTopology(nodes=nodes, distances=((10,),) if len(nodes) == 1 else None, cores=cores)
        ),
        memory=NodeMemory(memory_mb=memory_bytes // BYTES_PER_MB),
        disk=NodeDisk(disk_mb=disk.f_bavail * disk.f_frsize // BYTES_PER_MB),
        networks=(NetworkResource(mode="host", device=device, cidr=f"{address}/32", ip=address, mbits=1000),),
        node_networks=(
            NodeNetwork(
                mode="host",
                device=device,
                mac_address=_read_text(SYS / "class/net" / device / "address"),
                speed=1000,
                addresses=(NodeNetworkAddress(family="ipv4", alias="default", address=address),),
            ),
        ),
        min_dynamic_port=min_port,
        max_dynamic_port=max_port,
    )
    return MachineInfo({name: value for name, value in attributes.items() if value}, resources, address)


def merge_machine_info(previous: MachineInfo, current: MachineInfo) -> MachineInfo:
    """Return `current`, but with the old values for free disk space and clock rates, which change all the time.

    Much more free space than before is adopted: an agent that started on a full disk would offer none for ever. If nothing else has changed, the result equals `previous`.
    """
    old, new = previous.resources, current.resources
    resources = msgspec.structs.replace(
        new,
        disk=new.disk if _has_new_disk_size(previous, current) else old.disk,
        cpu=old.cpu if old.cpu.reservable_cpu_cores == new.cpu.reservable_cpu_cores else new.cpu,
        processors=old.processors if _is_unchanged("cpu.numcores", previous, current) else new.processors,
    )
    rates = {name: previous.attributes[name] for name in VARYING_ATTRIBUTES if name in previous.attributes}
    attributes = current.attributes | (rates if _is_unchanged("cpu.numcores", previous, current) else {})
    return MachineInfo(attributes, resources, current.address)


def _has_new_disk_size(previous: MachineInfo, current: MachineInfo) -> bool:
    """Return whether the size of the disk has changed, or its free space has grown by MIN_DISK_GROWTH of its size."""
    if not _is_unchanged(DISK_SIZE_ATTRIBUTE, previous, current):
        return True
    growth_mb = current.resources.disk.disk_mb - previous.resources.disk.disk_mb
    return growth_mb * BYTES_PER_MB > MIN_DISK_GROWTH * int(current.attributes.get(DISK_SIZE_ATTRIBUTE, "0"))


def _is_unchanged(name: str, previous: MachineInfo, current: MachineInfo) -> bool:
    """Return whether the attribute has the same value before and now."""
    return previous.attributes.get(name) == current.attributes.get(name)


def _read_cores() -> tuple[tuple[ProcessorCore, ...], str]:
    """Return (the cores that this process may use, the name of the processor model).

    The name is empty if the kernel does not report it.
    """
    text = _read_text(PROC / "cpuinfo")
    model_name = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    speeds = [float(speed) for speed in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", text, re.MULTILINE)]
    cores = []
    for number in sorted(os.sched_getaffinity(0)):
        folder = SYS / f"devices/system/cpu/cpu{number}"
        max_khz = _read_text(folder / "cpufreq/base_frequency") or _read_text(folder / "cpufreq/cpuinfo_max_freq")
        if max_khz.isdecimal():
            mhz = int(max_khz) // 1000
        else:
            mhz = round(speeds[number]) if number < len(speeds) else DEFAULT_CORE_MHZ
        node = next((int(entry.name[4:]) for entry in folder.glob("node[0-9]*")), 0)
        socket_id = _read_text(folder / "topology/physical_package_id")
        cores.append(
            ProcessorCore(
                socket_id=int(socket_id) if socket_id.isdecimal() else 0, node_id=node, id=number, base_speed=mhz
            )
        )
    return tuple(cores), model_name[1] if model_name else ""


def detect_cloud(firmware_folder: Path) -> str:
    """Return the name of the cloud, recognized by the vendor texts of the firmware; empty if none matches.

    `firmware_folder` is the kernel's folder of DMI fields. Uses no network.
    """
    firmware_texts = {
        name: _read_text(firmware_folder / name) for name in ("sys_vendor", "product_name", "chassis_asset_tag")
    }
    for cloud, name, prefix in CLOUDS:
        if firmware_texts[name].startswith(prefix):
            return cloud
    return ""


def _read_text(path: Path) -> str:
    """Return the stripped content of a file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""What the machine is and has, read from the kernel's files, in the words that jobs can ask for."""

import contextlib
import fcntl
import os
import platform
import re
import socket
import struct
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

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "armv7l": "arm"}
DEFAULT_CORE_MHZ: Final = 1_000
SIGNALS: Final = "SIGABRT,SIGALRM,SIGBUS,SIGCHLD,SIGCONT,SIGFPE,SIGHUP,SIGILL,SIGINT,SIGIO,SIGIOT,SIGKILL,SIGPIPE,SIGPROF,SIGQUIT,SIGSEGV,SIGSTOP,SIGSYS,SIGTERM,SIGTRAP,SIGTSTP,SIGTTIN,SIGTTOU,SIGURG,SIGUSR1,SIGUSR2,SIGWINCH,SIGXCPU,SIGXFSZ"
BYTES_PER_MB: Final = 1 << 20
CLOUDS: Final = (
    ("aws", "sys_vendor", "Amazon EC2"),
    ("gce", "product_name", "Google Compute Engine"),
    # A machine that somebody runs on the same hypervisor at home has the vendor's name, but not this tag.
    ("azure", "chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    ("digitalocean", "sys_vendor", "DigitalOcean"),
)
VARYING_ATTRIBUTES: Final = ("cpu.frequency", "cpu.totalcompute", "cpu.usablecompute")


class MachineInfo(msgspec.Struct, frozen=True):
    attributes: dict[str, str]
    resources: NodeResources
    address: str


def probe_machine(folder: Path, *, interface: str = "", min_port: int = 20_000, max_port: int = 32_000) -> MachineInfo:
    """`folder`: where allocations will be, for the size of their disk."""
    cores, model = _cores()
    mhz = sum(core.base_speed for core in cores)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = os.statvfs(folder)
    device, address = find_default_address(interface)
    nodes = tuple(sorted({core.node_id for core in cores}))
    system = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
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
        "os.name": system.get("ID", "linux"),
        "os.version": system.get("VERSION_ID", ""),
        "os.signals": SIGNALS,
        "os.cgroups.version": "2" if (SYS / "fs/cgroup/cgroup.controllers").exists() else "1",
        "unique.hostname": socket.gethostname(),
        "unique.storage.volume": str(folder),
        "unique.storage.bytestotal": str(room.f_blocks * room.f_frsize),
        "unique.network.ip-address": address,
        "unique.storage.secrets": "memory" if can_mount_tmpfs() else "disk",
        # Both names: constraints that admission adds use ours, job files made for others use theirs.
        **{f"{name}.version": __version__ for name in ("wharf", "nomad")},
        **{f"{name}.service_discovery": "true" for name in ("wharf", "nomad")},
    }
    resources = NodeResources(
        cpu=NodeCpu(cpu_shares=mhz, total_cpu_cores=len(cores), reservable_cpu_cores=tuple(core.id for core in cores)),
        processors=NodeProcessors(
            topology=ProcessorTopology(nodes=nodes, distances=((10,),) if len(nodes) == 1 else None, cores=cores)
        ),
        memory=NodeMemory(memory_mb=memory_bytes // BYTES_PER_MB),
        disk=NodeDisk(disk_mb=room.f_bavail * room.f_frsize // BYTES_PER_MB),
        networks=(NetworkResource(mode="host", device=device, cidr=f"{address}/32", ip=address, mbits=1000),),
        node_networks=(
            NodeNetwork(
                mode="host",
                device=device,
                mac_address=_text(SYS / "class/net" / device / "address"),
                speed=1000,
                addresses=(NodeNetworkAddress(family="ipv4", alias="default", address=address),),
            ),
        ),
        min_dynamic_port=min_port,
        max_dynamic_port=max_port,
    )
    return MachineInfo({name: value for name, value in attributes.items() if value}, resources, address)


def merge_machine_info(before: MachineInfo, now: MachineInfo) -> MachineInfo:
    """What the machine is now; itself as before where only that moved which always moves: free disk, clock rates."""
    known, found = before.resources, now.resources
    resources = msgspec.structs.replace(
        found,
        disk=known.disk if _same("unique.storage.bytestotal", before, now) else found.disk,
        cpu=known.cpu if known.cpu.reservable_cpu_cores == found.cpu.reservable_cpu_cores else found.cpu,
        processors=known.processors if _same("cpu.numcores", before, now) else found.processors,
    )
    rates = {name: before.attributes[name] for name in VARYING_ATTRIBUTES if name in before.attributes}
    attributes = now.attributes | (rates if _same("cpu.numcores", before, now) else {})
    return MachineInfo(attributes, resources, now.address)


def _same(name: str, before: MachineInfo, now: MachineInfo) -> bool:
    return before.attributes.get(name) == now.attributes.get(name)


def _cores() -> tuple[tuple[ProcessorCore, ...], str]:
    text = _text(PROC / "cpuinfo")
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    speeds = [float(speed) for speed in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", text, re.MULTILINE)]
    cores = []
    for number in sorted(os.sched_getaffinity(0)):
        folder = SYS / f"devices/system/cpu/cpu{number}"
        most_khz = _text(folder / "cpufreq/base_frequency") or _text(folder / "cpufreq/cpuinfo_max_freq")
        if most_khz.isdecimal():
            mhz = int(most_khz) // 1000
        else:
            mhz = round(speeds[number]) if number < len(speeds) else DEFAULT_CORE_MHZ
        node = next((int(each.name[4:]) for each in folder.glob("node[0-9]*")), 0)
        socket_id = _text(folder / "topology/physical_package_id")
        cores.append(
            ProcessorCore(
                socket_id=int(socket_id) if socket_id.isdecimal() else 0, node_id=node, id=number, base_speed=mhz
            )
        )
    return tuple(cores), found[1] if found else ""


def detect_cloud(firmware: Path) -> str:
    """Whose machine it is, by what its firmware says; nothing where it is nobody's whom we know. No network is asked."""
    said = {name: _text(firmware / name) for name in ("sys_vendor", "product_name", "chassis_asset_tag")}
    for cloud, name, word in CLOUDS:
        if said[name].startswith(word):
            return cloud
    return ""


def find_default_address(interface: str) -> tuple[str, str]:
    """The interface that leads out, and its address; the loopback one where none does."""
    device = interface or _default_device() or "lo"
    return device, _address_of(device) or "127.0.0.1"


def _default_device() -> str:
    for line in _text(PROC / "net/route").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 2 and fields[1] == "00000000":
            return fields[0]
    return ""


def _address_of(device: str) -> str:
    """Asks the kernel (SIOCGIFADDR)."""

    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", device.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""The variables that a task is started with.

Each of the node's own has two names: `WHARF_…`, and the one that programs made for other schedulers read. From weak to
strong: what the node says, the environment of the agent (where a name is not taken), the task's own `env`.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.allocations.resources import AllocatedPort, AllocatedTaskResources
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.wire.nodes.messages import AssignedAllocation
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues, resolve_text

VARIABLE_PREFIXES: Final = ("WHARF_", "NOMAD_")
_NOT_IN_NAMES: Final = re.compile("[^A-Za-z0-9_]")
AGENT_SECRET_VARIABLES: Final = (
    *("WHARF_TOKEN", "NOMAD_TOKEN", "CONSUL_TOKEN", "CONSUL_HTTP_TOKEN", "VAULT_TOKEN", "WHARF_CLIENT_INTRO_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"),
)


class TaskHost(msgspec.Struct, frozen=True):
    """Where a task runs."""

    datacenter: str
    region: str
    address: str
    allocation_address: str = ""
    """Of the allocation, where it has a network of its own."""
    node_id: str = ""
    node_name: str = ""
    total_mhz: int = 0
    volumes: Mapping[str, NodeHostVolume] = {}


def build_environment(
    work: AssignedAllocation,
    job: Job,
    task: Task,
    folders: TaskFolders,
    place: TaskHost,
    facts: ReferenceValues,
    *,
    agent_environment: Mapping[str, str],
    network: NetworkStatus | None = None,
) -> dict[str, str]:
    """`network`: the allocation's own, where it has one."""
    said = build_node_variables(work, job, task, folders, place) | _inside(work, network)
    found = {f"{prefix}{name}": value for name, value in said.items() for prefix in VARIABLE_PREFIXES}
    kept_back = frozenset(AGENT_SECRET_VARIABLES)
    for name, value in agent_environment.items():
        # What configures this program is not for tasks.
        if name not in kept_back and not name.startswith("WHARF_"):
            found.setdefault(name, value)
    known = facts.with_variables(found)
    for name, value in (task.env or {}).items():
        found[name] = resolve_text(value, known)
    return found


def build_node_variables(
    work: AssignedAllocation, job: Job, task: Task, folders: TaskFolders, place: TaskHost
) -> dict[str, str]:
    allocated = work.allocated_resources
    of_task = (allocated.tasks or {}).get(task.name) if allocated is not None else None
    ports = (allocated.shared.ports or ()) if allocated is not None else ()
    index = work.name.rpartition("[")[2].rstrip("]")
    found = {
        "ALLOC_DIR": str(folders.shared),
        "TASK_DIR": str(folders.local),
        "SECRETS_DIR": str(folders.secrets),
        "ALLOC_ID": work.id,
        "SHORT_ALLOC_ID": work.id[:8],
        "ALLOC_NAME": work.name,
        "ALLOC_INDEX": index,
        "TASK_NAME": task.name,
        "GROUP_NAME": work.task_group,
        "JOB_ID": job.id,
        "JOB_NAME": job.name,
        "DC": place.datacenter,
        "REGION": place.region,
        "NAMESPACE": work.namespace,
        **_resources(task, of_task),
        **_meta(work, job, task),
    }
    if job.parent_id:
        found["JOB_PARENT_ID"] = job.parent_id
    for port in ports:
        found |= _port(port, place)
    return found


def _resources(task: Task, given: AllocatedTaskResources | None) -> dict[str, str]:
    if given is None:
        given = AllocatedTaskResources()
    found = {
        "CPU_LIMIT": str(given.cpu.cpu_shares or task.resources.cpu),
        "MEMORY_LIMIT": str(given.memory.memory_mb or task.resources.memory_mb),
        "CPU_CORES": format_ranges(given.cpu.reserved_cores or ()) or " ",
    }
    if given.memory.memory_max_mb:
        found["MEMORY_MAX_LIMIT"] = str(given.memory.memory_max_mb)
    return found


def format_ranges(numbers: tuple[int, ...]) -> str:
    """`3-5,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _meta(work: AssignedAllocation, job: Job, task: Task) -> dict[str, str]:
    group = job.find_group(work.task_group)
    optional = (job.parameterized_job.meta_optional or ()) if job.parameterized_job is not None else ()
    merged = dict.fromkeys(optional, "")
    for level in (job.meta, group.meta if group is not None else None, task.meta):
        merged |= level or {}
    found = {}
    for name, value in merged.items():
        clean = _NOT_IN_NAMES.sub("_", name)
        found[f"META_{clean}"] = value
        found[f"META_{clean.upper()}"] = value
    return found


def _inside(work: AssignedAllocation, network: NetworkStatus | None) -> dict[str, str]:
    """Where ports are within the allocation's own network."""
    if network is None or not network.address or work.allocated_resources is None:
        return {}
    found = {}
    for port in work.allocated_resources.shared.ports or ():
        inside = port.to if port.to > 0 else port.value
        found[f"ALLOC_INTERFACE_{port.label}"] = network.interface_name
        found[f"ALLOC_IP_{port.label}"] = network.address
        found[f"ALLOC_ADDR_{port.label}"] = f"{network.address}:{inside}"
    return found


def _port(port: AllocatedPort, place: TaskHost) -> dict[str, str]:
    label, clean = port.label, _NOT_IN_NAMES.sub("_", port.label)
    address = port.host_ip or place.address
    inside, outside = str(port.to if port.to > 0 else port.value), str(port.value)
    shown = f"[{address}]" if ":" in address else address
    return {
        f"IP_{clean}": address,
        f"HOST_IP_{label}": address,
        f"PORT_{clean}": inside,
        f"ALLOC_PORT_{label}": inside,
        f"HOST_PORT_{clean}": outside,
        f"ADDR_{clean}": f"{shown}:{outside}",
        f"HOST_ADDR_{label}": f"{shown}:{outside}",
    }

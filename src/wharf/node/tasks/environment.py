"""Builds the environment variables of a task.

Every variable of the node has two names: `WHARF_...`, and `NOMAD_...` for programs that were written for Nomad. In
order of priority: the task's own `env`, the node's variables, the environment of the agent.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.allocations.resources import AllocatedPort, AllocatedTaskResources
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import OUTPUTS_FILE, build_variable_name, list_output_names
from wharf.contract.model.nodes.node import NodeHostVolume
from wharf.contract.wire.nodes.messages import AssignedAllocation
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues, ResolutionLimit, resolve_text
from wharf.world.addresses import format_host_and_port

VARIABLE_PREFIXES: Final = ("WHARF_", "NOMAD_")
_INVALID_NAME_CHARACTERS: Final = re.compile("[^A-Za-z0-9_]")
"""Characters that are replaced in the names of variables."""
AGENT_SECRET_VARIABLES: Final = (
    *("WHARF_TOKEN", "NOMAD_TOKEN", "CONSUL_TOKEN", "CONSUL_HTTP_TOKEN", "VAULT_TOKEN", "WHARF_CLIENT_INTRO_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"),
)
"""Variables of the agent that tasks must not inherit, because they contain or locate credentials."""


class TaskHost(msgspec.Struct, frozen=True):
    """The node on which a task runs, as the task's variables, services and volumes show it."""

    datacenter: str
    region: str
    address: str  # the node's IP address
    allocation_address: str = ""
    """The address of the allocation, if it has its own network."""
    node_id: str = ""
    node_name: str = ""
    total_mhz: int = 0  # CPU speed of all cores together
    volumes: Mapping[str, NodeHostVolume] = {}  # by name


def build_environment(
    allocation: AssignedAllocation,
    job: Job,
    task: Task,
    folders: TaskFolders,
    host: TaskHost,
    reference_values: ReferenceValues,
    *,
    agent_environment: Mapping[str, str],
    network: NetworkStatus | None = None,
    limit: ResolutionLimit | None = None,
) -> dict[str, str]:
    """Return all environment variables of a task.

    In order of priority: the task's `env`, the node's variables, the agent's environment without secrets. `network` is
    the allocation's own network, if it has one. `limit` limits the results of references in the task's `env`.
    """
    limit = limit or ResolutionLimit()
    node_variables = build_node_variables(allocation, job, task, folders, host) | _build_network_variables(
        allocation, network
    )
    variables = {f"{prefix}{name}": value for name, value in node_variables.items() for prefix in VARIABLE_PREFIXES}
    variables |= _build_step_variables(allocation)
    secret_variables = frozenset(AGENT_SECRET_VARIABLES)
    for name, value in agent_environment.items():
        # WHARF_ variables of the agent configure the agent.
        if name not in secret_variables and not name.startswith("WHARF_"):
            variables.setdefault(name, value)
    all_values = reference_values.with_variables(variables)
    for name, value in (task.env or {}).items():
        variables[name] = resolve_text(value, all_values, None, limit, f'env "{name[:100]}"')
    return variables


def find_unusable_variable(environment: Mapping[str, str]) -> str:
    """Return why a program cannot receive one of the variables, and how to fix that; empty if it can receive all."""
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name:
            return f"env {name[:100]!r} is not a name of a variable: it is empty, or contains `=` or a zero byte"
        if "\0" in value:
            return f'env "{name[:100]}" contains a zero byte, which no program can receive: remove it'
    return ""


def build_node_variables(
    allocation: AssignedAllocation, job: Job, task: Task, folders: TaskFolders, host: TaskHost
) -> dict[str, str]:
    """Return the variables that describe the task, its allocation and its node, without their prefix."""
    allocated = allocation.allocated_resources
    task_resources = (allocated.tasks or {}).get(task.name) if allocated is not None else None
    ports = (allocated.shared.ports or ()) if allocated is not None else ()
    index = allocation.name.rpartition("[")[2].rstrip("]")
    variables = {
        "ALLOC_DIR": str(folders.shared),
        "TASK_DIR": str(folders.local),
        "SECRETS_DIR": str(folders.secrets),
        "ALLOC_ID": allocation.id,
        "SHORT_ALLOC_ID": allocation.id[:8],
        "ALLOC_NAME": allocation.name,
        "ALLOC_INDEX": index,
        "TASK_NAME": task.name,
        "GROUP_NAME": allocation.task_group,
        "JOB_ID": job.id,
        "JOB_NAME": job.name,
        "DC": host.datacenter,
        "REGION": host.region,
        "NAMESPACE": allocation.namespace,
        **_build_resource_variables(task, task_resources),
        **_build_metadata_variables(allocation, job, task),
    }
    if job.parent_id:
        variables["JOB_PARENT_ID"] = job.parent_id
    group = job.find_group(allocation.task_group)
    if list_output_names(group):
        variables["OUTPUTS"] = str(folders.shared / OUTPUTS_FILE)
    if group is not None and group.array is not None:
        variables |= {
            "ARRAY_INDEX": index,
            "ARRAY_SIZE": str(group.array.element_count),
            "ARRAY_ITEM": allocation.array_item,
        }
    for port in ports:
        variables |= _build_port_variables(port, host)
    return variables


def _build_step_variables(allocation: AssignedAllocation) -> dict[str, str]:
    """Return the variables with the texts of earlier steps. If two have one name, that of the nearest step counts."""
    variables: dict[str, str] = {}
    for step, texts in (allocation.step_outputs or {}).items():
        for name, text in texts.items():
            variables.setdefault(f"WHARF_{build_variable_name(step, name)}", text)
    return variables


def _build_resource_variables(task: Task, task_resources: AllocatedTaskResources | None) -> dict[str, str]:
    """Return the variables with the CPU and memory that are assigned to the task."""
    if task_resources is None:
        task_resources = AllocatedTaskResources()
    variables = {
        "CPU_LIMIT": str(task_resources.cpu.cpu_shares or task.resources.cpu),
        "MEMORY_LIMIT": str(task_resources.memory.memory_mb or task.resources.memory_mb),
        "CPU_CORES": format_ranges(task_resources.cpu.reserved_cores or ()) or " ",
    }
    if task_resources.memory.memory_max_mb:
        variables["MEMORY_MAX_LIMIT"] = str(task_resources.memory.memory_max_mb)
    return variables


def format_ranges(numbers: tuple[int, ...]) -> str:
    """Return the numbers as a sorted list of ranges, such as `3-5,8`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _build_metadata_variables(allocation: AssignedAllocation, job: Job, task: Task) -> dict[str, str]:
    """Return the variables for the metadata of job, group and task; a task's value overrides those of group and job.

    Each has two names: as written, and in upper case. Optional keys of a dispatch are empty by default.
    """
    group = job.find_group(allocation.task_group)
    optional = (job.parameterized_job.meta_optional or ()) if job.parameterized_job is not None else ()
    merged = dict.fromkeys(optional, "")
    for level in (job.meta, group.meta if group is not None else None, task.meta):
        merged |= level or {}
    variables = {}
    for name, value in merged.items():
        variable_name = _INVALID_NAME_CHARACTERS.sub("_", name)
        variables[f"META_{variable_name}"] = value
        variables[f"META_{variable_name.upper()}"] = value
    return variables


def _build_network_variables(allocation: AssignedAllocation, network: NetworkStatus | None) -> dict[str, str]:
    """Return the variables for addresses and ports inside the allocation's own network; empty if it has none."""
    if network is None or not network.address or allocation.allocated_resources is None:
        return {}
    variables = {}
    for port in allocation.allocated_resources.shared.ports or ():
        inner_port = port.to if port.to > 0 else port.value
        variables[f"ALLOC_INTERFACE_{port.label}"] = network.interface_name
        variables[f"ALLOC_IP_{port.label}"] = network.address
        variables[f"ALLOC_ADDR_{port.label}"] = f"{network.address}:{inner_port}"
    return variables


def _build_port_variables(port: AllocatedPort, host: TaskHost) -> dict[str, str]:
    """Return the variables with the addresses and numbers of one port.

    The label in a name has `_` in place of invalid characters, except in the names that Nomad does not change.
    """
    label, variable_label = port.label, _INVALID_NAME_CHARACTERS.sub("_", port.label)
    address = port.host_ip or host.address
    inner_port, host_port = str(port.to if port.to > 0 else port.value), str(port.value)
    host_address = format_host_and_port(address, port.value)
    return {
        f"IP_{variable_label}": address,
        f"HOST_IP_{label}": address,
        f"PORT_{variable_label}": inner_port,
        f"ALLOC_PORT_{label}": inner_port,
        f"HOST_PORT_{variable_label}": host_port,
        f"ADDR_{variable_label}": host_address,
        f"HOST_ADDR_{label}": host_address,
    }

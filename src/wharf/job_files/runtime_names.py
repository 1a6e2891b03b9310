"""Warns of references such as `${node.datacentr}` that a node cannot replace, because a name in them is misspelled.

A name of the node's own, such as that of an attribute, may exist on some nodes only. It has a warning only if it is similar to a
well-known one. References whose first name is unknown are those of `warnings`.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from wharf.contract.model.jobs.validation.constraints import NODE_TARGETS
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import FilePath, format_path, iterate_referring_texts
from wharf.job_files.hcl.warnings import MAX_WARNINGS
from wharf.job_files.text_places import find_occurrence
from wharf.languages.hcl.diagnostics import SourceRange
from wharf.languages.suggestions import NameSearch

NODE_NAMES: Final = frozenset(target.removeprefix("${node.").removesuffix("}") for target in NODE_TARGETS) | {"region"}
"""What references that begin with `node.` can name."""
ATTRIBUTES: Final = frozenset(
    {
        "consul.datacenter", "consul.version", "cpu.arch", "cpu.frequency", "cpu.frequency.efficiency",
        "cpu.frequency.performance", "cpu.modelname", "cpu.numcores", "cpu.numcores.efficiency", "cpu.numcores.performance",
        "cpu.reservablecores", "cpu.totalcompute", "cpu.usablecompute", "driver.docker", "driver.docker.bridge_ip",
        "driver.docker.os_type", "driver.docker.privileged.enabled", "driver.docker.runtimes", "driver.docker.version",
        "driver.docker.volumes.enabled", "driver.exec", "driver.java", "driver.java.version", "driver.mock", "driver.podman",
        "driver.qemu", "driver.raw_exec", "kernel.arch", "kernel.landlock", "kernel.name", "kernel.version",
        "memory.totalbytes", "nomad.revision", "nomad.service_discovery", "nomad.version", "numa.node.count", "os.build",
        "os.cgroups.version", "os.name", "os.signals", "os.version", "platform.cloud", "unique.advertise.address",
        "unique.hostname", "unique.host_id", "unique.network.ip-address", "unique.storage.bytesfree",
        "unique.storage.bytestotal", "unique.storage.secrets", "unique.storage.volume", "vault.version", "wharf.fake",
        "wharf.service_discovery", "wharf.version",
    }
)  # fmt: skip
"""Well-known attributes of nodes."""
MIN_ATTRIBUTE_SIMILARITY: Final = 0.88
"""How similar an attribute must be to a well-known one. Nodes may have others, such as `driver.docker.volumes`."""
TASK_NAMES: Final = frozenset(
    {
        "ALLOC_DIR", "ALLOC_ID", "ALLOC_INDEX", "ALLOC_NAME", "ARRAY_INDEX", "ARRAY_ITEM", "ARRAY_SIZE", "CPU_CORES", "CPU_LIMIT", "DC", "GROUP_NAME", "JOB_ID",
        "JOB_NAME", "JOB_PARENT_ID", "MEMORY_LIMIT", "MEMORY_MAX_LIMIT", "NAMESPACE", "OUTPUTS", "REGION", "SECRETS_DIR",
        "SHORT_ALLOC_ID", "TASK_DIR", "TASK_NAME", "TOKEN", "UNIX_ADDR",
    }
)  # fmt: skip
"""Variables that every task may have, without their prefix."""
PORT_PREFIXES: Final = (
    "HOST_ADDR_", "HOST_PORT_", "HOST_IP_", "ALLOC_INTERFACE_", "ALLOC_ADDR_", "ALLOC_PORT_", "ALLOC_IP_", "ADDR_", "PORT_", "IP_",
)  # fmt: skip
"""Beginnings of variables for each port of the group. The label of the port follows."""
META_PREFIX: Final = "META_"
OTHER_PREFIXES: Final = ("STEP_", "TOKEN_", "UPSTREAM_")
"""Beginnings of variables whose rest is not checked."""
MIN_SIMILARITY: Final = 0.8
"""How similar a known variable of tasks must be to be suggested."""
UNREPLACED_FIELDS: Final = frozenset({"EmbeddedTmpl", "Payload", "Description"})
"""Fields whose references no node replaces."""
_REFERENCE: Final = re.compile(r"\$?\$\{([^{}\n]{1,200})\}")
_VARIABLE: Final = re.compile(r"(NOMAD|WHARF)_(\w[\w.-]*)\Z")
_QUOTED_VARIABLE: Final = re.compile(r'env\["([^"]+)"\]\Z')
_INDEXED: Final = re.compile(r"(attr|meta|node|env)\s*\[(.*)\]\Z")
_INVALID_NAME_CHARACTER: Final = re.compile("[^A-Za-z0-9_]")


@dataclass(frozen=True)
class TaskNames:
    """What references in a part of a job can name: labels of ports, keys of metadata, and variables that a task sets itself."""

    ports: frozenset[str] | None = None
    """`None` outside of groups, where nothing is known about ports."""
    meta: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()

    @cached_property
    def port_variables(self) -> frozenset[str]:
        """The labels of the ports as names of variables have them."""
        return _clean(self.ports or ())

    @cached_property
    def meta_variables(self) -> frozenset[str]:
        """The keys of metadata as names of variables have them, as written and in upper case."""
        variables = _clean(self.meta)
        return variables | {name.upper() for name in variables}


class Finding(NamedTuple):
    """What is wrong with a reference, and what to do."""

    problem: str
    fix: str


def add_name_warnings(parsed: ParsedJob) -> None:
    """Add a warning to those of the job for each reference with a misspelled name, at its place in the file."""
    warned = {warning.partition(": ")[0] for warning in parsed.warnings}
    search = NameSearch()
    findings: dict[tuple[str, TaskNames], Finding | None] = {}
    for path, text, names in _iterate_texts(parsed.document):
        for match in _REFERENCE.finditer(text):
            if match[0].startswith("$$"):
                continue
            key = (match[1].strip(), names)
            if key not in findings:
                findings[key] = find_mistake(*key, search)
            finding = findings[key]
            if finding is None or (path[-1] == "LTarget" and match[1].strip().startswith("node.")):
                continue  # Servers refuse a comparison of another value of a node.
            value = parsed.find_place(format_path(path))
            repeated = text.count(match[0], 0, match.start())
            place = _find_reference(value, match[1], repeated)
            if str(place) not in warned:
                parsed.warnings.append(f"{place}: {finding.problem}; {finding.fix}")
            warned.add(str(place))
            if len(parsed.warnings) >= MAX_WARNINGS:
                return


def find_mistake(reference: str, names: TaskNames, search: NameSearch) -> Finding | None:
    """Return what is wrong with a reference, such as `node.datacentr`, or `None` if a node may know it."""
    if quoted := _QUOTED_VARIABLE.match(reference):
        return _check_variable(quoted[1], names, search)
    if indexed := _INDEXED.match(reference):
        return _describe_index(reference, indexed[1], indexed[2])
    root, _, rest = reference.partition(".")
    if root == "node" and rest not in NODE_NAMES:
        nearest = search.find_nearest_name(rest, NODE_NAMES)
        fix = f'did you mean "node.{nearest}"?' if nearest else f"the names are {_list_names(NODE_NAMES, 'node.')}"
        return Finding(f'a node has no value "{reference}"', fix)
    if root == "attr" and rest not in ATTRIBUTES:
        nearest = search.find_nearest_name(rest, ATTRIBUTES, min_similarity=MIN_ATTRIBUTE_SIMILARITY)
        return (
            Finding(f'"{reference}" is not a well-known attribute of nodes', f'did you mean "attr.{nearest}"?')
            if nearest
            else None
        )
    return _check_variable(reference, names, search)


def _check_variable(name: str, names: TaskNames, search: NameSearch) -> Finding | None:
    """Return what is wrong with the name of a variable of a task, or `None`."""
    if name in names.environment:
        return None
    variable = _VARIABLE.match(name)
    if variable is None:
        nearest = (
            search.find_nearest_name(name, names.environment, min_similarity=MIN_SIMILARITY) if len(name) > 2 else None
        )
        return Finding(f'the task sets no variable "{name}"', f'did you mean "{nearest}"?') if nearest else None
    prefix, rest = f"{variable[1]}_", variable[2]
    if rest in TASK_NAMES or rest.startswith(OTHER_PREFIXES):
        return None
    if rest.startswith(META_PREFIX):
        return _check_meta(prefix, rest.removeprefix(META_PREFIX), names.meta_variables, search)
    kind = next((each for each in PORT_PREFIXES if rest.startswith(each)), "")
    if kind:
        return _check_port(f"{prefix}{kind}", rest.removeprefix(kind), names, search)
    nearest = search.find_nearest_name(rest, TASK_NAMES, min_similarity=MIN_SIMILARITY)
    return Finding(f'a task has no variable "{name}"', f'did you mean "{prefix}{nearest}"?') if nearest else None


def _check_port(prefix: str, label: str, names: TaskNames, search: NameSearch) -> Finding | None:
    """Return what is wrong with the port that a variable names, or `None`."""
    ports = names.ports
    if ports is None or label in ports or label in names.port_variables:
        return None
    nearest = search.find_nearest_name(label, ports)
    if nearest is not None:
        return Finding(f'the group has no port "{label}"', f'did you mean "{prefix}{nearest}"?')
    fix = f"its ports are {_list_names(ports)}" if ports else "add it to the network of the group"
    return Finding(f'the group has no port "{label}"', fix)


def _check_meta(prefix: str, key: str, variables: frozenset[str], search: NameSearch) -> Finding | None:
    """Return what is wrong with the key of metadata that a variable names, or `None`."""
    if key in variables:
        return None
    nearest = search.find_nearest_name(key, variables)
    fix = f'did you mean "{prefix}{META_PREFIX}{nearest}"?' if nearest else "add it to meta of the job, group or task"
    return Finding(f'the task has no meta value "{key}"', fix)


def _describe_index(reference: str, root: str, key: str) -> Finding:
    """Return the finding about a reference with an index, which nodes do not know."""
    name = key.strip().strip('"')
    example = f"{root}.{name}" if re.fullmatch(r"[A-Za-z_][\w.-]*", name) else f"{root}.NAME"
    if root == "env":
        example = f'env["{name if name.isidentifier() else "NAME"}"]'
    return Finding(f'a node knows no value "{reference[:80]}"', f"write ${{{example}}}")


def _list_names(names: Collection[str], prefix: str = "") -> str:
    return ", ".join(f"{prefix}{name}" for name in sorted(names)[:MAX_WARNINGS])


def _find_reference(value: SourceRange, reference: str, number: int) -> SourceRange:
    """Return the place of a reference in the value that contains it, or that of the value."""
    # HCL has references also without a sign.
    sign = "${" if find_occurrence(value, f"${{{reference}", 0) >= 0 else ""
    at = find_occurrence(value, f"{sign}{reference}", number)
    if at < 0:
        return value
    at += len(sign)
    return SourceRange(value.source, at, at + len(reference))


# -- texts of a job


def _iterate_texts(document: Mapping[str, Any]) -> Iterator[tuple[FilePath, str, TaskNames]]:
    """Yield the texts of a job that contain references, with their paths, and what they can name."""
    job_meta = _get_keys(document, "Meta") | _get_dispatch_keys(document)
    job_names = TaskNames(None, job_meta)
    for field, value in document.items():
        if field != "TaskGroups":
            yield from _iterate_values(value, (field,), job_names)
    groups = document.get("TaskGroups")
    for at, group in enumerate(groups if isinstance(groups, list) else ()):
        if isinstance(group, dict):
            yield from _iterate_group(group, ("TaskGroups", at), job_meta)


def _iterate_group(
    group: Mapping[str, Any], path: FilePath, job_meta: frozenset[str]
) -> Iterator[tuple[FilePath, str, TaskNames]]:
    tasks = [task for task in group.get("Tasks") or () if isinstance(task, dict)] if _is_list(group, "Tasks") else []
    ports = frozenset(_list_ports(group)) | {port for task in tasks for port in _list_ports(task.get("Resources"))}
    group_meta = job_meta | _get_keys(group, "Meta")
    # A service of a group may name what one of the tasks has.
    all_meta = group_meta.union(*(_get_keys(task, "Meta") for task in tasks))
    group_names = TaskNames(ports, all_meta)
    for field, value in group.items():
        if field != "Tasks":
            yield from _iterate_values(value, (*path, field), group_names)
    for number, task in enumerate(group.get("Tasks") or ()) if _is_list(group, "Tasks") else ():
        if isinstance(task, dict):
            names = TaskNames(ports, group_meta | _get_keys(task, "Meta"), _get_environment(task))
            yield from _iterate_values(task, (*path, "Tasks", number), names)


def _iterate_values(value: Any, path: FilePath, names: TaskNames) -> Iterator[tuple[FilePath, str, TaskNames]]:
    """Yield the texts inside a value."""
    for text_path, text in iterate_referring_texts(value, path, UNREPLACED_FIELDS):
        yield text_path, text, names


def _clean(names: Collection[str]) -> frozenset[str]:
    """Return names as those of variables have them."""
    return frozenset(_INVALID_NAME_CHARACTER.sub("_", name) for name in names)


def _list_ports(owner: Any) -> Iterator[str]:
    """Yield the labels of the ports of a group, or of the resources of a task."""
    networks = owner.get("Networks") if isinstance(owner, dict) else None
    for network in networks if isinstance(networks, list) else ():
        for field in ("DynamicPorts", "ReservedPorts"):
            ports = network.get(field) if isinstance(network, dict) else None
            for port in ports if isinstance(ports, list) else ():
                if isinstance(port, dict) and isinstance(port.get("Label"), str):
                    yield port["Label"]


def _get_keys(owner: Mapping[str, Any], field: str) -> frozenset[str]:
    value = owner.get(field)
    return frozenset(str(key) for key in value) if isinstance(value, dict) else frozenset()


def _get_environment(task: Mapping[str, Any]) -> frozenset[str]:
    """Return the variables that a task sets, or none if templates set further ones."""
    templates = task.get("Templates") if _is_list(task, "Templates") else ()
    sets_more = any(isinstance(template, dict) and template.get("Envvars") for template in templates or ())
    return frozenset() if sets_more else _get_keys(task, "Env")


def _get_dispatch_keys(document: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of metadata that a dispatch of the job may set."""
    parameterized = document.get("ParameterizedJob")
    if not isinstance(parameterized, dict):
        return frozenset()
    lists = (parameterized.get(field) for field in ("MetaRequired", "MetaOptional"))
    return frozenset(str(key) for keys in lists if isinstance(keys, list) for key in keys)


def _is_list(owner: Mapping[str, Any], field: str) -> bool:
    return isinstance(owner.get(field), list)

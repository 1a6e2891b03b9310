"""Turns the options of `sbatch` into a request for a batch job, with a note for each option and the reasons of refusals.

Pure: the environment of the user and the words of the command are arguments. Decision 301 says what is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from wharf.cli.slurm.amounts import (
    SINGLETON,
    SlurmValueError,
    build_device,
    build_singleton_lock,
    expand_hosts,
    parse_dependency,
    parse_devices,
    parse_features,
    parse_gpus,
    parse_number,
    parse_signal,
    parse_time_limit_ns,
    translate_pattern,
)
from wharf.cli.slurm.option_parser import Occurrence
from wharf.cli.slurm.sbatch_options import REFUSED, WITHOUT_EFFECT
from wharf.contract.client.batch.amounts import AmountError, parse_memory_mb
from wharf.contract.client.batch.array_indexes import ArrayError, ArrayIndexes, parse_array
from wharf.contract.client.batch.job_builder import (
    DEFAULT_MEMORY_MB,
    MAX_NAME_CHARS,
    BatchRequest,
    Script,
    build_job_name,
    escape_references,
)
from wharf.contract.model.times import SECOND, format_duration

KILL_WAIT_S: Final = 30
"""The time between the signal at the time limit and the kill, as in Slurm."""
MIDDLE_PRIORITY: Final = 50
NICE_PER_PRIORITY: Final = 10
DEFAULT_NICE: Final = 100
"""What `--nice` means without a number, as in Slurm."""
MAX_DESCRIPTION_CHARS: Final = 250
"""A description has at most 1,000 bytes; a character has up to four."""


class TranslatedScript(NamedTuple):
    """What to submit, and the notes for the user."""

    request: BatchRequest
    notes: tuple[str, ...]
    flags: frozenset[str]
    """The options about the command itself, such as `parsable`."""


class Submitter(NamedTuple):
    """Who submits, from where, and what is known about the job before its options."""

    job_id: str
    user: str
    host: str
    environment: Mapping[str, str]
    driver: str = ""


class TranslationErrors(ValueError):
    """All options that were refused, one line each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))


@dataclass
class _Draft:
    """The job as far as its options have been read."""

    submitter: Submitter
    name: str = ""
    array: ArrayIndexes | None = None
    time_ns: int = 0
    signal: str = ""
    signal_s: int = 0
    cores_per_task: int = 1
    tasks: int = 0
    tasks_per_node: int = 0
    memory_mb: int = 0
    memory_per_core_mb: int = 0
    memory_per_gpu_mb: int = 0
    gpus: int = 0
    gpu_model: str = ""
    gpus_per_task: int = 0
    devices: list[dict[str, Any]] = field(default_factory=list)
    constraints: list[dict[str, Any]] = field(default_factory=list)
    pool: str = ""
    priority: int = 0
    env: dict[str, str] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    comment: str = ""
    folder: str = ""
    output: str = ""
    error: str = ""
    appends: bool = False
    disk_mb: int = 0
    replaces_lost: bool = True
    depends: tuple[dict[str, str], ...] = ()
    is_singleton: bool = False


def translate(
    occurrences: Sequence[Occurrence], submitter: Submitter, script: Script, arguments: tuple[str, ...]
) -> TranslatedScript:
    """Return the request of a script with its options. Of options that occur twice, the last one counts.

    Options of the command line follow those of the script. Raises `TranslationErrors` with every refusal.
    """
    draft = _Draft(submitter)
    notes: list[str] = []
    errors: list[str] = []
    flags: set[str] = set()
    last = {occurrence.name: occurrence for occurrence in occurrences}
    for occurrence in last.values():
        label = f"{occurrence.place + ': ' if occurrence.place else ''}{occurrence.written}"
        if occurrence.name in REFUSED:
            errors.append(f"{label}: not supported: {REFUSED[occurrence.name]}")
            continue
        if occurrence.name in WITHOUT_EFFECT:
            notes.append(f"{label}: no effect: {WITHOUT_EFFECT[occurrence.name]}")
            continue
        reader = _READERS.get(occurrence.name)
        if reader is None:
            flags.add(occurrence.name)
            continue
        try:
            notes.append(f"{label}: {reader(draft, occurrence.value)}")
        except (SlurmValueError, AmountError, ArrayError) as error:
            errors.append(f"{label}: {error}")
    if errors:
        raise TranslationErrors(errors)
    try:
        request = _build_request(draft, script, arguments)
    except SlurmValueError as error:
        raise TranslationErrors([str(error)]) from error
    return TranslatedScript(request, tuple(notes), frozenset(flags))


def _build_request(draft: _Draft, script: Script, arguments: tuple[str, ...]) -> BatchRequest:
    """Return the request of a complete draft. Raises `SlurmValueError` for options that contradict each other."""
    tasks = draft.tasks or draft.tasks_per_node or 1
    cores = tasks * draft.cores_per_task
    gpus = draft.gpus or draft.gpus_per_task * tasks
    devices = [*draft.devices, *([build_device("gpu", gpus, model=draft.gpu_model)] if gpus else [])]
    if sum(bool(amount) for amount in (draft.memory_mb, draft.memory_per_core_mb, draft.memory_per_gpu_mb)) > 1:
        raise SlurmValueError("--mem, --mem-per-cpu and --mem-per-gpu exclude each other: use one of them")
    gpu_count = sum(int(device["Count"]) for device in devices if device["Name"] == "gpu")
    if draft.memory_per_gpu_mb and not gpu_count:
        raise SlurmValueError("--mem-per-gpu needs --gpus or --gres=gpu:N")
    memory_mb = (
        draft.memory_mb or draft.memory_per_core_mb * cores or draft.memory_per_gpu_mb * gpu_count or DEFAULT_MEMORY_MB
    )
    if (draft.depends or draft.is_singleton) and not draft.replaces_lost:
        raise SlurmValueError(
            "--no-requeue and --dependency exclude each other: a job that waits for others runs again if its node is lost: "
            "remove --no-requeue, and let the script find out whether its work is done"
        )
    if draft.array is not None and not draft.replaces_lost:
        raise SlurmValueError(
            "--no-requeue and --array exclude each other: an element runs again if its node is lost: remove --no-requeue, and "
            "let the script find out whether its work is done"
        )
    if draft.array is not None and draft.is_singleton:
        raise SlurmValueError(
            f"--dependency={SINGLETON} and --array exclude each other: a lock would let the elements run one at a time: "
            "remove the dependency, and limit the array with --array=0-9%1 if its elements must not run together"
        )
    time_ns, kill_signal, kill_timeout_ns = draft.time_ns, "SIGTERM", KILL_WAIT_S * SECOND
    if draft.signal:
        if not time_ns:
            raise SlurmValueError("--signal needs --time: the signal is sent before the time limit")
        if draft.signal_s * SECOND >= time_ns:
            raise SlurmValueError("--signal is sent before the job begins: use fewer seconds after @")
        time_ns, kill_signal, kill_timeout_ns = time_ns - draft.signal_s * SECOND, draft.signal, draft.signal_s * SECOND
    index = "" if draft.array is None else "${WHARF_ARRAY_INDEX}" if draft.array.is_plain else "${WHARF_ARRAY_ITEM}"
    name = build_job_name(draft.name or script.name)[:MAX_NAME_CHARS]
    user = draft.submitter.user
    output, error = (
        translate_pattern(escape_references(text), index_reference=index, user=user)
        for text in (draft.output, draft.error)
    )
    request = BatchRequest(
        id=draft.submitter.job_id,
        name=name,
        script=script,
        arguments=arguments,
        driver=draft.submitter.driver,
        cores=cores,
        memory_mb=memory_mb,
        disk_mb=draft.disk_mb,
        time_ns=time_ns,
        env=draft.env,
        node_pool=draft.pool,
        priority=draft.priority,
        array=draft.array,
        devices=tuple(devices),
        constraints=tuple(draft.constraints),
        work_folder=draft.folder,
        output_file=output,
        error_file=error,
        appends_output=draft.appends,
        kill_signal=kill_signal,
        kill_timeout_ns=kill_timeout_ns,
        replaces_lost=draft.replaces_lost,
        meta={**({"submit_user": user} if user else {}), **draft.meta},
        description=draft.comment[:MAX_DESCRIPTION_CHARS],
        depends=draft.depends,
        lock=build_singleton_lock(user, name) if draft.is_singleton else {},
    )
    return msgspec.structs.replace(request, node_env=_build_variables(draft, request, tasks, index))


def _build_variables(draft: _Draft, request: BatchRequest, tasks: int, index: str) -> dict[str, str]:
    """Return the variables of Slurm for the task. References are those of the node."""
    folder = escape_references(draft.folder) if draft.folder else "${WHARF_TASK_DIR}"
    # Each element has an id of its own, because scripts name scratch folders by it. `wharf scancel` accepts it too.
    job_id = f"${{WHARF_JOB_ID}}_{index}" if index else "${WHARF_JOB_ID}"
    variables = {
        "SLURM_JOB_ID": job_id,
        "SLURM_JOBID": job_id,
        "SLURM_JOB_NAME": "${WHARF_JOB_NAME}",
        "SLURM_JOB_PARTITION": "${node.pool}",
        "SLURM_JOB_NODELIST": "${node.unique.name}",
        "SLURM_NODELIST": "${node.unique.name}",
        "SLURMD_NODENAME": "${node.unique.name}",
        "SLURM_CLUSTER_NAME": "${node.region}",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_CPUS_ON_NODE": str(request.cores),
        "SLURM_JOB_CPUS_PER_NODE": str(request.cores),
        "SLURM_MEM_PER_NODE": str(request.memory_mb),
        "SLURM_SUBMIT_DIR": folder,
        "SLURM_SUBMIT_HOST": escape_references(draft.submitter.host),
        "SLURM_JOB_USER": escape_references(draft.submitter.user),
    }
    if draft.cores_per_task != 1:
        variables["SLURM_CPUS_PER_TASK"] = str(draft.cores_per_task)
    if draft.array is not None:
        indexes = draft.array.indexes
        variables |= {
            "SLURM_ARRAY_JOB_ID": "${WHARF_JOB_ID}",
            "SLURM_ARRAY_TASK_ID": index,
            "SLURM_ARRAY_TASK_COUNT": str(len(indexes)),
            "SLURM_ARRAY_TASK_MIN": str(indexes[0]),
            "SLURM_ARRAY_TASK_MAX": str(indexes[-1]),
            "SLURM_ARRAY_TASK_STEP": str(draft.array.step),
        }
    if draft.meta.get("account"):
        variables["SLURM_JOB_ACCOUNT"] = escape_references(draft.meta["account"])
    return variables


# -- one function for each option: it changes the draft and returns what the option became


def _read_account(draft: _Draft, value: str) -> str:
    draft.meta["account"] = value
    return "recorded; quotas and fair shares belong to namespaces (--namespace)"


def _read_array(draft: _Draft, value: str) -> str:
    draft.array = parse_array(value)
    count = len(draft.array.indexes)
    limit = f", at most {draft.array.max_running:,} at a time" if draft.array.max_running else ""
    kind = "" if draft.array.is_plain else "; SLURM_ARRAY_TASK_ID is the item of an element"
    return f"an array of {count:,} {'element' if count == 1 else 'elements'}{limit}{kind}"


def _read_begin(_draft: _Draft, value: str) -> str:
    if value != "now":
        raise SlurmValueError(
            "not supported: a job begins as soon as it can: call `wharf sbatch` at that time (`at`, cron), or write a "
            "periodic job"
        )
    return "the default"


def _read_chdir(draft: _Draft, value: str) -> str:
    if not value.startswith("/"):
        raise SlurmValueError("expected an absolute path, because it is a folder of the node")
    draft.folder = value
    return "the working folder on the node, where it must exist; it needs the driver raw_exec"


def _read_comment(draft: _Draft, value: str) -> str:
    draft.comment = value
    return "the description of the job"


def _read_constraint(draft: _Draft, value: str) -> str:
    constraint = parse_features(value)
    draft.constraints.append(constraint)
    how_many = "any" if constraint["Operand"] == "set_contains_any" else "all"
    return f"nodes whose metadata `features` has {how_many} of {constraint['RTarget']}"


def _read_cpus_per_task(draft: _Draft, value: str) -> str:
    draft.cores_per_task = parse_number(value)
    return f"{draft.cores_per_task} {'core' if draft.cores_per_task == 1 else 'cores'} for each task"


def _read_dependency(draft: _Draft, value: str) -> str:
    draft.depends, draft.is_singleton = parse_dependency(value)
    words = {"succeeded": "succeeded", "failed": "failed", "any": "ended"}
    parts = []
    for when, word in words.items():
        if names := [need["On"] for need in draft.depends if need["When"] == when]:
            parts.append(f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} {word}")
    notes = (
        [f"begins when {' and '.join(parts)}; it ends without having run if that becomes impossible"] if parts else []
    )
    if draft.is_singleton:
        notes.append(f"never runs at the same time as another job of yours with this name and --dependency={SINGLETON}")
    return "; ".join(notes)


def _read_error(draft: _Draft, value: str) -> str:
    draft.error = value
    translate_pattern(value, index_reference="", user="")
    return "error output goes to this file on the node, not to `wharf job logs`"


def _read_exclude(draft: _Draft, value: str) -> str:
    hosts = expand_hosts(value)
    draft.constraints += [{"LTarget": "${node.unique.name}", "Operand": "!=", "RTarget": host} for host in hosts]
    return f"not on {'this node' if len(hosts) == 1 else f'these {len(hosts)} nodes'}"


def _read_export(draft: _Draft, value: str) -> str:
    environment = draft.submitter.environment
    notes = []
    for part in value.split(","):
        name, sign, text = part.strip().partition("=")
        if part.strip() in ("NONE", "NIL"):
            continue
        if part.strip() == "ALL":
            notes.append("variables of your shell are not copied, because a job is readable: name each (--export=NAME)")
            continue
        if not name:
            raise SlurmValueError("expected names such as HOME, or NAME=VALUE")
        if not sign and name not in environment:
            raise SlurmValueError(f"your shell has no variable {name}: write {name}=VALUE")
        draft.env[name] = text if sign else environment[name]
    if draft.env:
        notes.append(f"variables {', '.join(draft.env)}")
    return "; ".join(notes) or "no variables of your shell, the default"


def _read_gpus(draft: _Draft, value: str) -> str:
    draft.gpus, draft.gpu_model = parse_gpus(value)
    return f"{draft.gpus} devices of the type gpu"


def _read_gpus_per_task(draft: _Draft, value: str) -> str:
    draft.gpus_per_task, draft.gpu_model = parse_gpus(value)
    return f"{draft.gpus_per_task} devices of the type gpu for each task"


def _read_gres(draft: _Draft, value: str) -> str:
    draft.devices = parse_devices(value)
    listed = ", ".join(f"{device['Count']} of the type {device['Name']}" for device in draft.devices)
    return f"devices: {listed}" if listed else "no devices"


def _read_job_name(draft: _Draft, value: str) -> str:
    draft.name = value
    return "the name of the job"


def _read_mem(draft: _Draft, value: str) -> str:
    draft.memory_mb = parse_memory_mb(value)
    if not draft.memory_mb:
        raise SlurmValueError("not supported: a job cannot reserve all memory of a node: write an amount such as 4G")
    return f"{draft.memory_mb:,} MiB of memory"


def _read_mem_per_cpu(draft: _Draft, value: str) -> str:
    draft.memory_per_core_mb = parse_memory_mb(value)
    return f"{draft.memory_per_core_mb:,} MiB of memory for each core"


def _read_mem_per_gpu(draft: _Draft, value: str) -> str:
    draft.memory_per_gpu_mb = parse_memory_mb(value)
    return f"{draft.memory_per_gpu_mb:,} MiB of memory for each gpu"


def _read_nice(draft: _Draft, value: str) -> str:
    negative = value.startswith("-")
    nice = parse_number(value.removeprefix("-"), lowest=0) if value else DEFAULT_NICE
    priority = MIDDLE_PRIORITY + (nice if negative else -nice) // NICE_PER_PRIORITY
    draft.priority = min(max(priority, 1), 100)
    return f"priority {draft.priority} of 1 to 100"


def _read_no_requeue(draft: _Draft, _value: str) -> str:
    draft.replaces_lost = False
    return "if its node is lost, the job waits for the node instead of running again"


def _read_nodelist(draft: _Draft, value: str) -> str:
    hosts = expand_hosts(value)
    if len(hosts) > 1:
        raise SlurmValueError("not supported: a script runs on one node: name one, or use --constraint or --partition")
    draft.constraints.append({"LTarget": "${node.unique.name}", "Operand": "=", "RTarget": hosts[0]})
    return f"only on the node {hosts[0]}"


def _read_nodes(_draft: _Draft, value: str) -> str:
    if value not in ("1", "1-1"):
        raise SlurmValueError(
            "not supported: a script runs on one node: write a job file with `Count` and `AllAtOnce` for several"
        )
    return "the default"


def _read_ntasks(draft: _Draft, value: str) -> str:
    draft.tasks = parse_number(value)
    return "the default" if draft.tasks == 1 else f"cores for {draft.tasks} tasks on one node; the script runs once"


def _read_ntasks_per_node(draft: _Draft, value: str) -> str:
    draft.tasks_per_node = parse_number(value)
    return (
        "the default" if draft.tasks_per_node == 1 else f"cores for {draft.tasks_per_node} tasks; the script runs once"
    )


def _read_open_mode(draft: _Draft, value: str) -> str:
    if value not in ("append", "truncate"):
        raise SlurmValueError("expected append or truncate")
    draft.appends = value == "append"
    return "how --output and --error are opened"


def _read_output(draft: _Draft, value: str) -> str:
    draft.output = value
    translate_pattern(value, index_reference="", user="")
    place = "of the node" if value.startswith("/") else "in the working folder on the node"
    return f"output goes to this file {place}, not to `wharf job logs`"


def _read_partition(draft: _Draft, value: str) -> str:
    if "," in value:
        raise SlurmValueError("not supported: a job has one node pool: name one")
    draft.pool = value
    return f"node pool {value}"


def _read_qos(draft: _Draft, value: str) -> str:
    draft.meta["qos"] = value
    return "recorded; it has no other effect: use --nice, or a namespace with a quota"


def _read_requeue(draft: _Draft, _value: str) -> str:
    draft.replaces_lost = True
    return "the default: the job runs again if its node is lost or drained"


def _read_signal(draft: _Draft, value: str) -> str:
    draft.signal, draft.signal_s = parse_signal(value)
    return (
        f"{draft.signal} {draft.signal_s} s before the time limit, and when the job is stopped; nodes allow at most "
        "`client.max_kill_timeout` (30s by default) between signal and kill"
    )


def _read_time(draft: _Draft, value: str) -> str:
    draft.time_ns = parse_time_limit_ns(value)
    return f"ends after {format_duration(draft.time_ns)}" if draft.time_ns else "no time limit, the default"


def _read_tmp(draft: _Draft, value: str) -> str:
    draft.disk_mb = parse_memory_mb(value)
    return f"{draft.disk_mb:,} MiB of disk"


_READERS: Final[Mapping[str, Callable[[_Draft, str], str]]] = {
    "account": _read_account,
    "array": _read_array,
    "begin": _read_begin,
    "chdir": _read_chdir,
    "comment": _read_comment,
    "constraint": _read_constraint,
    "cpus-per-task": _read_cpus_per_task,
    "dependency": _read_dependency,
    "error": _read_error,
    "exclude": _read_exclude,
    "export": _read_export,
    "gpus": _read_gpus,
    "gpus-per-node": _read_gpus,
    "gpus-per-task": _read_gpus_per_task,
    "gres": _read_gres,
    "job-name": _read_job_name,
    "mem": _read_mem,
    "mem-per-cpu": _read_mem_per_cpu,
    "mem-per-gpu": _read_mem_per_gpu,
    "nice": _read_nice,
    "no-requeue": _read_no_requeue,
    "nodelist": _read_nodelist,
    "nodes": _read_nodes,
    "ntasks": _read_ntasks,
    "ntasks-per-node": _read_ntasks_per_node,
    "open-mode": _read_open_mode,
    "output": _read_output,
    "partition": _read_partition,
    "qos": _read_qos,
    "requeue": _read_requeue,
    "signal": _read_signal,
    "time": _read_time,
    "tmp": _read_tmp,
}
VARIABLES: Final = (
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
    "SLURMD_NODENAME", "SLURM_CLUSTER_NAME", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NODEID", "SLURM_PROCID",
    "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_CPUS_PER_NODE", "SLURM_MEM_PER_NODE", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_JOB_USER",
    "SLURM_JOB_ACCOUNT", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP",
)  # fmt: skip
"""The variables that a script may read. docs/from-slurm.md lists the same."""

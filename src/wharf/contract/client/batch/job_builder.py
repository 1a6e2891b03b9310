"""Builds the JSON of a batch job from a script or a command. Reads no clock, no file and no environment.

A script travels with the job as a template (decision 300): the node writes it into the folder `local` of the task before
it starts the task.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from wharf.contract.client.batch.array_indexes import ArrayIndexes
from wharf.contract.model.times import SECOND

GROUP_NAME: Final = "main"
TASK_NAME: Final = "main"
WORK_FOLDER: Final = "${WHARF_TASK_DIR}"
"""The folder `local` of the task, for every driver; `wharf job fetch JOB main/local/FILE` brings files from it."""
DEFAULT_MEMORY_MB: Final = 1_024
DEFAULT_CORES: Final = 1
MAX_SCRIPT_BYTES: Final = 262_144
"""Limit of a script. Each version of a job stores it, and each node that runs the job receives it."""
MAX_NAME_CHARS: Final = 200
"""Limit of the name of a job, so that its id has at most 256 bytes with its suffix."""
MAX_ESCAPED_FILE_NAME_CHARS: Final = 100
_REFERENCE: Final = re.compile(r"\$\{[^{}]*\}")
_NODE_VARIABLE: Final = re.compile(r"\$\{(?:WHARF|NOMAD)_\w+\}")
_UNUSUAL_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_DELIMITERS: Final = tuple((f"<%{mark}", f"{mark}%>") for mark in ("", "=", "==", "wharf=", "wharf-script="))
"""Candidates for the delimiters of the template with the script. The first whose beginning the script lacks is used."""
_MAKE_FOLDER: Final = 'mkdir -p -- "$(dirname -- "$1")" && '
_MAKE_FOLDERS: Final = 'mkdir -p -- "$(dirname -- "$1")" "$(dirname -- "$2")" && '
_REDIRECT_OUTPUT: Final = _MAKE_FOLDER + 'exec {sign}"$1" 2>&1 && shift && exec "$@"'
_REDIRECT_BOTH: Final = _MAKE_FOLDERS + 'exec {sign}"$1" 2{sign}"$2" && shift 2 && exec "$@"'
_REDIRECT_ERRORS: Final = _MAKE_FOLDER + 'exec 2{sign}"$1" && shift && exec "$@"'


class ScriptError(ValueError):
    """The error for a script that cannot travel with a job. Its message says what to do."""


class Script(msgspec.Struct, frozen=True):
    """A script that travels with its job."""

    name: str
    """The name of its file, without a folder."""
    text: str


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks for: a script or a command, and its resources. Texts are as the user wrote them."""

    id: str
    name: str
    script: Script | None = None
    arguments: tuple[str, ...] = ()
    """The arguments of the script; without a script, the command and its arguments."""
    driver: str
    cores: int = DEFAULT_CORES
    """Whole cores for the task alone; 0: it shares cores with other tasks."""
    memory_mb: int = DEFAULT_MEMORY_MB
    disk_mb: int = 0
    """0: the default of servers."""
    time_ns: int = 0
    """0: no limit."""
    env: Mapping[str, str] = {}
    node_env: Mapping[str, str] = {}
    """Further variables, whose references the node replaces. Those of `env` override them."""
    node_pool: str = ""
    datacenters: tuple[str, ...] = ()
    priority: int = 0
    array: ArrayIndexes | None = None
    fail_fast: bool = False
    devices: tuple[Mapping[str, Any], ...] = ()
    constraints: tuple[Mapping[str, Any], ...] = ()
    work_folder: str = ""
    """Empty: the folder `local` of the task."""
    output_file: str = ""
    """The file that receives the output; empty: the log of the task. References are those of the node."""
    error_file: str = ""
    appends_output: bool = False
    kill_signal: str = ""
    kill_timeout_ns: int = 0
    replaces_lost: bool = True
    """Whether the work runs again if its node is lost."""
    meta: Mapping[str, str] = {}
    description: str = ""
    files: tuple[Mapping[str, Any], ...] = ()
    """Further templates of the task."""
    depends: tuple[Mapping[str, Any], ...] = ()
    """The jobs that must have ended before this one begins."""
    lock: Mapping[str, Any] = {}
    """The lock that the work holds while it runs."""


def build_batch_job(request: BatchRequest) -> dict[str, Any]:
    """Return the job as JSON data. Fields that the request does not set are missing, so that servers choose their defaults."""
    group: dict[str, Any] = {"Name": GROUP_NAME}
    if request.array is not None:
        group["Array"] = request.array.build_block(fail_fast=request.fail_fast)
    if request.lock:
        group["Lock"] = dict(request.lock)
    # The program decides whether it failed: it is not repeated, neither on its node nor on another one.
    group["RestartPolicy"] = {"Attempts": 0, "Mode": "fail"}
    group["ReschedulePolicy"] = {"Attempts": 0, "Unlimited": False}
    if request.time_ns:
        group["MaxRunDuration"] = request.time_ns
    if not request.replaces_lost:
        group["Disconnect"] = {"Replace": False}
    if request.disk_mb:
        group["EphemeralDisk"] = {"SizeMB": request.disk_mb}
    group["Tasks"] = [_build_task(request)]
    job: dict[str, Any] = {"ID": request.id, "Name": request.name, "Type": "batch"}
    optional = {
        "Priority": request.priority,
        "NodePool": request.node_pool,
        "Datacenters": list(request.datacenters),
        "Constraints": [dict(each) for each in request.constraints],
        "Meta": dict(request.meta),
        "Depends": [dict(each) for each in request.depends],
        "UI": {"Description": request.description} if request.description else {},
    }
    return {**job, **{name: value for name, value in optional.items() if value}, "TaskGroups": [group]}


def _build_task(request: BatchRequest) -> dict[str, Any]:
    task: dict[str, Any] = {"Name": TASK_NAME, "Driver": request.driver, "Config": _build_config(request)}
    env = {**request.node_env, **{name: escape_references(value) for name, value in request.env.items()}}
    if env:
        task["Env"] = env
    resources: dict[str, Any] = {"Cores": request.cores} if request.cores else {}
    resources["MemoryMB"] = request.memory_mb
    if request.devices:
        resources["Devices"] = [dict(device) for device in request.devices]
    task["Resources"] = resources
    templates = [dict(file) for file in request.files]
    if request.script is not None:
        templates.insert(0, build_file(request.script.name, request.script.text, is_program=True))
    if templates:
        task["Templates"] = templates
    if request.kill_signal:
        task["KillSignal"] = request.kill_signal
    if request.kill_timeout_ns:
        task["KillTimeout"] = request.kill_timeout_ns
    return task


def _build_config(request: BatchRequest) -> dict[str, Any]:
    """Return the options of the driver: the program with its arguments, and its working folder."""
    words = [escape_references(word) for word in request.arguments]
    if request.script is not None:
        words.insert(0, f"{WORK_FOLDER}/{request.script.name}")
    words = [*_build_redirection(request), *words]
    folder = escape_references(request.work_folder) if request.work_folder else WORK_FOLDER
    return {"command": words[0], "args": words[1:], "work_dir": folder}


def _build_redirection(request: BatchRequest) -> list[str]:
    """Return the beginning of a command that sends the output of the rest to files; empty if its log receives it."""
    sign = ">>" if request.appends_output else ">"
    if request.output_file and request.error_file:
        return ["/bin/sh", "-c", _REDIRECT_BOTH.format(sign=sign), "sh", request.output_file, request.error_file]
    if request.output_file:
        return ["/bin/sh", "-c", _REDIRECT_OUTPUT.format(sign=sign), "sh", request.output_file]
    if request.error_file:
        return ["/bin/sh", "-c", _REDIRECT_ERRORS.format(sign=sign), "sh", request.error_file]
    return []


def build_file(name: str, text: str, *, is_program: bool = False) -> dict[str, Any]:
    """Return the template that writes a text unchanged into the folder `local` of the task. Raises `ScriptError`."""
    left, right = _choose_delimiters(text)
    return {
        "EmbeddedTmpl": text,
        "DestPath": f"local/{name}",
        "Perms": "0755" if is_program else "0644",
        "LeftDelim": left,
        "RightDelim": right,
        "ChangeMode": "noop",
        "Once": True,
    }


def _choose_delimiters(text: str) -> tuple[str, str]:
    """Return delimiters of template expressions that do not occur in the text. Raises `ScriptError`."""
    for left, right in reversed(_DELIMITERS):
        if left not in text:
            return left, right
    raise ScriptError(f"the script contains {_DELIMITERS[0][0]} in every form that marks expressions: remove one form")


def escape_references(text: str) -> str:
    """Return a text in which the node replaces variables of the node, such as `${WHARF_ARRAY_INDEX}`, and nothing else.

    A program then receives `${HOME}` as the user wrote it, and a shell replaces it.
    """
    return _REFERENCE.sub(lambda found: found[0] if _NODE_VARIABLE.fullmatch(found[0]) else f"${found[0]}", text)


def read_script(path_name: str, raw: bytes) -> Script:
    """Return the script of a file. Raises `ScriptError` if it cannot run on a node as it is."""
    name = (
        _UNUSUAL_CHARACTERS.sub("_", path_name.rpartition("/")[2])[:MAX_ESCAPED_FILE_NAME_CHARS].lstrip("-._")
        or "script"
    )
    if len(raw) > MAX_SCRIPT_BYTES:
        raise ScriptError(
            f"the script has {len(raw):,} bytes, and at most {MAX_SCRIPT_BYTES:,} travel with a job: put data into a file "
            "that nodes can reach, and programs into an artifact of a job file"
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ScriptError(
            "the file is not text in UTF-8, so it is no script: put programs on the nodes, and run them with `-- PROGRAM`"
        ) from error
    if not text.startswith("#!"):
        raise ScriptError(
            "the first line must begin with #! and name the program that runs the script: write #!/bin/sh, or "
            "#!/usr/bin/env python3 for Python"
        )
    if "\r\n" in text:
        raise ScriptError(
            "the lines end with carriage returns, as on Windows, so nodes cannot run it: convert it (`dos2unix`)"
        )
    if "\0" in text:
        raise ScriptError("the script contains a zero byte: remove it")
    return Script(name, text)


def build_job_name(text: str) -> str:
    """Return the name of a job for the name of a script or command: without a folder and unusual characters."""
    name = _UNUSUAL_CHARACTERS.sub("-", text.rpartition("/")[2]).strip("-.")
    return name[:MAX_NAME_CHARS] or "job"


def choose_script_name(name: str) -> str:
    """Return the name of a job for the name of a script: without its ending, such as `train` for `train.sh`."""
    stem, dot, ending = name.rpartition(".")
    return build_job_name(stem if dot and stem and len(ending) <= 4 else name)


def split_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command. Raises `ScriptError` if there is none, or if it cannot be started."""
    if not words or not words[0]:
        raise ScriptError("the command is missing: write it after --")
    if "=" in words[0]:
        raise ScriptError(f"the program {words[0]} contains =: set variables with --env {words[0]}")
    if any("\0" in word for word in words):
        raise ScriptError("the command contains a zero byte: remove it")
    return tuple(words)


def format_seconds(duration_ns: int) -> str:
    """Return a duration in whole seconds as text, such as `90`."""
    return str(duration_ns // SECOND)

"""The documents of `squeue --json` and `sacct --json`, with the field names of Slurm's data parser 0.0.40.

Pure: lines go in. Slurm writes a number that may be missing as an object with `set`, `infinite` and `number`. A field that
servers do not store is left out, so that no program takes it for 0. The fields are listed in docs/from-slurm.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from wharf.cli.slurm.rows import Row
from wharf.contract.model.times import SECOND

SECONDS_PER_MINUTE: Final = 60
TRES_IDS: Final = {"cpu": 1, "mem": 2, "node": 4}
"""The numbers of Slurm's countable resources."""


def build_squeue_document(
    rows: Sequence[Row], now_ns: int, *, client: Mapping[str, str], release: str, warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the document of `squeue --json`. `client` has the user and the command; `release` is the version of Wharf."""
    document = _build_document([_build_queued(row) for row in rows], rows, client, release, warnings)
    return {**document, "last_update": _number(now_ns // SECOND)}


def build_sacct_document(
    rows: Sequence[Row], now_ns: int, *, client: Mapping[str, str], release: str, warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the document of `sacct --json`, with the arguments of `build_squeue_document`."""
    return _build_document([_build_accounted(row, now_ns) for row in rows], rows, client, release, warnings)


def _build_document(
    jobs: list[dict[str, Any]], rows: Sequence[Row], client: Mapping[str, str], release: str, warnings: Sequence[str]
) -> dict[str, Any]:
    return {
        "jobs": jobs,
        "meta": {
            "plugin": {"type": "", "name": "wharf"},
            "client": {"user": client.get("user", "")},
            "command": client.get("command", "").split(),
            "slurm": {"release": f"wharf {release}", "cluster": rows[0].region if rows else ""},
        },
        "errors": [],
        "warnings": [{"description": text, "source": "wharf"} for text in warnings],
    }


def _build_queued(row: Row) -> dict[str, Any]:
    return {
        **_build_common(row),
        **_build_array_fields(row),
        "cpus": _number(row.cores),
        "cpus_per_task": _number(row.cores),
        "tasks": _number(1),
        "node_count": _number(1),
        "memory_per_node": _number(row.memory_mb or None),
        "comment": row.comment,
        "current_working_directory": _get_folder(row),
        "job_state": [row.state],
        "state_reason": row.reason or "None",
        "submit_time": _time(row.submit_ns),
        "start_time": _time(row.start_ns),
        "end_time": _time(row.end_ns),
        "time_limit": _limit(row),
        "tres_req_str": _format_tres(row),
        "tres_alloc_str": _format_tres(row) if row.node else "",
        "user_name": row.user,
    }


def _build_accounted(row: Row, now_ns: int) -> dict[str, Any]:
    resources = [
        {"type": kind, "name": "", "id": TRES_IDS[kind], "count": count} for kind, count in _list_resources(row)
    ]
    fields = _build_array_fields(row)
    return {
        **_build_common(row),
        "allocation_nodes": 1 if row.node else 0,
        "array": {
            "job_id": fields["array_job_id"]["number"],
            "limits": {"max": {"running": {"tasks": fields["array_max_tasks"]["number"]}}},
            "task_id": fields["array_task_id"],
            "task": fields["array_task_string"],
        },
        "association": {
            "account": row.account, "cluster": row.region, "partition": row.partition, "user": row.user,
        },
        "comment": {"administrator": "", "job": row.comment, "system": ""},
        "derived_exit_code": _build_exit_code(row),
        "required": {"CPUs": row.cores, "memory_per_cpu": _number(None), "memory_per_node": _number(row.memory_mb or None)},
        "state": {"current": [row.state], "reason": row.reason or "None"},
        "steps": [],
        "time": {
            "elapsed": row.get_elapsed_ns(now_ns) // SECOND,
            "submission": row.submit_ns // SECOND,
            "start": row.start_ns // SECOND,
            "end": row.end_ns // SECOND,
            "limit": _limit(row),
        },
        "tres": {"allocated": resources if row.start_ns else [], "requested": resources},
        "user": row.user,
        "working_directory": _get_folder(row),
    }  # fmt: skip


def _build_common(row: Row) -> dict[str, Any]:
    """Return the fields that both documents have in the same form."""
    return {
        "account": row.account,
        "cluster": row.region,
        "exit_code": _build_exit_code(row),
        "job_id": _read_id(row.job_id),
        "name": row.name,
        "nodes": row.node,
        "partition": row.partition,
        "priority": _number(row.priority),
        "qos": row.qos,
        "wharf": {"id": row.id, "job": row.job_id, "namespace": row.namespace, "alloc_id": row.alloc_id},
    }


def _build_array_fields(row: Row) -> dict[str, Any]:
    """Return the fields about the array of a line. A line of several runs has no `array_task_id`, but their indexes as text."""
    inner = row.label.partition("[")[2].removesuffix("]") if "[" in row.label else row.label
    text, _, limit = inner.partition("%")
    index = int(text) if text.isascii() and text.isdecimal() and not row.members else None
    return {
        "array_job_id": {**_number(0), "number": _read_id(row.job_id) if row.label else 0},
        "array_task_id": _number(index),
        "array_task_string": inner if index is None else "",
        "array_max_tasks": _number(int(limit) if limit else 0),
    }


def _build_exit_code(row: Row) -> dict[str, Any]:
    code, _, signal = row.exit_code.partition(":")
    status = "SIGNALED" if signal != "0" else "ERROR" if code != "0" else "SUCCESS"
    if not row.end_ns:
        status = "PENDING"
    return {
        "status": [status],
        "return_code": _number(int(code)),
        "signal": {"id": _number(int(signal) or None), "name": ""},
    }


def _list_resources(row: Row) -> list[tuple[str, int]]:
    return [("cpu", row.cores), ("mem", row.memory_mb), ("node", 1)]


def _format_tres(row: Row) -> str:
    return ",".join(f"{kind}={count}{'M' if kind == 'mem' else ''}" for kind, count in _list_resources(row))


def _get_folder(row: Row) -> str:
    """Return the working folder; empty for the folder of the task, which has another path on each node."""
    return "" if "${" in row.work_folder else row.work_folder


def _read_id(job_id: str) -> int | str:
    """Return the id of a job as a number if it is one: jobs of `sbatch` have numbers, others have names."""
    return int(job_id) if job_id.isascii() and job_id.isdecimal() else job_id


def _number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def _time(time_ns: int) -> dict[str, Any]:
    return _number(time_ns // SECOND if time_ns else None)


def _limit(row: Row) -> dict[str, Any]:
    """Return the time limit in minutes, rounded up; infinite if there is none."""
    minutes = -(-row.time_limit_ns // (SECONDS_PER_MINUTE * SECOND))
    return _number(minutes) if minutes else {"set": False, "infinite": True, "number": 0}

"""The archive of `wharf operator debug`: stacks, logs, configuration and system facts, without secrets.

The archive describes the cluster state by sizes and counts only. The redactor filters every text before it is written.
"""

import contextlib
import io
import os
import platform
import tarfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from wharf import __version__
from wharf.agent.errors import CommandError
from wharf.agent.logs.lines import format_log_time
from wharf.agent.logs.redaction import Redactor
from wharf.agent.supervision.control import DebugReply, DebugRequest, send_control_request
from wharf.config.settings import AgentSettings
from wharf.config.tree import PlainValue
from wharf.config.values import list_secrets, redact_settings
from wharf.contract.model.times import SECOND
from wharf.sinks.rotation import list_rotated_files
from wharf.world import RealWorld

MAX_LOG_BYTES: Final = 5_000_000
"""Limits the log text in the archive."""
MAX_LISTED_FILES: Final = 5_000
"""Limits the list of the data folder's files in the archive."""

_SYSTEM_FILES: Final = ("/proc/loadavg", "/proc/meminfo", "/proc/uptime", "/proc/pressure/cpu", "/proc/pressure/io")


class DebugArchive(msgspec.Struct, frozen=True):
    """A written archive, and what it lacks."""

    path: Path
    file_count: int
    data_folder: Path
    is_agent_running: bool
    silent_processes: list[str]
    """Processes that did not answer in time."""


def make_archive(settings: AgentSettings, output: Path | None, *, timeout_s: float) -> DebugArchive:
    """Collect debug information from the running agent, if there is one, and write the archive. Raises `CommandError`."""
    folder = Path(settings.data_dir)
    now_ns = RealWorld().now_ns()
    reply = send_control_request(folder, DebugRequest(), timeout_s=timeout_s)
    assert reply is None or isinstance(reply, DebugReply), "each request type has one reply type"
    if reply is None and not folder.exists():
        raise CommandError(f"there is no data folder {folder}: name the agent's with --data-dir or --config")
    files = collect_files(
        reply,
        folder=folder,
        log_file=Path(settings.log_file) if settings.log_file else None,
        configuration=redact_settings(settings),
        now_ns=now_ns,
    )
    stamp = datetime.fromtimestamp(now_ns // SECOND, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    path = output or Path(f"wharf-debug-{stamp}.tar.gz")
    write_archive(path, files, Redactor(list_secrets(settings)), now_ns=now_ns)
    silent = [process.name for process in reply.processes if process.description is None] if reply else []
    return DebugArchive(path, len(files), folder, reply is not None, silent)


def collect_files(
    reply: DebugReply | None, *, folder: Path, log_file: Path | None, configuration: PlainValue, now_ns: int
) -> dict[str, str]:
    """Return the texts of the archive by file name.

    `reply` comes from the running agent, or is `None` if no agent runs. `configuration` must be free of secrets; it is
    used if there is no reply.
    """
    files = {
        "about.json": _format_json(
            {
                "collected_at": format_log_time(now_ns / SECOND),
                "wharf": __version__,
                "agent_version": reply.version if reply is not None else None,
                "agent_is_running": reply is not None,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "cores": os.cpu_count(),
            }
        ),
        "system.txt": _read_system_files(),
        "configuration.json": _format_json(reply.configuration if reply is not None else configuration),
        "state.json": _format_json(_measure_folder(folder)),
    }
    if log_file is not None:
        files["logs/wharf.log"] = _read_log_tail(log_file)
    if reply is not None:
        files |= _collect_process_files(reply)
    return files


def write_archive(path: Path, files: Mapping[str, str], redactor: Redactor, *, now_ns: int) -> None:
    """Write one compressed archive that only its owner can read. Raises `CommandError` if the file exists."""
    name = path.name.removesuffix(".gz").removesuffix(".tar")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise CommandError(f"{path} exists already: choose another --output") from error
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as opened, tarfile.open(fileobj=opened, mode="w:gz") as archive:
        for file, text in sorted(files.items()):
            data = redactor.redact(text).encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size, member.mode, member.mtime = len(data), 0o600, now_ns // SECOND
            archive.addfile(member, io.BytesIO(data))


def _collect_process_files(reply: DebugReply) -> dict[str, str]:
    """Return stacks and recent log lines of each process, and a summary of all processes."""
    files = {"stacks/agent.txt": reply.agent_stacks, "logs/agent.jsonl": _join_lines(reply.agent_log_lines)}
    summaries: list[PlainValue] = []
    for process in reply.processes:
        description = process.description
        facts: dict[str, str] = description.facts if description is not None else {}
        summaries.append(
            {
                "name": process.name,
                "pid": process.pid,
                "phase": process.phase,
                "restarts": process.restarts,
                "answered": description is not None,
                "details": dict(process.details),
                "facts": dict(facts),
            }
        )
        if description is not None:
            files[f"stacks/{process.name}.txt"] = description.stacks
            files[f"logs/{process.name}.jsonl"] = _join_lines(description.log_lines)
    return files | {"processes.json": _format_json(summaries)}


def _measure_folder(folder: Path) -> PlainValue:
    """Return names, sizes and modes of the files in the data folder, and the free space of its disk."""
    found: list[PlainValue] = []
    total = 0
    for path, _, names in os.walk(folder):
        for name in sorted(names):
            file = Path(path) / name
            with contextlib.suppress(OSError):  # The file was deleted during the walk.
                status = file.lstat()
                total += status.st_size
                if len(found) < MAX_LISTED_FILES:
                    found.append(
                        {
                            "file": str(file.relative_to(folder)),
                            "bytes": status.st_size,
                            "mode": f"{status.st_mode & 0o7777:o}",
                        }
                    )
    disk: PlainValue = None
    with contextlib.suppress(OSError):
        file_system = os.statvfs(folder)
        disk = {
            "bytes": file_system.f_blocks * file_system.f_frsize,
            "free_bytes": file_system.f_bavail * file_system.f_frsize,
        }
    return {"folder": str(folder), "bytes": total, "files": found, "disk": disk}


def _read_log_tail(log_file: Path) -> str:
    """Return the last `MAX_LOG_BYTES` of the log, continuing into rotated files if the newest is shorter."""
    parts: list[bytes] = []
    remaining_bytes = MAX_LOG_BYTES
    for file in [log_file, *reversed(list_rotated_files(log_file))]:
        with contextlib.suppress(OSError), file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - remaining_bytes))
            parts.append(opened.read(remaining_bytes))
            remaining_bytes -= len(parts[-1])
        if remaining_bytes <= 0:
            break
    return b"".join(reversed(parts)).decode("utf-8", "replace")


def _read_system_files() -> str:
    """Return load, memory, uptime and pressure of the machine as the kernel reports them."""
    parts: list[str] = []
    for name in _SYSTEM_FILES:
        with contextlib.suppress(OSError):
            parts.append(f"{name}\n{Path(name).read_text('utf-8')}")
    return "\n".join(parts)


def _join_lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _format_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"

"""The archive of `wharf operator debug`: what someone needs to find a fault, and nothing that is secret.

State is told by sizes and counts, never by its contents. Every text goes through the redactor once more.
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
from wharf.agent.logs.rotation import list_rotated_files
from wharf.agent.supervision.control import DebugReply, DebugRequest, send_control_request
from wharf.config.settings import AgentSettings
from wharf.config.tree import PlainValue
from wharf.config.values import list_secrets, redact_settings
from wharf.contract.model.times import SECOND
from wharf.world import RealWorld

MAX_LOG_BYTES: Final = 5_000_000
MAX_LISTED_FILES: Final = 5_000

_SYSTEM_FILES: Final = ("/proc/loadavg", "/proc/meminfo", "/proc/uptime", "/proc/pressure/cpu", "/proc/pressure/io")


class DebugArchive(msgspec.Struct, frozen=True):
    """An archive that was made, and what is missing in it."""

    path: Path
    file_count: int
    data_folder: Path
    is_agent_running: bool
    silent_processes: list[str]
    """Processes that did not answer in time."""


def make_archive(settings: AgentSettings, output: Path | None, *, timeout_s: float) -> DebugArchive:
    """Ask the agent that runs on the data folder, if one does, and write all that can be told. Raises CommandError."""
    folder = Path(settings.data_dir)
    now_ns = RealWorld().now_ns()
    answer = send_control_request(folder, DebugRequest(), timeout_s=timeout_s)
    assert answer is None or isinstance(answer, DebugReply), "each question has one kind of answer"
    if answer is None and not folder.exists():
        raise CommandError(f"there is no data folder {folder}: name the agent's with --data-dir or --config")
    files = collect_files(
        answer,
        folder=folder,
        log_file=Path(settings.log_file) if settings.log_file else None,
        configuration=redact_settings(settings),
        now_ns=now_ns,
    )
    stamp = datetime.fromtimestamp(now_ns // SECOND, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    path = output or Path(f"wharf-debug-{stamp}.tar.gz")
    write_archive(path, files, Redactor(list_secrets(settings)), now_ns=now_ns)
    silent = [process.name for process in answer.processes if process.description is None] if answer else []
    return DebugArchive(path, len(files), folder, answer is not None, silent)


def collect_files(
    reply: DebugReply | None, *, folder: Path, log_file: Path | None, configuration: PlainValue, now_ns: int
) -> dict[str, str]:
    """Files by name. `answer` is the running agent's, or None when none runs; `configuration` is without secrets."""
    files = {
        "about.json": _json(
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
        "system.txt": _system(),
        "configuration.json": _json(reply.configuration if reply is not None else configuration),
        "state.json": _json(_sizes(folder)),
    }
    if log_file is not None:
        files["logs/wharf.log"] = _log_tail(log_file)
    if reply is not None:
        files |= _of_processes(reply)
    return files


def write_archive(path: Path, files: Mapping[str, str], redactor: Redactor, *, now_ns: int) -> None:
    """One compressed archive that only its owner reads. Raises CommandError."""
    name = path.name.removesuffix(".gz").removesuffix(".tar")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise CommandError(f"{path} is there already: choose another --output") from error
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as opened, tarfile.open(fileobj=opened, mode="w:gz") as archive:
        for file, text in sorted(files.items()):
            data = redactor.redact(text).encode("utf-8", "replace")
            member = tarfile.TarInfo(f"{name}/{file}")
            member.size, member.mode, member.mtime = len(data), 0o600, now_ns // SECOND
            archive.addfile(member, io.BytesIO(data))


def _of_processes(answer: DebugReply) -> dict[str, str]:
    files = {"stacks/agent.txt": answer.agent_stacks, "logs/agent.jsonl": _lines(answer.agent_log_lines)}
    told: list[PlainValue] = []
    for process in answer.processes:
        description = process.description
        facts: dict[str, str] = description.facts if description is not None else {}
        told.append(
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
            files[f"logs/{process.name}.jsonl"] = _lines(description.log_lines)
    return files | {"processes.json": _json(told)}


def _sizes(folder: Path) -> PlainValue:
    """What lies in the data folder: names, sizes and modes."""
    found: list[PlainValue] = []
    total = 0
    for path, _, names in os.walk(folder):
        for name in sorted(names):
            file = Path(path) / name
            with contextlib.suppress(OSError):  # It went away while we looked.
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
        room = os.statvfs(folder)
        disk = {"bytes": room.f_blocks * room.f_frsize, "free_bytes": room.f_bavail * room.f_frsize}
    return {"folder": str(folder), "bytes": total, "files": found, "disk": disk}


def _log_tail(log_file: Path) -> str:
    """The newest lines, from the file before too where the newest is short."""
    parts: list[bytes] = []
    room = MAX_LOG_BYTES
    for file in [log_file, *reversed(list_rotated_files(log_file))]:
        with contextlib.suppress(OSError), file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - room))
            parts.append(opened.read(room))
            room -= len(parts[-1])
        if room <= 0:
            break
    return b"".join(reversed(parts)).decode("utf-8", "replace")


def _system() -> str:
    parts: list[str] = []
    for name in _SYSTEM_FILES:
        with contextlib.suppress(OSError):
            parts.append(f"{name}\n{Path(name).read_text('utf-8')}")
    return "\n".join(parts)


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"

"""Fetches an artifact into a scratch folder, verifies it, and moves it to its destination in the task's folder."""

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.artifacts.archives import UnpackBudget, detect_archive_kind, unpack_archive
from wharf.node.artifacts.confined_folder import ConfinedFolder
from wharf.node.artifacts.download import download_file
from wharf.node.artifacts.errors import ArtifactError
from wharf.node.artifacts.git import clone_repository
from wharf.node.artifacts.source import ArtifactSource, parse_source

BYTES_PER_GB: Final = 1 << 30
MAX_REPOSITORY_FILES: Final = 1_000_000


class ArtifactLimits(NamedTuple):
    max_bytes: int = 100 * BYTES_PER_GB
    max_unpacked_bytes: int = 100 * BYTES_PER_GB
    max_files: int = 4_096
    total_timeout_s: float = 1_800.0
    idle_timeout_s: float = 60.0


class ArtifactRequest(NamedTuple):
    """An artifact of the job, with all references resolved."""

    source: str
    options: Mapping[str, str]
    headers: Mapping[str, str]
    mode: str  # any, file, dir
    is_insecure: bool
    destination: str  # Below the task's folder; empty: `local/`.


async def fetch_artifact(
    wanted: ArtifactRequest,
    task_folder: Path,
    *,
    owner: tuple[int, int] | None = None,
    limits: ArtifactLimits | None = None,
) -> None:
    """Fetch one artifact. Raises ArtifactError.

    Writes only below the task's folder, and removes its scratch files.
    """
    limits = limits or ArtifactLimits()
    source = parse_source(wanted.source, wanted.options)
    still_wanted = True
    scratch = Path(tempfile.mkdtemp(prefix=".artifact-", dir=task_folder))
    try:
        async with asyncio.timeout(limits.total_timeout_s):
            await _obtain(source, wanted, task_folder, scratch, limits)
            inside = ConfinedFolder(task_folder, owner)
            # The bound is against archives that unfold without end; a repository has the files that it has.
            files_max = MAX_REPOSITORY_FILES if source.getter == "git" else limits.max_files
            budget = UnpackBudget(limits.max_unpacked_bytes, files_max, lambda: still_wanted)
            await asyncio.to_thread(_place, source, wanted, scratch, inside, budget)
    except TimeoutError:
        raise ArtifactError(f"it is not there after {limits.total_timeout_s:g} s") from None
    except OSError as error:
        raise ArtifactError(f"it cannot be written: {error.strerror or error}") from error
    finally:
        still_wanted = False  # A thread that unpacks still hears of it.
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


async def _obtain(
    source: ArtifactSource, wanted: ArtifactRequest, task_folder: Path, scratch: Path, bounds: ArtifactLimits
) -> None:
    match source.getter:
        case "git":
            await clone_repository(source, scratch / "tree", scratch, max_bytes=bounds.max_bytes)
        case "file":
            await asyncio.to_thread(_copy_local, source, task_folder, scratch / "file", bounds.max_bytes)
        case _:
            await download_file(
                source.address,
                wanted.headers,
                scratch / "file",
                checksum=source.checksum,
                is_insecure=wanted.is_insecure,
                max_bytes=bounds.max_bytes,
                idle_timeout_s=bounds.idle_timeout_s,
            )


def _copy_local(source: ArtifactSource, task_folder: Path, into: Path, bytes_max: int) -> None:
    handle = _open_inside(task_folder, source.address)
    with os.fdopen(handle, "rb") as file, into.open("wb") as copy:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > bytes_max:
            raise ArtifactError(f"{source.address[:200]} is no file that could be unpacked", is_permanent=True)
        digest = source.checksum.new_digest() if source.checksum else None
        while piece := file.read(1 << 20):
            copy.write(piece)
            if digest:
                digest.update(piece)
        if digest and source.checksum and digest.hexdigest() != source.checksum.value:
            raise ArtifactError(f"{source.address[:200]} has another checksum: {digest.hexdigest()}")


def _open_inside(folder: Path, path: str) -> int:
    """Open a file below the folder without following links."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, name = [step for step in path.split("/") if step not in ("", ".")] or [""]
    try:
        for step in folders:
            below = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle = below
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=handle)
    finally:
        os.close(handle)


def _place(
    source: ArtifactSource, wanted: ArtifactRequest, scratch: Path, inside: ConfinedFolder, budget: UnpackBudget
) -> None:
    destination = wanted.destination.strip("/") or "local"
    if source.getter == "git":
        if wanted.mode == "file":
            raise ArtifactError("a repository is a folder: leave the mode at any, or say dir", is_permanent=True)
        _place_tree(scratch / "tree" / source.folder, inside, destination, budget, source)
        return
    kind = detect_archive_kind(source.basename, source.archive)
    match wanted.mode:
        case "dir" if not kind:
            raise ArtifactError(f"{source.basename} is no archive, and the mode is dir", is_permanent=True)
        case "file":
            _place_file(source, wanted, kind, scratch, inside, budget)
        case _ if kind:
            inside.make_folder(destination)
            unpack_archive(scratch / "file", kind, source.basename, source.folder, inside, destination, budget)
        case _:
            _copy(scratch / "file", inside, f"{destination}/{source.basename}", 0o644, budget)


def _place_file(
    source: ArtifactSource,
    wanted: ArtifactRequest,
    kind: str,
    scratch: Path,
    inside: ConfinedFolder,
    budget: UnpackBudget,
) -> None:
    name = source.basename.removesuffix(f".{kind}") if kind else source.basename
    target = wanted.destination.strip("/") or f"local/{name}"
    if not kind:
        _copy(scratch / "file", inside, target, 0o644, budget)
        return
    unpacked = ConfinedFolder(scratch)
    made = unpack_archive(scratch / "file", kind, source.basename, source.folder, unpacked, "tree", budget)
    if len(made) != 1:
        raise ArtifactError(f"{source.basename} holds {len(made)} files, and the mode is file", is_permanent=True)
    _copy(scratch / made[0], inside, target, (scratch / made[0]).stat().st_mode & 0o777, budget)


def _place_tree(
    tree: Path, inside: ConfinedFolder, destination: str, budget: UnpackBudget, source: ArtifactSource
) -> None:
    if not tree.is_dir() or tree.is_symlink():
        raise ArtifactError(f"the repository has no folder {source.folder[:200]}", is_permanent=True)
    inside.make_folder(destination)
    for where, folders, names in os.walk(tree):
        below = os.path.relpath(where, tree)
        prefix = destination if below == "." else f"{destination}/{below}"
        for name in (*folders, *names):
            path = Path(where) / name
            budget.count_file()
            if path.is_symlink():
                inside.create_link(f"{prefix}/{name}", os.readlink(path))
            elif path.is_dir():
                inside.make_folder(f"{prefix}/{name}")
            else:
                _copy(path, inside, f"{prefix}/{name}", path.stat().st_mode & 0o777, budget)


def _copy(path: Path, inside: ConfinedFolder, target: str, mode: int, budget: UnpackBudget) -> None:
    with path.open("rb") as source, inside.open_new_file(target, mode) as file:
        while piece := source.read(1 << 20):
            budget.count_bytes(len(piece))
            file.write(piece)

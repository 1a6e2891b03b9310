"""An artifact from first to last: fetched into a scratch folder, checked, and put where the task will look for it."""

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.artifacts.archives import Budget, kind_of, unpack
from wharf.node.artifacts.download import download
from wharf.node.artifacts.errors import ArtifactError
from wharf.node.artifacts.inside import Inside
from wharf.node.artifacts.repository import clone
from wharf.node.artifacts.source import Source, read_source

GIGABYTE: Final = 1 << 30
REPOSITORY_FILES_MAX: Final = 1_000_000


class Bounds(NamedTuple):
    bytes_max: int = 100 * GIGABYTE
    unpacked_max: int = 100 * GIGABYTE
    files_max: int = 4_096
    whole_s: float = 1_800.0
    silent_s: float = 60.0


class Wanted(NamedTuple):
    """What the job says, with everything in it put in."""

    source: str
    options: Mapping[str, str]
    headers: Mapping[str, str]
    mode: str  # any, file, dir
    is_insecure: bool
    destination: str  # Below the task's folder; empty: `local/`.


async def fetch(
    wanted: Wanted, task_folder: Path, *, owner: tuple[int, int] | None = None, bounds: Bounds | None = None
) -> None:
    """Raises ArtifactError. Nothing outside the task's folder is touched, and no scratch is left."""
    bounds = bounds or Bounds()
    source = read_source(wanted.source, wanted.options)
    still_wanted = True
    scratch = Path(tempfile.mkdtemp(prefix=".artifact-", dir=task_folder))
    try:
        async with asyncio.timeout(bounds.whole_s):
            await _obtain(source, wanted, task_folder, scratch, bounds)
            inside = Inside(task_folder, owner)
            # The bound is against archives that unfold without end; a repository has the files that it has.
            files_max = REPOSITORY_FILES_MAX if source.getter == "git" else bounds.files_max
            budget = Budget(bounds.unpacked_max, files_max, lambda: still_wanted)
            await asyncio.to_thread(_place, source, wanted, scratch, inside, budget)
    except TimeoutError:
        raise ArtifactError(f"it is not there after {bounds.whole_s:g} s") from None
    except OSError as error:
        raise ArtifactError(f"it cannot be written: {error.strerror or error}") from error
    finally:
        still_wanted = False  # A thread that unpacks still hears of it.
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


async def _obtain(source: Source, wanted: Wanted, task_folder: Path, scratch: Path, bounds: Bounds) -> None:
    match source.getter:
        case "git":
            await clone(source, scratch / "tree", scratch, bytes_max=bounds.bytes_max)
        case "file":
            await asyncio.to_thread(_copy_local, source, task_folder, scratch / "file", bounds.bytes_max)
        case _:
            await download(
                source.address,
                wanted.headers,
                scratch / "file",
                checksum=source.checksum,
                is_insecure=wanted.is_insecure,
                bytes_max=bounds.bytes_max,
                silent_s=bounds.silent_s,
            )


def _copy_local(source: Source, task_folder: Path, into: Path, bytes_max: int) -> None:
    handle = _open_inside(task_folder, source.address)
    with os.fdopen(handle, "rb") as file, into.open("wb") as copy:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > bytes_max:
            raise ArtifactError(f"{source.address[:200]} is no file that could be unpacked", is_lasting=True)
        digest = source.checksum.new() if source.checksum else None
        while piece := file.read(1 << 20):
            copy.write(piece)
            if digest:
                digest.update(piece)
        if digest and source.checksum and digest.hexdigest() != source.checksum.value:
            raise ArtifactError(f"{source.address[:200]} has another checksum: {digest.hexdigest()}")


def _open_inside(folder: Path, path: str) -> int:
    """The file, reached through no link."""
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


def _place(source: Source, wanted: Wanted, scratch: Path, inside: Inside, budget: Budget) -> None:
    destination = wanted.destination.strip("/") or "local"
    if source.getter == "git":
        if wanted.mode == "file":
            raise ArtifactError("a repository is a folder: leave the mode at any, or say dir", is_lasting=True)
        _place_tree(scratch / "tree" / source.folder, inside, destination, budget, source)
        return
    kind = kind_of(source.basename, source.archive)
    match wanted.mode:
        case "dir" if not kind:
            raise ArtifactError(f"{source.basename} is no archive, and the mode is dir", is_lasting=True)
        case "file":
            _place_file(source, wanted, kind, scratch, inside, budget)
        case _ if kind:
            inside.make_folder(destination)
            unpack(scratch / "file", kind, source.basename, source.folder, inside, destination, budget)
        case _:
            _copy(scratch / "file", inside, f"{destination}/{source.basename}", 0o644, budget)


def _place_file(source: Source, wanted: Wanted, kind: str, scratch: Path, inside: Inside, budget: Budget) -> None:
    name = source.basename.removesuffix(f".{kind}") if kind else source.basename
    target = wanted.destination.strip("/") or f"local/{name}"
    if not kind:
        _copy(scratch / "file", inside, target, 0o644, budget)
        return
    unpacked = Inside(scratch)
    made = unpack(scratch / "file", kind, source.basename, source.folder, unpacked, "tree", budget)
    if len(made) != 1:
        raise ArtifactError(f"{source.basename} holds {len(made)} files, and the mode is file", is_lasting=True)
    _copy(scratch / made[0], inside, target, (scratch / made[0]).stat().st_mode & 0o777, budget)


def _place_tree(tree: Path, inside: Inside, destination: str, budget: Budget, source: Source) -> None:
    if not tree.is_dir() or tree.is_symlink():
        raise ArtifactError(f"the repository has no folder {source.folder[:200]}", is_lasting=True)
    inside.make_folder(destination)
    for where, folders, names in os.walk(tree):
        below = os.path.relpath(where, tree)
        prefix = destination if below == "." else f"{destination}/{below}"
        for name in (*folders, *names):
            path = Path(where) / name
            budget.file()
            if path.is_symlink():
                inside.link(f"{prefix}/{name}", os.readlink(path))
            elif path.is_dir():
                inside.make_folder(f"{prefix}/{name}")
            else:
                _copy(path, inside, f"{prefix}/{name}", path.stat().st_mode & 0o777, budget)


def _copy(path: Path, inside: Inside, target: str, mode: int, budget: Budget) -> None:
    with path.open("rb") as source, inside.file(target, mode) as file:
        while piece := source.read(1 << 20):
            budget.bytes(len(piece))
            file.write(piece)

"""Fetches an artifact into a scratch folder, verifies it, and moves it to its destination in the task's folder."""

import asyncio
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from wharf.node.artifacts.archives import (
    CHUNK_BYTES,
    detect_archive_format,
    unpack_archive,
    write_file,
)
from wharf.node.artifacts.budget import CopyBudget
from wharf.node.artifacts.download import download_file
from wharf.node.artifacts.errors import ArtifactError
from wharf.node.artifacts.git import clone_repository
from wharf.node.artifacts.source import ArtifactSource, Getter, parse_source
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.deletion import delete_tree
from wharf.node.fair_queue import ItemOwner, QueueFull
from wharf.node.threads import ThreadGroup, run_in_owned_thread, run_in_thread

BYTES_PER_GB: Final = 1 << 30
MAX_REPOSITORY_FILES: Final = 1_000_000
"""Limit of files in a repository; protects the inodes of the node."""
FETCHED_FILE: Final = "file"
"""The fetched file in the scratch folder."""
FETCHED_TREE: Final = "tree"
"""The cloned repository, or the unpacked archive of mode `file`, in the scratch folder."""


class ArtifactLimits(NamedTuple):
    """Limits for one artifact; they protect the node's disk and the time until a task starts."""

    max_bytes: int = 100 * BYTES_PER_GB  # of the downloaded file or repository
    max_unpacked_bytes: int = 100 * BYTES_PER_GB  # of the archive's content
    max_files: int = 4_096  # in an archive
    total_timeout_s: float = 1_800.0  # for the whole download
    idle_timeout_s: float = 60.0
    """Seconds without data after which a download fails."""


class ArtifactRequest(NamedTuple):
    """An artifact of the job, with all references resolved."""

    source: str
    options: Mapping[str, str]
    headers: Mapping[str, str]
    mode: str
    """`any`, `file` or `dir`."""
    is_insecure: bool
    """Whether certificates are not verified."""
    destination: str
    """Path below the task's folder; empty: `local/`."""


async def fetch_artifact(
    request: ArtifactRequest,
    task_folder: Path,
    *,
    owner: tuple[int, int] | None = None,
    limits: ArtifactLimits | None = None,
    thread_owner: ItemOwner | None = None,
) -> None:
    """Fetch one artifact and install it in the task's folder. Raises ArtifactError.

    Installed files belong to `owner` (uid and gid), if given. `thread_owner` shares the threads for artifacts with others.
    Nothing is written outside of the task's folder, and the scratch files are removed. After a cancellation, nothing is written
    any more.
    """
    limits = limits or ArtifactLimits()
    try:
        source = parse_source(request.source, request.options)
    except ValueError as error:
        raise ArtifactError(f"its source cannot be used: {error}", is_permanent=True) from error
    # Beside the folders of tasks: in them, a task could replace the scratch folder by a link.
    scratch = Path(tempfile.mkdtemp(prefix=".artifact-", dir=task_folder.parent))
    try:
        async with asyncio.timeout(limits.total_timeout_s):
            thread_owner = thread_owner or ItemOwner()
            await _fetch_to_scratch(source, request, task_folder, scratch, limits, thread_owner)
            # `max_files` protects against archives that unpack to too much; a repository has its files already.
            max_files = MAX_REPOSITORY_FILES if source.getter is Getter.GIT else limits.max_files
            budget = CopyBudget(limits.max_unpacked_bytes, max_files, disk_folder=task_folder)
            folder = ConfinedFolder(task_folder, owner)
            await run_in_owned_thread(
                ThreadGroup.ARTIFACTS, thread_owner, budget.cancel, _install, source, request, scratch, folder, budget
            )
    except ValueError as error:  # A text that no program, file or request can contain, such as one with a zero byte.
        raise ArtifactError(f"its source, options or headers cannot be used: {error}", is_permanent=True) from error
    except TimeoutError:
        raise ArtifactError(f"the download took longer than {limits.total_timeout_s:g} s") from None
    except QueueFull as error:
        raise ArtifactError(f"too many downloads wait on the node: {error}") from None
    except ConfinedPathError as error:
        raise ArtifactError(str(error), is_permanent=True) from error
    except OSError as error:
        raise ArtifactError(f"its files cannot be read or written: {error.strerror or error}") from error
    finally:
        await asyncio.shield(run_in_thread(ThreadGroup.SCRATCH, delete_tree, scratch))


async def _fetch_to_scratch(
    source: ArtifactSource,
    request: ArtifactRequest,
    task_folder: Path,
    scratch: Path,
    limits: ArtifactLimits,
    owner: ItemOwner,
) -> None:
    """Download the file, copy it from the task's folder, or clone the repository, into the scratch folder.

    Raises ArtifactError and OSError.
    """
    budget = CopyBudget(limits.max_bytes, disk_folder=scratch, content="the file")
    match source.getter:
        case Getter.GIT:
            await clone_repository(source, scratch / FETCHED_TREE, scratch, budget=budget, owner=owner)
        case Getter.FILE:
            target = scratch / FETCHED_FILE
            await run_in_owned_thread(
                ThreadGroup.ARTIFACTS, owner, budget.cancel, _copy_task_file, source, task_folder, target, budget
            )
        case Getter.HTTP:
            await download_file(
                source.address,
                request.headers,
                scratch / FETCHED_FILE,
                checksum=source.checksum,
                is_insecure=request.is_insecure,
                idle_timeout_s=limits.idle_timeout_s,
                budget=budget,
                owner=owner,
            )


def _copy_task_file(source: ArtifactSource, task_folder: Path, target: Path, budget: CopyBudget) -> None:
    """Copy a file of the task's folder to `target` and verify its checksum. Raises ArtifactError and OSError."""
    try:
        opened = ConfinedFolder(task_folder).open_existing_file(source.address)
    except ConfinedPathError as error:
        raise ArtifactError(str(error)) from error
    with opened as file, target.open("wb") as copy:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > budget.max_bytes:
            raise ArtifactError(
                f"{source.address[:200]} is not a regular file of at most {budget.max_bytes:,} bytes", is_permanent=True
            )
        digest = source.checksum.new_digest() if source.checksum else None
        while chunk := file.read(CHUNK_BYTES):
            budget.count_bytes(len(chunk))  # A task may extend the file meanwhile.
            copy.write(chunk)
            if digest:
                digest.update(chunk)
        if digest and source.checksum:
            source.checksum.verify(digest.hexdigest())


def _install(
    source: ArtifactSource, request: ArtifactRequest, scratch: Path, task_folder: ConfinedFolder, budget: CopyBudget
) -> None:
    """Copy or unpack the fetched file or repository to its destination in the task's folder.

    Raises ArtifactError, ConfinedPathError and OSError.
    """
    destination = request.destination.strip("/") or "local"
    if source.getter is Getter.GIT:
        if request.mode == "file":
            raise ArtifactError("a repository is a folder: set mode to any or dir", is_permanent=True)
        _install_tree(ConfinedFolder(scratch / FETCHED_TREE), task_folder, destination, budget, source.folder)
        return
    archive_format = detect_archive_format(source.basename, source.archive)
    match request.mode:
        case "dir" if not archive_format:
            raise ArtifactError(f"{source.basename} is not an archive, but mode is dir", is_permanent=True)
        case "file":
            _install_single_file(source, request, archive_format, scratch, task_folder, budget)
        case _ if archive_format:
            task_folder.make_folder(destination)
            archive = scratch / FETCHED_FILE
            unpack_archive(archive, archive_format, source.basename, source.folder, task_folder, destination, budget)
        case _:
            _copy_file(scratch / FETCHED_FILE, task_folder, f"{destination}/{source.basename}", 0o644, budget)


def _install_single_file(
    source: ArtifactSource,
    request: ArtifactRequest,
    archive_format: str,
    scratch: Path,
    task_folder: ConfinedFolder,
    budget: CopyBudget,
) -> None:
    """Install exactly one file: the fetched file itself, or the only file of the archive.

    For artifacts with mode `file`. Raises ArtifactError, ConfinedPathError and OSError.
    """
    name = source.basename.removesuffix(f".{archive_format}") if archive_format else source.basename
    target = request.destination.strip("/") or f"local/{name}"
    if not archive_format:
        _copy_file(scratch / FETCHED_FILE, task_folder, target, 0o644, budget)
        return
    created = unpack_archive(
        scratch / FETCHED_FILE,
        archive_format,
        source.basename,
        source.folder,
        ConfinedFolder(scratch),
        FETCHED_TREE,
        budget,
    )
    if len(created) != 1:
        raise ArtifactError(f"{source.basename} has {len(created)} files, but mode is file", is_permanent=True)
    with ConfinedFolder(scratch).open_existing_file(created[0]) as unpacked:
        write_file(unpacked, task_folder, target, os.fstat(unpacked.fileno()).st_mode & 0o777, budget)


def _install_tree(
    repository: ConfinedFolder, task_folder: ConfinedFolder, destination: str, budget: CopyBudget, folder: str
) -> None:
    """Copy the folder `folder` of a cloned repository to `destination`, with its files and links.

    A link of the repository is copied and never followed. Raises ArtifactError, ConfinedPathError and OSError.
    """
    task_folder.make_folder(destination)
    remaining = [folder.strip("/")]
    start = len(remaining[0])
    while remaining:
        current = remaining.pop()
        try:
            with repository.open_folder(current) as descriptor, os.scandir(descriptor) as found:
                entries = [(entry.name, entry.stat(follow_symlinks=False).st_mode) for entry in found]
                links = {name: os.readlink(name, dir_fd=descriptor) for name, mode in entries if stat.S_ISLNK(mode)}
        except (FileNotFoundError, ConfinedPathError):
            raise ArtifactError(
                f"the repository has no folder {current[:200]}; links are not followed", is_permanent=True
            ) from None
        for name, mode in entries:
            path = f"{current}/{name}".lstrip("/")
            target = f"{destination}/{path[start:].lstrip('/')}"
            budget.count_file()
            if name in links:
                task_folder.create_link(target, links[name])
            elif stat.S_ISDIR(mode):
                task_folder.make_folder(target)
                remaining.append(path)
            else:
                with repository.open_existing_file(path) as source:
                    write_file(source, task_folder, target, mode & 0o777, budget)


def _copy_file(path: Path, task_folder: ConfinedFolder, target: str, mode: int, budget: CopyBudget) -> None:
    with path.open("rb") as source:
        write_file(source, task_folder, target, mode, budget)

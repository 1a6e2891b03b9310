"""Fetches an artifact into a scratch folder, verifies it, and moves it to its destination in the task's folder."""

import asyncio
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Concatenate, Final, NamedTuple, ParamSpec

import msgspec

from wharf.node.artifacts.download import download_file
from wharf.node.artifacts.git import clone_repository
from wharf.node.artifacts.source import ArtifactSource, Getter, parse_source
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.deletion import delete_tree
from wharf.node.fair_queue import ItemOwner, QueueFull
from wharf.node.subprocesses import run_program
from wharf.node.threads import ThreadGroup, find_unpacking_slots, run_in_owned_thread, run_in_thread
from wharf.node.unpacking.archives import (
    CHUNK_BYTES,
    detect_archive_format,
    write_file,
)
from wharf.node.unpacking.budget import CopyBudget
from wharf.node.unpacking.errors import ArtifactError
from wharf.node.unpacking.messages import UnpackOrder, UnpackReply

P = ParamSpec("P")

BYTES_PER_GB: Final = 1 << 30
MAX_REPOSITORY_FILES: Final = 1_000_000
"""Limit of files in a repository; protects the inodes of the node."""
INHERITED_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")
"""The variables of the agent that the process gets. It needs none of the agent's secrets."""
MAX_REPLY_BYTES: Final = 64 << 10
"""Far more than a reply has; protects the memory of the agent."""
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
            await _Installation(source, request, scratch, task_folder, owner, limits, thread_owner).run()
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


class _Installation(NamedTuple):
    """The fetched file or repository in the scratch folder, and where it is copied or unpacked to.

    The methods raise ArtifactError, ConfinedPathError, QueueFull and OSError.
    """

    source: ArtifactSource
    request: ArtifactRequest
    scratch: Path
    task_folder: Path
    owner: tuple[int, int] | None
    limits: ArtifactLimits
    thread_owner: ItemOwner

    async def run(self) -> None:
        """Copy or unpack the fetched file or repository to its destination in the task's folder."""
        source, mode = self.source, self.request.mode
        destination = self.request.destination.strip("/") or "local"
        if source.getter is Getter.GIT:
            if mode == "file":
                raise ArtifactError("a repository is a folder: set mode to any or dir", is_permanent=True)
            repository = ConfinedFolder(self.scratch / FETCHED_TREE)
            # `max_files` protects against archives that unpack to too much; a repository has its files already.
            await self._run_copy(MAX_REPOSITORY_FILES, _install_tree, repository, destination, source.folder)
            return
        archive_format = detect_archive_format(source.basename, source.archive)
        if mode == "dir" and not archive_format:
            raise ArtifactError(f"{source.basename} is not an archive, but mode is dir", is_permanent=True)
        if mode == "file":
            await self._install_single_file(archive_format)
        elif archive_format:
            await self._unpack(archive_format, self.task_folder, destination, self.owner)
        else:
            await self._run_copy(1, _copy_file, self.scratch, FETCHED_FILE, f"{destination}/{source.basename}")

    async def _install_single_file(self, archive_format: str) -> None:
        """Install exactly one file: the fetched file itself, or the only file of the archive."""
        name, path = self.source.basename, FETCHED_FILE
        if archive_format:
            name = name.removesuffix(f".{archive_format}")
            reply = await self._unpack(archive_format, self.scratch, FETCHED_TREE, None)
            path = os.fsdecode(reply.first_path)
            if reply.file_count != 1:
                raise ArtifactError(
                    f"{self.source.basename} has {reply.file_count} files, but mode is file", is_permanent=True
                )
        target = self.request.destination.strip("/") or f"local/{name}"
        await self._run_copy(1, _copy_file, self.scratch, path, target)

    async def _unpack(
        self, archive_format: str, root: Path, destination: str, owner: tuple[int, int] | None
    ) -> UnpackReply:
        """Unpack the fetched archive below a folder."""
        order = self._build_order(archive_format, root, destination, owner)
        return await _unpack_in_process(order, self.thread_owner)

    def _build_order(
        self, archive_format: str, root: Path, destination: str, owner: tuple[int, int] | None
    ) -> UnpackOrder:
        """Return the order to unpack the fetched archive. Its paths are absolute, because the process runs in another folder."""
        return UnpackOrder(
            archive=str((self.scratch / FETCHED_FILE).absolute()),
            archive_format=archive_format,
            name=self.source.basename,
            archive_folder=self.source.folder,
            root=str(root.absolute()),
            destination=destination,
            owner=owner,
            max_bytes=self.limits.max_unpacked_bytes,
            max_files=self.limits.max_files,
            agent_pid=os.getpid(),
        )

    async def _run_copy(
        self,
        max_files: int,
        copy: Callable[Concatenate[ConfinedFolder, CopyBudget, P], None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Run a function that copies to the task's folder, on a thread."""
        budget = CopyBudget(self.limits.max_unpacked_bytes, max_files, disk_folder=self.task_folder)
        folder = ConfinedFolder(self.task_folder, self.owner)
        await run_in_owned_thread(
            ThreadGroup.ARTIFACTS, self.thread_owner, budget.cancel, copy, folder, budget, *args, **kwargs
        )


async def _unpack_in_process(order: UnpackOrder, owner: ItemOwner) -> UnpackReply:
    """Unpack an archive in a process of its own, in a slot of this owner. The process ends if the caller is canceled.

    Raises ArtifactError, QueueFull and OSError.
    """
    async with find_unpacking_slots().hold(owner):
        result = await run_program(
            [sys.executable, "-m", "wharf.node.unpacking.worker"],
            environment={name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ},
            input_data=msgspec.msgpack.encode(order),
            folder=Path("/"),  # Python searches the current folder for modules.
            max_output_bytes=MAX_REPLY_BYTES,
        )
    try:
        reply = msgspec.msgpack.decode(result.output, type=UnpackReply)
    except msgspec.MsgspecError:
        reason = "was killed, perhaps because the node has no memory left" if result.exit_code < 0 else "failed"
        raise ArtifactError(f"the process that unpacks the archive {reason}") from None
    if reply.error:
        raise ArtifactError(reply.error, is_permanent=reply.is_permanent)
    return reply


def _install_tree(
    task_folder: ConfinedFolder, budget: CopyBudget, repository: ConfinedFolder, destination: str, folder: str
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


def _copy_file(task_folder: ConfinedFolder, budget: CopyBudget, scratch: Path, path: str, target: str) -> None:
    """Copy a file of the scratch folder. An unpacked one keeps its mode. Raises ArtifactError, ConfinedPathError and OSError."""
    with ConfinedFolder(scratch).open_existing_file(path) as source:
        is_unpacked = path != FETCHED_FILE
        mode = os.fstat(source.fileno()).st_mode & 0o777 if is_unpacked else 0o644
        write_file(source, task_folder, target, mode, budget)

"""Downloads files and folders of allocations into local folders, several at a time.

Which allocations are downloaded is decided in `fetch`. Names of files come from tasks, so no name leads out of the local
folder.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import msgspec

from wharf.cli.common.times import parse_time, to_nanoseconds
from wharf.world.backoff import Backoff
from wharf.world.tasks import cancel_tasks

if TYPE_CHECKING:
    from wharf.contract.client import AsyncClient
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.wire.allocations.messages import AllocFileInfo
    from wharf.world import World

MAX_PARALLEL_REQUESTS: Final = 8
"""Folders and files that are read at the same time. Nodes and servers have other users."""
MAX_ENTRIES: Final = 1_000_000
"""Limit of the files and folders of one download; protects the memory of the command from a task that fills folders."""
MAX_DEPTH: Final = 100
"""Limit of folders in folders; a node opens at most 200 for one path."""
MAX_ATTEMPTS: Final = 5
"""How often a file is requested if its download breaks off. Each attempt continues where the last one broke off."""
MIN_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 5.0
MAX_SEARCHED_TASKS: Final = 3
"""Tasks whose working folders are listed if a file does not exist."""
MAX_LISTED_FILES: Final = 8
"""Files that an error lists."""
PART_PREFIX: Final = ".wharf-fetch-"
"""The beginning of the name of a file that is not complete yet. A random number follows."""
UNREADABLE_MODE_LETTERS: Final = frozenset("LDcpS")
"""The letters in front of the mode of links, devices, pipes and sockets, which are not downloaded."""


class FetchedAllocation(msgspec.Struct, rename="pascal"):
    """The result of the download from one allocation."""

    id: str = msgspec.field(name="ID")
    name: str
    node_name: str
    folder: str
    """The local folder."""
    files: int = 0
    """Files that are in the local folder now, with those that were there already."""
    bytes: int = 0
    unchanged_files: int = 0
    """Files that an earlier download had written, with the same size and time."""
    left_out: int = 0
    """Links, devices, pipes, sockets and secrets."""
    failures: list[str] = msgspec.field(default_factory=list)


class _Item(NamedTuple):
    """A file or folder that is to be downloaded."""

    result: FetchedAllocation
    allocation: "AllocationStub"
    path: str
    """Its path in the allocation."""
    target: Path
    info: "AllocFileInfo | None"
    """`None`: it is not known yet whether this is a file or a folder."""
    depth: int = 0


class LocalFileError(Exception):
    """A file that cannot be written: the reason, with its path."""


class Downloader:
    """Downloads files from allocations. `on_progress` is called after each part of a file and each folder."""

    def __init__(
        self, world: "World", client: "AsyncClient", *, is_overwriting: bool, on_progress: Callable[[], None]
    ) -> None:
        self._world = world
        self._client = client
        self._is_overwriting = is_overwriting
        self._on_progress = on_progress
        self._waiting: asyncio.LifoQueue[_Item] = asyncio.LifoQueue()
        """The newest first: a folder is finished before the next one is listed, so that few items wait."""
        self._entry_count = 0
        self._open_counts: dict[str, int] = {}
        """Items of each allocation that are not done yet, by its id."""
        self.bytes = 0
        """The bytes that were received."""
        self.remedy = ""
        """What exists instead of a file that does not; empty if all exist."""
        self._has_searched = False
        self.done_count = 0
        """The allocations that are done."""

    def add(
        self, allocation: "AllocationStub", path: str, folder: Path, result: FetchedAllocation, *, prefix: str = ""
    ) -> None:
        """Request the download of the file or folder `path` of an allocation into a local folder.

        With a prefix, the local name begins with it: `train-7-result.csv`.
        """
        name = path.rstrip("/").rpartition("/")[2]
        name = "" if name in (".", "..") else name
        name = "-".join(filter(None, (prefix, name)))
        target = folder / name if name else folder
        self._add_item(_Item(result, allocation, path, target, None))

    def _add_item(self, item: _Item) -> None:
        self._waiting.put_nowait(item)
        self._open_counts[item.allocation.id] = self._open_counts.get(item.allocation.id, 0) + 1

    async def run(self) -> None:
        """Download everything that was added. Failures are in the results."""
        workers = [self._world.start_task(self._work(), name="download") for _ in range(MAX_PARALLEL_REQUESTS)]
        done = self._world.start_task(self._waiting.join(), name="downloads")
        try:
            await asyncio.wait([done, *workers], return_when=asyncio.FIRST_COMPLETED)
            for worker in workers:
                if worker.done():
                    worker.result()  # An unexpected error.
        finally:
            await cancel_tasks(done, *workers)

    async def _work(self) -> None:
        """Download one item after the other. Runs until canceled."""
        while True:
            item = await self._waiting.get()
            await self._process(item)
            self._open_counts[item.allocation.id] -= 1
            self.done_count += not self._open_counts[item.allocation.id]
            self._on_progress()
            self._waiting.task_done()

    async def _process(self, item: _Item) -> None:
        """Download one file, or list one folder. A failure is added to the result."""
        from wharf.contract.client import Unreachable
        from wharf.contract.client.errors import RequestRefused
        from wharf.contract.model.refusal import RefusalCode, RefusalReason

        try:
            info = item.info
            if info is None:
                info = await self._client.files.stat(item.allocation.id, item.path, namespace=item.allocation.namespace)
            if info.is_dir:
                await self._list_folder(item)
            elif not UNREADABLE_MODE_LETTERS.isdisjoint(info.file_mode[:-9]):
                item.result.left_out += 1
            else:
                await self._fetch_file(item, info)
        except RequestRefused as error:
            if error.reason is RefusalReason.SECRET_FILE and item.info is not None:
                item.result.left_out += 1
            elif error.reason is RefusalReason.NO_NODE_PATH:
                item.result.failures.append(describe_missing_node(item.allocation.node_name))
            else:
                if item.info is None and error.code is RefusalCode.NOT_FOUND and not self._has_searched:
                    self._has_searched = True
                    self.remedy = await self._describe_existing(item)
                item.result.failures.append(": ".join(filter(None, [error.text, error.detail])))
        except (Unreachable, LocalFileError) as error:
            item.result.failures.append(str(error))
        except OSError as error:
            item.result.failures.append(f"{item.target}: {error.strerror or error}")

    async def _describe_existing(self, item: _Item) -> str:
        """Return where the requested file is, or the files in the working folders of the tasks; empty if none is known.

        Searches one allocation of a download: the others run the same tasks.
        """
        from wharf.contract.client import Unreachable
        from wharf.contract.model.refusal import Refusal

        existing: list[str] = []
        for task in sorted(item.allocation.task_states or {})[:MAX_SEARCHED_TASKS]:
            folder = f"{task}/local"
            try:
                entries = await self._client.files.list(item.allocation.id, folder, namespace=item.allocation.namespace)
            except (Refusal, Unreachable):
                continue
            existing += [f"{folder}/{entry.name}" for entry in entries]
        if not existing:
            return ""
        close = [path for path in existing if path.endswith(f"/local/{item.path.strip('/')}")]
        if close:
            return f"did you mean {close[0]}?"
        more = f" and {len(existing) - MAX_LISTED_FILES} more" if len(existing) > MAX_LISTED_FILES else ""
        return f"{item.allocation.name} has {', '.join(existing[:MAX_LISTED_FILES])}{more}"

    async def _list_folder(self, item: _Item) -> None:
        """Create the local folder, and request the download of everything in the remote one."""
        if item.depth > MAX_DEPTH:
            raise LocalFileError(f"{item.path} has more than {MAX_DEPTH} folders in each other: fetch a folder in it")
        entries = await self._client.files.list(item.allocation.id, item.path, namespace=item.allocation.namespace)
        self._entry_count += len(entries)
        if self._entry_count > MAX_ENTRIES:
            raise LocalFileError(
                f"more than {MAX_ENTRIES:,} files: fetch fewer allocations, or a folder in {item.path}"
            )
        _create_folder(item.target)
        for entry in reversed(entries):
            if not is_plain_name(entry.name):
                item.result.failures.append(f"{item.path} has a file whose name is not possible here: {entry.name!r}")
                continue
            path = f"{item.path.rstrip('/')}/{entry.name}"
            self._add_item(item._replace(path=path, target=item.target / entry.name, info=entry, depth=item.depth + 1))

    async def _fetch_file(self, item: _Item, info: "AllocFileInfo") -> None:
        """Download one file. It gets its name when it is complete; one that is here already is not downloaded again."""
        modified_ns = _parse_time_ns(info.mod_time)
        with suppress(FileNotFoundError):
            status = item.target.lstat()
            if (status.st_size, status.st_mtime_ns) == (info.size, modified_ns):
                item.result.unchanged_files += 1
                item.result.files += 1
                item.result.bytes += info.size
                return
            if not self._is_overwriting:
                raise LocalFileError(f"{item.target} exists and differs: add --overwrite, or another --to")
        _create_folder(item.target.parent)
        part = item.target.with_name(f"{PART_PREFIX}{self._world.random.getrandbits(64):016x}")
        mode = 0o777 if "x" in info.file_mode[-9:] else 0o666
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(part, flags, mode), "wb") as file:
                await self._receive(item, info, file)
                file.flush()
                os.utime(file.fileno(), ns=(modified_ns, modified_ns))
            part.replace(item.target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        item.result.files += 1

    async def _receive(self, item: _Item, info: "AllocFileInfo", file: BinaryIO) -> None:
        """Write the content of a file. If the connection breaks off, continue where it broke off, a few times."""
        from wharf.contract.client import Unreachable
        from wharf.contract.client.errors import TRANSIENT_ERRORS

        backoff = Backoff(self._world.random, min_s=MIN_PAUSE_S, max_s=MAX_PAUSE_S)
        offset = 0
        for attempt in range(MAX_ATTEMPTS):
            is_last = attempt == MAX_ATTEMPTS - 1
            try:
                # Without a limit, because a file may have grown since it was listed.
                async for chunk in self._client.files.read_at(
                    item.allocation.id, item.path, offset=offset, limit=0, namespace=item.allocation.namespace
                ):
                    file.write(chunk)
                    offset += len(chunk)
                    self.bytes += len(chunk)
                    item.result.bytes += len(chunk)
                    self._on_progress()
            except (Unreachable, *TRANSIENT_ERRORS):
                if is_last:
                    raise
            else:
                if offset >= info.size:
                    return
                if is_last:
                    raise LocalFileError(f"{item.path} ended after {offset:,} of {info.size:,} bytes: fetch it again")
            await asyncio.sleep(backoff.next_delay_s())


def describe_missing_node(name: str) -> str:
    """Return why files of a node cannot be read, and what to do."""
    return (
        f"node {name} is down or out of contact, and the files are only there; `wharf node status` shows it; "
        "fetch again when it is ready"
    )


def is_plain_name(name: str) -> bool:
    """Return whether a name of a file, which a task has chosen, is that of an entry of a folder."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _create_folder(path: Path) -> None:
    """Create a local folder, with its parents. Raises `LocalFileError` if its name belongs to a link or a file."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise LocalFileError(f"{path} exists and is not a folder: remove it, or choose another --to")
    path.mkdir(parents=True, exist_ok=True)


def _parse_time_ns(text: str) -> int:
    """Return a time of the API in nanoseconds, exact to the microsecond; 0 if it is before 1970 or not a time."""
    try:
        return max(0, to_nanoseconds(parse_time(text)))
    except ValueError:
        return 0

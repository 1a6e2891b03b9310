"""Sends and receives snapshots over HTTP, by way of temporary files in the data folder.

Files are read and written on threads. Archive format and content are in `wharf.cluster.server.snapshots`.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final

from wharf.agent.data_folder import RESTORE_LOCK_FILE, TRANSFER_FOLDER_PREFIX
from wharf.agent.snapshots.check_process import SnapshotCheckFailed, SnapshotCheckOrder, run_check
from wharf.cluster.engines.port import LogEngine, LogUnavailable, RestoreOutcomeUnknown
from wharf.cluster.engines.snapshot_file import SnapshotLimits
from wharf.cluster.server import snapshots
from wharf.cluster.server.agent_interface import SavedSnapshot
from wharf.cluster.server.snapshot_archive import pack_archive
from wharf.cluster.server.snapshot_check import DISK_CHECK_BYTES, DiskTooFull, require_disk_space
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

FILE_CHUNK_BYTES: Final = 256 * 1024
"""How much of a file is in memory at once."""
MAX_SAVED: Final = 4
"""How many snapshots an api process saves or sends at a time. Each takes as much disk space as its archive."""
MAX_UPLOAD_S: Final = 3_600.0
"""How long an upload may take. No other snapshot can be restored on the server meanwhile."""

UNKNOWN_RESTORE_TEXT: Final = "it is unknown whether the snapshot was restored"
UNKNOWN_RESTORE_ADVICE: Final = (
    "check whether the state is that of the snapshot, such as with `wharf job status`; restoring it again is safe"
)


class SnapshotTransfer:
    """Saves snapshots for download and restores uploaded ones: one restore at a time on a server, and few downloads."""

    def __init__(
        self,
        world: World,
        data_folder: Path,
        limits: SnapshotLimits,
        *,
        process_name: str = "api",
        is_log_in_folder: bool = True,
    ) -> None:
        """`is_log_in_folder`: whether the log is on the disk of the data folder, so that a restore needs space there.

        Deletes the temporary folders that a killed process of the same name has left.
        """
        self._folder_prefix = f"{TRANSFER_FOLDER_PREFIX}{process_name}-"
        for leftover in data_folder.glob(f"{self._folder_prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._is_log_in_folder = is_log_in_folder
        self._world = world
        self._data_folder = data_folder
        self._limits = limits
        self._saved_count = 0

    async def save(self, engine: LogEngine) -> SavedSnapshot:
        """Save a snapshot as an archive and return its log index, digest and content. Raises `Refusal`."""
        if self._saved_count >= MAX_SAVED:
            raise Refusal(
                RefusalCode.UNAVAILABLE,
                f"{MAX_SAVED} snapshots are being saved or downloaded; try again when one is done",
            )
        self._saved_count += 1
        folder: Path | None = None
        try:
            folder = await self._create_folder()
            state, archive = folder / "state.bin", folder / "archive.tgz"
            facts = await snapshots.save_state(engine, state, world=self._world)
            digest = await asyncio.to_thread(pack_archive, state, archive, facts)
            return SavedSnapshot(facts.trailer.standing.index, digest, self._stream_archive(archive, folder))
        except BaseException as error:
            await self._end_save(folder)
            if isinstance(error, snapshots.SnapshotFailed | LogUnavailable | OSError):
                raise Refusal(RefusalCode.UNAVAILABLE, f"failed to save a snapshot: {error}") from error
            raise

    async def _stream_archive(self, archive: Path, folder: Path) -> AsyncGenerator[bytes, None]:
        """Yield the archive, and delete its folder once it is sent or the client disconnects."""
        try:
            async for part in read_file_chunks(archive):
                yield part
        finally:
            await self._end_save(folder)

    async def _end_save(self, folder: Path | None) -> None:
        """Delete the files of a download that has ended."""
        self._saved_count -= 1
        if folder is not None:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))

    async def restore(self, engine: LogEngine, parts: AsyncIterator[bytes], wrapping_keys: Sequence[str]) -> int:
        """Restore an uploaded archive and return the new log index. `wrapping_keys`: fingerprints of the known keys.

        Raises `Refusal`: OUTCOME_UNKNOWN if the state may have been replaced. Any other code means that it was not.
        """
        try:
            with self._lock_restores():
                return await self._restore(engine, parts, wrapping_keys)
        except RestoreOutcomeUnknown as error:
            raise Refusal(
                RefusalCode.OUTCOME_UNKNOWN, f"{UNKNOWN_RESTORE_TEXT} ({error}); {UNKNOWN_RESTORE_ADVICE}"
            ) from error
        except snapshots.SnapshotFailed as error:
            code = RefusalCode.UNAVAILABLE if isinstance(error, DiskTooFull) else RefusalCode.INVALID
            raise Refusal(code, f"failed to restore from snapshot: {error}") from error
        except (LogUnavailable, SnapshotCheckFailed, OSError) as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"failed to restore from snapshot: {error}") from error

    async def _restore(self, engine: LogEngine, parts: AsyncIterator[bytes], wrapping_keys: Sequence[str]) -> int:
        """Receive and check an archive, and restore it. Its files are deleted in any case."""
        folder = await self._create_folder()
        archive, checked = folder / "archive.tgz", folder / "checked.bin"
        try:
            await self._receive(parts, archive)
            info = await run_check(
                SnapshotCheckOrder(str(archive), str(checked), self._limits, "that was sent", wrapping_keys)
            )
            await asyncio.to_thread(archive.unlink)
            if self._is_log_in_folder:
                await asyncio.to_thread(require_disk_space, folder, info.plain_bytes)
            return await snapshots.restore_state(engine, checked, info)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))

    async def _receive(self, parts: AsyncIterator[bytes], archive: Path) -> None:
        """Write the upload to a file. Raises `Refusal` if it is too large or takes too long, and `DiskTooFull`."""
        received, checked = 0, -DISK_CHECK_BYTES
        deadline_s = self._world.monotonic_s() + MAX_UPLOAD_S
        with await asyncio.to_thread(archive.open, "wb") as file:
            async for part in parts:
                received += len(part)
                if received > self._limits.max_bytes:
                    raise Refusal(
                        RefusalCode.TOO_LARGE,
                        f"the snapshot is larger than {self._limits.max_bytes:,} bytes, the limit of snapshots.max_size",
                    )
                if self._world.monotonic_s() > deadline_s:
                    raise Refusal(RefusalCode.INVALID, f"the upload took longer than {MAX_UPLOAD_S:g} s")
                if received - checked >= DISK_CHECK_BYTES:
                    await asyncio.to_thread(require_disk_space, archive.parent)
                    checked = received
                await asyncio.to_thread(file.write, part)

    @contextlib.contextmanager
    def _lock_restores(self) -> Iterator[None]:
        """Hold the lock of restores on this server, which its api processes share. Raises `Refusal` if it is taken."""
        descriptor = os.open(self._data_folder / RESTORE_LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise Refusal(
                RefusalCode.UNAVAILABLE,
                "another snapshot is being restored on this server; try again when that is done",
            ) from None
        finally:
            os.close(descriptor)

    async def _create_folder(self) -> Path:
        """Create a temporary folder that only the user of this process can open."""
        folder = self._data_folder / f"{self._folder_prefix}{self._world.new_id()}"
        await asyncio.to_thread(folder.mkdir, mode=0o700)
        return folder


async def read_file_chunks(path: Path) -> AsyncGenerator[bytes, None]:
    """Yield the content of the file up to its current end. Raises `OSError`."""
    with await asyncio.to_thread(path.open, "rb") as file:
        while part := await asyncio.to_thread(file.read, FILE_CHUNK_BYTES):
            yield part

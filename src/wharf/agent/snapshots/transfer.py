"""Sends and receives snapshots over HTTP, by way of temporary files in the data folder.

Files are read and written on threads. Archive format and content are in `wharf.cluster.server.snapshots`.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Final

from wharf.agent.data_folder import TRANSFER_FOLDER_PREFIX
from wharf.cluster.engines.port import LogEngine, LogUnavailable, RestoreOutcomeUnknown
from wharf.cluster.server import snapshots
from wharf.cluster.server.agent_interface import SavedSnapshot
from wharf.cluster.server.snapshots import InvalidArchive, pack_archive, unpack_archive
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.world import World

FILE_CHUNK_BYTES: Final = 256 * 1024
"""How much of a file is in memory at once."""


UNKNOWN_RESTORE_TEXT: Final = "it is unknown whether the snapshot was restored"
UNKNOWN_RESTORE_ADVICE: Final = (
    "check whether the state is that of the snapshot, such as with `wharf job status`; restoring it again is safe"
)


class SnapshotTransfer:
    """Saves snapshots for download and restores uploaded ones."""

    def __init__(self, world: World, data_folder: Path) -> None:
        self._world = world
        self._data_folder = data_folder

    async def save(self, engine: LogEngine) -> SavedSnapshot:
        """Save a snapshot as an archive and return its log index, digest and content. Raises `Refusal`."""
        folder = await self._create_folder()
        state, archive = folder / "state.bin", folder / "archive.tgz"
        try:
            facts = await snapshots.save_state(engine, state, world=self._world)
            digest = await asyncio.to_thread(pack_archive, state, archive, facts)
            return SavedSnapshot(facts.trailer.standing.index, digest, _stream_archive(archive, folder))
        except BaseException as error:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(error, snapshots.SnapshotFailed | LogUnavailable | OSError):
                raise Refusal(RefusalCode.UNAVAILABLE, f"failed to save a snapshot: {error}") from error
            raise

    async def restore(self, engine: LogEngine, parts: AsyncIterator[bytes]) -> int:
        """Restore an uploaded archive and return the new log index.

        Raises `Refusal`: OUTCOME_UNKNOWN if the state may have been replaced. Any other code means that it was not.
        """
        folder = await self._create_folder()
        archive, state = folder / "archive.tgz", folder / "state.bin"
        try:
            with await asyncio.to_thread(archive.open, "wb") as file:
                async for part in parts:
                    await asyncio.to_thread(file.write, part)
            await asyncio.to_thread(unpack_archive, archive, state)
            return await snapshots.restore_state(engine, state)
        except (InvalidArchive, snapshots.SnapshotFailed) as error:
            # The path of the temporary file means nothing to the client.
            why = str(error).replace(str(state), "that was sent")
            raise invalid_request(f"failed to restore from snapshot: {why}") from error
        except RestoreOutcomeUnknown as error:
            raise Refusal(
                RefusalCode.OUTCOME_UNKNOWN, f"{UNKNOWN_RESTORE_TEXT} ({error}); {UNKNOWN_RESTORE_ADVICE}"
            ) from error
        except (LogUnavailable, OSError) as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"failed to restore from snapshot: {error}") from error
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _create_folder(self) -> Path:
        """Create a temporary folder that only the user of this process can open."""
        folder = self._data_folder / f"{TRANSFER_FOLDER_PREFIX}{self._world.new_id()}"
        await asyncio.to_thread(folder.mkdir, mode=0o700)
        return folder


async def _stream_archive(archive: Path, folder: Path) -> AsyncGenerator[bytes, None]:
    """Yield the archive, and delete its folder once it is sent or the client disconnects."""
    try:
        async for part in read_file_chunks(archive):
            yield part
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def read_file_chunks(path: Path) -> AsyncGenerator[bytes, None]:
    """Yield the content of the file up to its current end. Raises `OSError`."""
    with await asyncio.to_thread(path.open, "rb") as file:
        while part := await asyncio.to_thread(file.read, FILE_CHUNK_BYTES):
            yield part

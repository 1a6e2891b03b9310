"""Endpoints that save and restore the whole state, as one archive that passes through a file on this server's disk."""

import asyncio
import shutil
import tempfile
from base64 import b64encode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from wharf.api.answers import Act, Done, Streamed
from wharf.api.bodies import Gone
from wharf.api.request import Request
from wharf.engines.port import Unavailable
from wharf.model.refusal import Code, Refusal, invalid
from wharf.server import saving
from wharf.server.server import Server
from wharf.server.snapshot_archive import ArchiveRefused, pack, unpack

PART_BYTES: Final = 256 * 1024
CONTENT_TYPE: Final = "application/x-gzip"


class Snapshots:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def save(self, request: Request) -> Done:
        if "stale" not in request.query:
            await self._server.reader.catch_up()
        folder = await self._folder()
        try:
            state, archive = folder / "state.bin", folder / "archive.tgz"
            facts = await saving.save(self._server.engine, state, world=self._server.world)
            digest = await asyncio.to_thread(pack, state, archive, facts)
        except (saving.SavingRefused, Unavailable) as error:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise Refusal(Code.UNAVAILABLE, f"failed to save a snapshot: {error}") from error
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        headers = [(b"digest", b"sha-256=" + b64encode(digest))]
        return Done(Streamed(_sent(archive, folder), CONTENT_TYPE, headers=headers), facts.trailer.standing.index)

    async def restore(self, request: Request) -> Done:
        """The archive is taken in whole and checked whole; only then is anything replaced."""
        assert request.parts is not None, "the endpoint reads its body part by part"
        folder = await self._folder()
        archive, state = folder / "archive.tgz", folder / "state.bin"
        try:
            with await asyncio.to_thread(archive.open, "wb") as file:
                async for part in request.parts:
                    await asyncio.to_thread(file.write, part)
            await asyncio.to_thread(unpack, archive, state)
            index = await saving.restore(self._server.engine, state)
        except (ArchiveRefused, saving.SavingRefused) as error:
            # Where it lies here means nothing to the caller.
            why = str(error).replace(str(state), "that was sent")
            raise invalid(f"failed to restore from snapshot: {why}") from error
        except Unavailable as error:
            raise Refusal(Code.UNAVAILABLE, f"failed to restore from snapshot: {error}") from error
        except Gone:
            raise invalid("failed to restore from snapshot: the request ended before its body") from None
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await self._server.follower.reached(index)
        return Done(None, index)

    async def _folder(self) -> Path:
        """A folder that only this process's user can open. On a thread, as all that touches a disk."""
        folder = Path(tempfile.gettempdir()) / f"wharf-{self._server.world.new_id()}"
        await asyncio.to_thread(folder.mkdir, mode=0o700)
        return folder

    def table(self) -> dict[str, Act]:
        return {"operator.save_snapshot": self.save, "operator.restore_snapshot": self.restore}


async def _sent(archive: Path, folder: Path) -> AsyncGenerator[bytes, None]:
    """The file, which goes when it is sent or nobody wants it any more."""
    try:
        with archive.open("rb") as file:
            while part := await asyncio.to_thread(file.read, PART_BYTES):
                yield part
    finally:
        shutil.rmtree(folder, ignore_errors=True)

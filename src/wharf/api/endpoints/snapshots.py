"""Endpoints that save and restore the whole state, as one archive."""

from base64 import b64encode
from typing import Final

from wharf.api.answers import Act, Done, Streamed
from wharf.api.bodies import Gone
from wharf.api.request import Request
from wharf.model.refusal import invalid
from wharf.server.server import Server

CONTENT_TYPE: Final = "application/x-gzip"


class Snapshots:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def save(self, request: Request) -> Done:
        if "stale" not in request.query:
            await self._server.reader.catch_up()
        saved = await self._server.agent.save_snapshot(self._server.engine)
        headers = [(b"digest", b"sha-256=" + b64encode(saved.sha256))]
        return Done(Streamed(saved.parts, CONTENT_TYPE, headers=headers), saved.index)

    async def restore(self, request: Request) -> Done:
        """The archive is taken in whole and checked whole; only then is anything replaced."""
        assert request.parts is not None, "the endpoint reads its body part by part"
        try:
            index = await self._server.agent.restore_snapshot(self._server.engine, request.parts)
        except Gone:
            raise invalid("failed to restore from snapshot: the request ended before its body") from None
        await self._server.follower.reached(index)
        return Done(None, index)

    def table(self) -> dict[str, Act]:
        return {"operator.save_snapshot": self.save, "operator.restore_snapshot": self.restore}

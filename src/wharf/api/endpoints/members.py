"""What members ask of each other's brains."""

from hmac import compare_digest
from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Packed, Reading
from wharf.api.request import Request
from wharf.model.refusal import Code, Refusal
from wharf.server.peers import SECRET_HEADER
from wharf.server.server import Server

READS: Final[dict[str, Reading]] = {}


class Members:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def ask(self, request: Request) -> Done:
        """A question of another member for our brain. It is answered here or refused, never passed on."""
        given = request.headers.get(SECRET_HEADER.encode(), b"")
        secret = self._server.identity.door_secret.encode()
        if not secret or not compare_digest(given, secret):
            raise Refusal(Code.FORBIDDEN, "Permission denied")
        answered = await self._server.brain.ask(request.value("subject"), request.body)
        return Done(Packed(msgspec.msgpack.encode(answered)))


def acts_of(server: Server) -> dict[str, Act]:
    return {"server.ask": Members(server).ask}

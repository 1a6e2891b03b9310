"""Endpoints of the keys that secrets are sealed with."""

from typing import Final

from wharf.api.answers import Act, Done, Reading
from wharf.api.listing import Listing, by_name
from wharf.api.parameters import FALSE_WORDS, TRUE_WORDS
from wharf.api.request import ReadOptions, Request
from wharf.model.cluster import KeyringKey
from wharf.model.refusal import invalid
from wharf.operations import keyring
from wharf.operations.keyring import RotationRequest
from wharf.server.answering.keyring import ROTATE
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state.tables import KEYRING
from wharf.wire import access as shapes


def key_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[KeyringKey]:
    return by_name(replica, KEYRING, options, shown=shown)


READS: Final[dict[str, Reading]] = {"keyring.list": key_list}


class KeyringWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def rotate(self, request: Request) -> Done:
        asked = RotationRequest(
            await self._server.access.keyring.make_key(),
            full="full" in request.query,
            publish_time_ns=_publish_time_ns(request.query.get("publish_time", "")),
        )
        written = await self._server.leader.ask(ROTATE, asked)
        assert written.key is not None, "a rotation answers with its key"
        return Done(shapes.KeyRotated(key=shown(written.key), index=written.index), written.index)

    async def delete(self, request: Request) -> Done:
        given = request.query.get("force", "")
        if given and given not in TRUE_WORDS and given not in FALSE_WORDS:
            raise invalid("invalid force parameter")
        key_id, force = request.value("key_id"), given in TRUE_WORDS
        written = await self._server.writer.write(
            lambda snapshot, _moment: keyring.delete_key(snapshot, key_id, force=force)
        )
        return Done(shapes.KeyDeleted(index=written.index), written.index)


def acts_of(server: Server) -> dict[str, Act]:
    writes = KeyringWrites(server)
    return {"keyring.rotate": writes.rotate, "keyring.delete": writes.delete}


def _publish_time_ns(given: str) -> int:
    if not given:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) <= 19):
        raise invalid(f'invalid publish_time: "{given}" is no number of nanoseconds since 1970')
    return int(given)


def shown(key: KeyringKey) -> shapes.KeyShown:
    return shapes.KeyShown(
        key_id=key.key_id,
        algorithm=key.algorithm,
        create_time=key.create_time,
        create_index=key.create_index,
        modify_index=key.modify_index,
        state=key.state,
        publish_time=key.publish_time,
    )

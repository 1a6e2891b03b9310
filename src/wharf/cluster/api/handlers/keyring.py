"""Endpoints of the keys that secrets are sealed with."""

from typing import Final

from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.parameters import FALSE_WORDS, TRUE_WORDS
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler
from wharf.cluster.operations import keyring
from wharf.cluster.operations.keyring import KeyRotationRequest
from wharf.cluster.server.rpc.handlers.keyring import ROTATE_KEYRING
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import KEYRING
from wharf.contract.model.cluster import KeyringKey
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire import keyring as keyring_wire


def list_keys(replica: Replica, _request: Request, options: QueryOptions) -> Listing[KeyringKey]:
    return list_by_name(replica, KEYRING, options, build_view=build_key_view)


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"keyring.list": list_keys}


class KeyringActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def rotate_keyring(self, request: Request) -> ActionResult:
        asked = KeyRotationRequest(
            await self._server.access.keyring.make_key(),
            full="full" in request.query,
            publish_time_ns=_publish_time_ns(request.query.get("publish_time", "")),
        )
        written = await self._server.leader.call(ROTATE_KEYRING, asked)
        assert written.key is not None, "a rotation answers with its key"
        return ActionResult(
            keyring_wire.KeyRotationReply(key=build_key_view(written.key), index=written.index),
            written.index,
        )

    async def delete_key(self, request: Request) -> ActionResult:
        given = request.query.get("force", "")
        if given and given not in TRUE_WORDS and given not in FALSE_WORDS:
            raise invalid_request("invalid force parameter")
        key_id, force = request.get_path_value("key_id"), given in TRUE_WORDS
        written = await self._server.writer.execute(
            lambda snapshot, _moment: keyring.delete_key(snapshot, key_id, should_force=force)
        )
        return ActionResult(keyring_wire.KeyDeletionReply(index=written.index), written.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = KeyringActions(server)
    return {"keyring.rotate": writes.rotate_keyring, "keyring.delete": writes.delete_key}


def _publish_time_ns(given: str) -> int:
    if not given:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) <= 19):
        raise invalid_request(f'invalid publish_time: "{given}" is no number of nanoseconds since 1970')
    return int(given)


def build_key_view(key: KeyringKey) -> keyring_wire.KeyView:
    return keyring_wire.KeyView(
        key_id=key.key_id,
        algorithm=key.algorithm,
        create_time=key.create_time,
        create_index=key.create_index,
        modify_index=key.modify_index,
        state=key.state,
        publish_time=key.publish_time,
    )

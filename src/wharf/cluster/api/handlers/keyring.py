"""Endpoints of the keyring: list, rotate and delete encryption keys. Key material is never sent."""

from typing import Final

from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.parameters import FALSE_WORDS, TRUE_WORDS, QueryOptions
from wharf.cluster.api.requests.request import Request
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
    """Rotates and deletes keys."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def rotate_keyring(self, request: Request) -> ActionResult:
        """Add a new key and return it without its material. With `full`, also encrypt all secrets again."""
        rotation = KeyRotationRequest(
            await self._server.access.keyring.make_key(),
            full="full" in request.query,
            publish_time_ns=_parse_publish_time(request.query.get("publish_time", "")),
        )
        result = await self._server.leader.call(ROTATE_KEYRING, rotation)
        assert result.key is not None, "a rotation returns the new key"
        return ActionResult(
            keyring_wire.KeyRotationReply(key=build_key_view(result.key), index=result.index),
            result.index,
        )

    async def delete_key(self, request: Request) -> ActionResult:
        """Delete the key of the path. With `force`, also if records are still encrypted with it. Raises `Refusal`."""
        force_text = request.query.get("force", "")
        if force_text and force_text not in TRUE_WORDS and force_text not in FALSE_WORDS:
            raise invalid_request("invalid force parameter")
        key_id, should_force = request.get_path_value("key_id"), force_text in TRUE_WORDS
        result = await self._server.writer.execute(
            lambda snapshot, _context: keyring.delete_key(snapshot, key_id, should_force=should_force)
        )
        return ActionResult(keyring_wire.KeyDeletionReply(index=result.index), result.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = KeyringActions(server)
    return {"keyring.rotate": actions.rotate_keyring, "keyring.delete": actions.delete_key}


def _parse_publish_time(text: str) -> int:
    """Return the time at which a new key becomes active, in nanoseconds since 1970; 0 if the text is empty.

    Raises `Refusal` for other text.
    """
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise invalid_request(f'invalid publish_time "{text}": expected nanoseconds since 1970')
    return int(text)


def build_key_view(key: KeyringKey) -> keyring_wire.KeyView:
    """Return the key without its material."""
    return keyring_wire.KeyView(
        key_id=key.key_id,
        algorithm=key.algorithm,
        create_time=key.create_time,
        create_index=key.create_index,
        modify_index=key.modify_index,
        state=key.state,
        publish_time=key.publish_time,
    )

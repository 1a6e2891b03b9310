"""Client methods for the keyring."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method
from wharf.contract.wire import keyring


class KeyringMethods(MethodGroup[M]):
    """The methods of `client.keyring`. Each describes a call, which the client then sends."""

    @list_method("keyring.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[keyring.KeyView]:
        """List the keys of the keyring, without the key material."""
        return ListSpec(options)

    @call_method("keyring.rotate")
    def rotate(
        self,
        *,
        algorithm: str = "",
        full: bool = False,
        publish_time: int | None = None,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[keyring.KeyRotationReply]:
        """Create a new key and activate it. `full`: re-encrypt all stored secrets with it.

        `publish_time` (ns since 1970): activate the key at this time instead of now. `algorithm` has no effect.
        """
        return CallSpec(options, algo=algorithm, full=full, publish_time=publish_time)

    @call_method("keyring.delete")
    def delete(
        self, key_id: str, *, force: bool = False, **options: Unpack[WriteOptions]
    ) -> CallSpec[keyring.KeyDeletionReply]:
        """Delete an inactive key. `force`: delete it even if data is encrypted with it; that data becomes unreadable."""
        return CallSpec(options, key_id, force=force)

"""."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method
from wharf.contract.wire import keyring


class KeyringMethods(MethodGroup[M]):
    @list_method("keyring.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[keyring.KeyView]:
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
        """`full`: also encrypt again what is kept. `publish_time` (ns): use the new key from then on."""
        return CallSpec(options, algo=algorithm, full=full, publish_time=publish_time)

    @call_method("keyring.delete")
    def delete(
        self, key_id: str, *, force: bool = False, **options: Unpack[WriteOptions]
    ) -> CallSpec[keyring.KeyDeletionReply]:
        return CallSpec(options, key_id, force=force)

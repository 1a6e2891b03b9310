"""."""

from typing import Unpack

from wharf.contract.client.calls import CallOptions, CallSpec
from wharf.contract.client.methods import M, MethodGroup, call_method
from wharf.contract.wire import identities


class IdentityMethods(MethodGroup[M]):
    @call_method("identity.keys")
    def list_keys(self, **options: Unpack[CallOptions]) -> CallSpec[identities.KeySetView]:
        return CallSpec(options)

    @call_method("identity.issuer")
    def read_issuer(self, **options: Unpack[CallOptions]) -> CallSpec[identities.IssuerView]:
        return CallSpec(options)

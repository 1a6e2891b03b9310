"""Client methods for the public keys of workload identities."""

from typing import Unpack

from wharf.contract.client.calls import CallOptions, CallSpec
from wharf.contract.client.methods import M, MethodGroup, call_method
from wharf.contract.wire import identities


class IdentityMethods(MethodGroup[M]):
    """The methods of `client.identities`. Each describes a call, which the client then sends."""

    @call_method("identity.keys")
    def list_keys(self, **options: Unpack[CallOptions]) -> CallSpec[identities.KeySetView]:
        """Read the public keys that verify workload identities."""
        return CallSpec(options)

    @call_method("identity.issuer")
    def read_issuer(self, **options: Unpack[CallOptions]) -> CallSpec[identities.IssuerView]:
        """Read the OpenID provider metadata with the URL of the public keys."""
        return CallSpec(options)

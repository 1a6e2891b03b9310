"""Client methods for quotas."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.quotas import Quota, QuotaUsage


class QuotaMethods(MethodGroup[M]):
    """The methods of `client.quotas`. Each describes a call, which the client then sends."""

    @list_method("quota.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[Quota]:
        """List the quotas that the caller may read."""
        return ListSpec(options)

    @read_method("quota.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[Quota]:
        """Read the quota with this name."""
        return ReadSpec(options, name)

    @call_method("quota.store")
    def store(self, quota: Quota, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Create the quota, or replace the one with its name."""
        return CallSpec(options, body=quota)

    @call_method("quota.update")
    def update(self, name: str, quota: Quota, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Create or replace the quota with this name."""
        return CallSpec(options, name, body=quota)

    @call_method("quota.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the quota with this name, which no namespace may use."""
        return CallSpec(options, name)

    @list_method("quota.usages")
    def usages(self, **options: Unpack[ListOptions]) -> ListSpec[QuotaUsage]:
        """List the used resources of each quota that the caller may read."""
        return ListSpec(options)

    @read_method("quota.usage")
    def usage(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[QuotaUsage]:
        """Read the used resources of the quota with this name."""
        return ReadSpec(options, name)

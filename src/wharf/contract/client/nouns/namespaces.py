"""Client methods for namespaces."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.namespaces import Namespace


class NamespaceMethods(MethodGroup[M]):
    """The methods of `client.namespaces`. Each describes a call, which the client then sends."""

    @list_method("namespace.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[Namespace]:
        """List the namespaces in which the caller has any capability."""
        return ListSpec(options)

    @read_method("namespace.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[Namespace]:
        """Read the namespace with this name."""
        return ReadSpec(options, name)

    @call_method("namespace.store")
    def store(self, record: Namespace, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Create the namespace, or replace the one with its name."""
        return CallSpec(options, body=record)

    @call_method("namespace.update")
    def update(self, name: str, record: Namespace, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Create or replace the namespace with this name."""
        return CallSpec(options, name, body=record)

    @call_method("namespace.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the namespace with this name, which must be empty."""
        return CallSpec(options, name)

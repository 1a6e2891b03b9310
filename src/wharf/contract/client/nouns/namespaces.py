"""What can be asked about those who share a cluster: namespaces, quotas, variables."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.namespaces import Namespace


class NamespaceMethods(MethodGroup[M]):
    @list_method("namespace.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[Namespace]:
        return ListSpec(options)

    @read_method("namespace.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[Namespace]:
        return ReadSpec(options, name)

    @call_method("namespace.store")
    def store(self, record: Namespace, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, body=record)

    @call_method("namespace.update")
    def update(self, name: str, record: Namespace, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, name, body=record)

    @call_method("namespace.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, name)

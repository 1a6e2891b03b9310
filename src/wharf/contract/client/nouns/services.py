"""."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire import services


class ServiceMethods(MethodGroup[M]):
    @list_method("service.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[services.NamespaceServices]:
        return ListSpec(options)

    @list_method("service.read")
    def read(self, name: str, *, choose: str = "", **options: Unpack[ListOptions]) -> ListSpec[ServiceRegistration]:
        """Its instances. `choose`, as `2|key`: so many, always the same for the same key."""
        return ListSpec(options, name, choose=choose)

    @call_method("service.delete")
    def delete(self, name: str, service_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, name, service_id)

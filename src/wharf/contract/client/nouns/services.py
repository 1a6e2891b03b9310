"""Client methods for services."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire import services


class ServiceMethods(MethodGroup[M]):
    """The methods of `client.services`. Each describes a call, which the client then sends."""

    @list_method("service.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[services.NamespaceServices]:
        """List the names of services with their tags, by namespace."""
        return ListSpec(options)

    @list_method("service.read")
    def read(self, name: str, *, choose: str = "", **options: Unpack[ListOptions]) -> ListSpec[ServiceRegistration]:
        """List the instances of the service with this name.

        `choose` as `<n>|<key>`, such as `2|web`, selects n instances; the same key selects the same ones.
        """
        return ListSpec(options, name, choose=choose)

    @call_method("service.delete")
    def delete(self, name: str, service_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the registration of a service instance."""
        return CallSpec(options, name, service_id)

"""Compilation of filter expressions of list endpoints. `pages` evaluates them."""

from collections.abc import Callable, Mapping
from typing import Any

from wharf.cluster.state import Replica
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.languages.filters import Filter, FilterError, FilterSubject, FilterTypeError, compile_filter

JoinedFieldReaders = dict[str, Callable[[Replica], Callable[[Any], Any]]]
"""Field name -> a function that takes the replica and returns the reader of that field of a record."""


class ListFilters:
    """Compiles filter expressions of list endpoints.

    `joined_field_readers`: by record type, how to read fields that are stored in other tables.
    """

    def __init__(self, replica: Replica, joined_field_readers: Mapping[type, JoinedFieldReaders]) -> None:
        self._replica = replica
        self._joined_field_readers = joined_field_readers
        self._subjects: dict[str, FilterSubject] = {}
        """By endpoint name; built on first use."""

    def compile(self, text: str, endpoint: Endpoint) -> Filter:
        """Return the compiled filter for records of the endpoint.

        Raises `Refusal` with Nomad's text.
        """
        try:
            return compile_filter(text, self._get_subject(endpoint))
        except FilterTypeError as error:
            raise invalid_request(f"failed to read result page: {error.text}") from error
        except FilterError as error:
            raise invalid_request(
                f"failed to create result paginator: failed to read filter expression: {error.text}"
            ) from error

    def _get_subject(self, endpoint: Endpoint) -> FilterSubject:
        """Return the fields that filters of the endpoint can use. They are built on first use."""
        subject = self._subjects.get(endpoint.name)
        if subject is None:
            assert endpoint.list_features is not None, f"{endpoint.name} has no list features"
            joins = self._joined_field_readers.get(endpoint.list_features.record, {})
            readers = {name: join(self._replica) for name, join in joins.items()}
            subject = self._subjects[endpoint.name] = endpoint.list_features.build_filter_subject(readers)
        return subject

"""The data that a template can query besides its value: environment, files, variables, services and the time.

The caller of the renderer provides an implementation. The renderer records each query, so that the caller can render the
template again when the result changes.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol


class MissingSource(Exception):
    """The queried thing does not exist, at least not yet. The text describes it for users, such as "variable a/b".

    Rendering continues with an empty value and reports everything that was missing at the end.
    """


class TemplateSources(Protocol):
    """Answers the queries of a template."""

    def now_ns(self) -> int:
        """Return the current time in Unix nanoseconds."""
        ...

    def environment(self, name: str) -> str | None:
        """Return an environment variable, or `None` if it is not set."""
        ...

    def file(self, path: str) -> str:
        """Return the content of a file.

        Raises `MissingSource` if the file does not exist, and `EvaluationError` if the template may not read it.
        """
        ...

    def variable(self, path: str) -> "Mapping[str, str]":
        """Return the entries of a variable. Raises `MissingSource`."""
        ...

    def variables(self, prefix: str) -> "Sequence[Mapping[str, object]]":
        """Return Path, Namespace, CreateIndex and so on of each variable whose path starts with the prefix."""
        ...

    def services(self) -> "Sequence[Mapping[str, object]]":
        """Return Name and Tags of each service."""
        ...

    def service(self, name: str) -> "Sequence[Mapping[str, object]]":
        """Return Address, Port, Tags and so on of each instance of a service."""
        ...


class NoSources:
    """Sources without data, for templates that use only their value. Every query raises `MissingSource`."""

    def now_ns(self) -> int:
        raise MissingSource("the time")

    def environment(self, name: str) -> str | None:
        raise MissingSource(f"the environment variable {name}")

    def file(self, path: str) -> str:
        raise MissingSource(f"the file {path}")

    def variable(self, path: str) -> Mapping[str, str]:
        raise MissingSource(f"the variable {path}")

    def variables(self, prefix: str) -> Sequence[Mapping[str, object]]:
        raise MissingSource(f"the variables under {prefix}")

    def services(self) -> Sequence[Mapping[str, object]]:
        raise MissingSource("the services")

    def service(self, name: str) -> Sequence[Mapping[str, object]]:
        raise MissingSource(f"the service {name}")

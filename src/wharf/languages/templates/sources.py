"""What a template may ask for beside what it was given. Who renders answers; the answers are noted, so that the
template is rendered again when one of them changes."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class MissingSource(Exception):
    """What was asked for is not there (yet): a name that a person understands. Rendering goes on with nothing in its
    place, and tells at the end what was missing."""


class TemplateSources(Protocol):
    def now_ns(self) -> int: ...

    def environment(self, name: str) -> str | None: ...

    def file(self, path: str) -> str:
        """Raises Missing; `wharf.languages.templates.errors.Wrong` where the path may not be read."""
        ...

    def variable(self, path: str) -> "Mapping[str, str]":
        """Raises MissingSource."""
        ...

    def variables(self, prefix: str) -> "Sequence[Mapping[str, object]]":
        """Path, Namespace, CreateIndex … of those whose path begins so."""
        ...

    def services(self) -> "Sequence[Mapping[str, object]]":
        """Name and Tags of each."""
        ...

    def service(self, name: str) -> "Sequence[Mapping[str, object]]":
        """Address, Port, Tags … of each instance."""
        ...


class NoSources:
    """For templates that only show what they are given."""

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

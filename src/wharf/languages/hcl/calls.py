"""The interface between calls in expressions and the functions: declared parameters, ports and errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.conversions import (
    ConversionError,
    to_bool,
    to_number_value,
    to_text,
    to_whole,
)
from wharf.languages.hcl.values import MAPPINGS, SEQUENCES, Value, describe_value


class FunctionError(Exception):
    """A function has no result. `argument` is the position of the argument that is the reason, or -1."""

    def __init__(self, message: str, *, argument: int = -1, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.argument = argument
        self.fix = fix


class FilePort(Protocol):
    """Reads files for the file functions. A method raises `FunctionError` if it fails.

    Servers use `NoFiles`, because a server must not show its files. The command line tool has an adapter that reads files.
    """

    def call(self, name: str, arguments: Sequence[str]) -> Value:
        """Return the result of the file function with this name."""


class RandomPort(Protocol):
    """Draws random bytes for `uuidv4` and `bcrypt`."""

    def draw_bytes(self, count: int) -> bytes:
        """Return this number of random bytes."""


class NoFiles:
    """The file port of servers: every call is an error."""

    def call(self, name: str, arguments: Sequence[str]) -> Value:  # noqa: ARG002  # the port passes the arguments
        raise FunctionError(
            f"the function {name} reads files, and the server has none: filesystem function disabled",
            fix="submit the job with the command line tool, which evaluates the file before it sends the job",
        )


@dataclass(frozen=True, slots=True)
class FunctionPorts:
    """What functions need from the outside."""

    random: RandomPort
    files: FilePort = field(default_factory=NoFiles)


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a function may use beside its arguments."""

    budget: Budget
    ports: FunctionPorts


def require_sequence(value: Value) -> Value:
    """Return a list, tuple or set unchanged. Raises `ConversionError`."""
    if not isinstance(value, SEQUENCES):
        raise ConversionError(f"expected a list, got {describe_value(value)}")
    return value


def require_mapping(value: Value) -> Value:
    """Return a map or object unchanged. Raises `ConversionError`."""
    if not isinstance(value, MAPPINGS):
        raise ConversionError(f"expected a map or object, got {describe_value(value)}")
    return value


def accept_any(value: Value) -> Value:
    """Return the value unchanged."""
    return value


@dataclass(frozen=True, slots=True)
class FunctionParameter:
    """A parameter of a function: its name, how an argument is converted, and whether null is allowed."""

    name: str
    convert: Callable[[Value], Value] = accept_any
    allows_null: bool = False


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A function. The last `optional_count` parameters may be left out. `variadic` takes all further arguments."""

    name: str
    run: Callable[..., Value]
    parameters: tuple[FunctionParameter, ...]
    optional_count: int = 0
    variadic: FunctionParameter | None = None
    min_variadic: int = 0


FunctionTable = Mapping[str, FunctionSpec]

_KINDS: Final[Mapping[str, Callable[[Value], Any]]] = {
    "text": to_text,
    "number": to_number_value,
    "whole": to_whole,
    "bool": to_bool,
    "list": require_sequence,
    "map": require_mapping,
    "any": accept_any,
}


def define_function(
    name: str, signature: str, run: Callable[..., Value], *, min_variadic: int = 0
) -> tuple[str, FunctionSpec]:
    """Return the table row of a function.

    The signature lists parameters such as `s:text`. A question mark after a name marks an optional parameter, dots a
    variadic one, and an exclamation mark one that may be null.
    """
    parameters: list[FunctionParameter] = []
    optional_count = 0
    variadic = None
    for part in signature.split():
        label, _, kind = part.partition(":")
        parameter = FunctionParameter(label.strip("?.!"), _KINDS[kind], "!" in label)
        if "..." in label:
            variadic = parameter
        else:
            parameters.append(parameter)
            optional_count += "?" in label
    return name, FunctionSpec(name, run, tuple(parameters), optional_count, variadic, min_variadic)

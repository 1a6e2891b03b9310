"""Plants a mistake in the memory of a process that has imported the project: replaces the code of functions.

All mistakes are in bodies of functions. Everything that holds such a function (a module that imported it, a decorator, a
dataclass, a msgspec type, a table of handlers) holds the same object, so it runs the new code. What a function computed
before, such as a constant of a module or the values of a parametrized test, would not change. So the code of functions
that ran already is never replaced: their mistakes need a new process.
"""

import ast
import gc
import inspect
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple


class FunctionKey(NamedTuple):
    """Names a function that is not inside another one. Two definitions of a name have different lines."""

    file: str
    qualified_name: str
    first_line: int  # That of its first decorator, if it has one.

    @classmethod
    def of(cls, code: CodeType) -> "FunctionKey":
        return cls(os.path.realpath(code.co_filename), code.co_qualname, code.co_firstlineno)


class CannotPlant(Exception):
    """The mistake would not have its full effect in this process. The text says why."""


@dataclass(frozen=True, slots=True)
class Planting:
    """New code and the functions that get it. No functions: the module is not imported yet, so it is read from its file."""

    functions: Sequence[FunctionType]
    code: CodeType

    def apply(self) -> None:
        for function in self.functions:
            function.__code__ = self.code


class CallRecorder:
    """Records which functions run between `start` and `stop`, in all threads that are started in that time."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}  # By id, because the hash of code is slow. As a value it keeps its id.

    def start(self) -> None:
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def list_functions(self) -> set[FunctionKey]:
        return {FunctionKey.of(code) for code in self._codes.values()}

    def _on_call(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        self._codes[id(code)] = code


class LoadedFunctions:
    """The functions of a source folder that exist in this process, and those of them that ran already."""

    def __init__(self, folder: Path, finished: Iterable[FunctionKey]) -> None:
        self._finished = frozenset(finished)
        self._functions: dict[FunctionKey, list[FunctionType]] = {}
        prefix = f"{os.path.realpath(folder)}{os.sep}"
        gc.unfreeze()  # Frozen objects are not listed.
        for candidate in gc.get_objects():
            if type(candidate) is FunctionType:
                key = FunctionKey.of(candidate.__code__)
                if key.file.startswith(prefix):
                    self._functions.setdefault(key, []).append(candidate)
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        self._imported_files = {os.path.realpath(file) for file in files if file}

    def prepare(self, path: Path, line: int) -> Planting:
        """Return how to plant the mistake that the file has in this line. Raises `CannotPlant`."""
        file = os.path.realpath(path)
        source = path.read_bytes()
        name, first_line = find_outermost_function(ast.parse(source), line)
        key = FunctionKey(file, name, first_line)
        code = _get_functions_by_place(compile(source, file, "exec"))[name, first_line]
        if key in self._finished:
            raise CannotPlant("the function already ran when the tests were collected")
        functions = self._functions.get(key, [])
        if not functions and file in self._imported_files:
            raise CannotPlant("the function is not in memory")
        if any(function.__code__.co_freevars != code.co_freevars for function in functions):
            raise CannotPlant("the mistake changes which outer names the function uses")
        return Planting(functions, code)


def find_outermost_function(tree: ast.Module, line: int) -> tuple[str, int]:
    """Return the qualified name and first line of the function around a line that is not inside another function."""
    return next(
        (name, min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]))
        for name, function in _walk_functions(tree, "")
        if function.lineno <= line <= (function.end_lineno or function.lineno)
    )


def _walk_functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + child.name, child
        else:
            yield from _walk_functions(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)


def _get_functions_by_place(code: CodeType) -> Mapping[tuple[str, int], CodeType]:
    """Return the code of the functions of a module and of its classes, by qualified name and first line."""
    found: dict[tuple[str, int], CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                found[constant.co_qualname, constant.co_firstlineno] = constant
            else:  # The body of a class.
                found.update(_get_functions_by_place(constant))
    return found

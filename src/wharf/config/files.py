"""Reads configuration files and folders into trees whose values know their file and line."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Final

from wharf.config.lines import Lines, json_lines, repeated_json_key, toml_lines
from wharf.config.problems import Problem
from wharf.config.tree import Leaf, Origin, Path, Plain, Source, Tree

ENDINGS: Final = (".toml", ".json")
MOST_BYTES: Final = 4_000_000
"""No configuration is as large; a wrong path to something else should not fill the memory."""


def list_files(places: Sequence[FilePath]) -> tuple[list[FilePath], list[Problem]]:
    """The files to read, in order. A folder stands for the .toml and .json files in it, by name; not for its folders."""
    files: list[FilePath] = []
    problems: list[Problem] = []
    for place in places:
        try:
            inside = sorted(place.iterdir()) if place.is_dir() else None
        except OSError as error:
            problems.append(_cannot_read(place, error))
            continue
        if inside is None:
            files.append(place)
        else:
            files.extend(file for file in inside if file.suffix in ENDINGS and file.is_file())
    return files, problems


def read_file(file: FilePath) -> Tree | Problem:
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        return _cannot_read(file, error)
    if len(data) > MOST_BYTES:
        return Problem(str(file), "", f"the file is larger than {MOST_BYTES // 1_000_000} MB: it is no configuration")
    if file.suffix and file.suffix not in ENDINGS:
        return Problem(str(file), "", "only TOML and JSON are read: a file of configuration ends in .toml or .json")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Problem(str(file), "", "the file is not text in UTF-8")
    return _parse_json(file, text) if file.suffix == ".json" else _parse_toml(file, text)


def _cannot_read(file: FilePath, error: OSError) -> Problem:
    if isinstance(error, FileNotFoundError):
        return Problem(str(file), "", "there is no such file or folder: check the path")
    if isinstance(error, PermissionError):
        return Problem(str(file), "", "not allowed to read it: change its owner or mode, or run as its owner")
    return Problem(str(file), "", f"cannot be read: {error.strerror}")


def _parse_toml(file: FilePath, text: str) -> Tree | Problem:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = "; a file in JSON needs the ending .json" if text.lstrip().startswith("{") else ""
        return Problem(str(file), "", f"this is not valid TOML: {error}{hint}")
    return _tree(str(file), values, toml_lines(text))


def _parse_json(file: FilePath, text: str) -> Tree | Problem:
    try:
        values = json.loads(text) if text.strip() else {}
    except (json.JSONDecodeError, RecursionError) as error:
        return Problem(str(file), "", f"this is not valid JSON: {error}")
    if not isinstance(values, dict):
        return Problem(str(file), "", "a configuration in JSON is one object: { ... }")
    repeated = repeated_json_key(text)
    if repeated is not None:
        path, line = repeated
        return Problem(f"{file}:{line}", ".".join(path), "this key is given twice in one object")
    return _tree(str(file), values, json_lines(text))


def _tree(file: str, values: dict[str, Plain], lines: Lines, path: Path = ()) -> Tree:
    children: dict[str, Tree | Leaf] = {}
    for key, value in values.items():
        inner = (*path, key)
        if isinstance(value, dict):
            children[key] = _tree(file, value, lines, inner)
        else:
            children[key] = Leaf(value, _origin(file, lines, inner))
    return Tree(children, _origin(file, lines, path))


def _origin(file: str, lines: Lines, path: Path) -> Origin:
    while path and path not in lines:
        path = path[:-1]
    return Origin(Source.FILE, f"{file}:{lines[path]}" if path else file)

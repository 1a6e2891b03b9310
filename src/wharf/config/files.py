"""Reads configuration files and folders into trees whose values carry their file and line."""

import json
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Final

from wharf.config.errors import ConfigurationProblem
from wharf.config.line_numbers import LineNumbers, find_json_lines, find_repeated_json_key, find_toml_lines
from wharf.config.tree import KeyPath, OriginKind, PlainValue, SettingLeaf, SettingTree, ValueOrigin

FILE_SUFFIXES: Final = (".toml", ".json")
MAX_FILE_BYTES: Final = 4_000_000
"""Larger files are rejected, so that a wrong path, such as one to a disk image, does not fill the memory."""


def list_files(paths: Sequence[FilePath]) -> tuple[list[FilePath], list[ConfigurationProblem]]:
    """Return two lists: the files to read, in order, and a problem for each path that cannot be read.

    A folder stands for the .toml and .json files directly in it, sorted by name.
    """
    files: list[FilePath] = []
    problems: list[ConfigurationProblem] = []
    for path in paths:
        try:
            folder_entries = sorted(path.iterdir()) if path.is_dir() else None
        except OSError as error:
            problems.append(_make_read_problem(path, error))
            continue
        if folder_entries is None:
            files.append(path)
        else:
            files.extend(file for file in folder_entries if file.suffix in FILE_SUFFIXES and file.is_file())
    return files, problems


def read_file(file: FilePath) -> SettingTree | ConfigurationProblem:
    """Return the values of a file, or the reason why it cannot be read. A file without a suffix is read as TOML."""
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return _make_read_problem(file, error)
    if len(data) > MAX_FILE_BYTES:
        return ConfigurationProblem(
            str(file), "", f"the file is larger than {MAX_FILE_BYTES // 1_000_000} MB: check the path"
        )
    if file.suffix and file.suffix not in FILE_SUFFIXES:
        return ConfigurationProblem(
            str(file), "", "unknown format: the name of a configuration file ends in .toml or .json"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return ConfigurationProblem(str(file), "", "the file is not text in UTF-8")
    return _parse_json(file, text) if file.suffix == ".json" else _parse_toml(file, text)


def find_open_file(location: str) -> tuple[FilePath, int] | None:
    """Return the file of a location such as `wharf.toml:12`, and its mode, if other users have access to it."""
    name, _, line = location.rpartition(":")
    file = FilePath(name if line.isdigit() else location)
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return None  # It was removed after it was read.
    return (file, mode) if mode & (stat.S_IRWXG | stat.S_IRWXO) else None


def _make_read_problem(file: FilePath, error: OSError) -> ConfigurationProblem:
    """Return a problem that says why the operating system did not open the file, and what to do."""
    if isinstance(error, FileNotFoundError):
        return ConfigurationProblem(str(file), "", "there is no such file or folder: check the path")
    if isinstance(error, PermissionError):
        return ConfigurationProblem(str(file), "", "permission denied: change its owner or mode, or run as its owner")
    return ConfigurationProblem(str(file), "", f"cannot be read: {error.strerror}")


def _parse_toml(file: FilePath, text: str) -> SettingTree | ConfigurationProblem:
    """Return the values of a TOML document, or the reason why it is not valid."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = "; the name of a JSON file must end in .json" if text.lstrip().startswith("{") else ""
        return ConfigurationProblem(str(file), "", f"this is not valid TOML: {error}{hint}")
    return _build_tree(str(file), values, find_toml_lines(text))


def _parse_json(file: FilePath, text: str) -> SettingTree | ConfigurationProblem:
    """Return the values of a JSON document, or the reason why it is not valid. An empty file has no values."""
    try:
        values = json.loads(text) if text.strip() else {}
    except (json.JSONDecodeError, RecursionError) as error:
        return ConfigurationProblem(str(file), "", f"this is not valid JSON: {error}")
    if not isinstance(values, dict):
        return ConfigurationProblem(str(file), "", "expected one JSON object: { ... }")
    repeated = find_repeated_json_key(text)
    if repeated is not None:
        path, line = repeated
        return ConfigurationProblem(f"{file}:{line}", ".".join(path), "this key occurs twice in one object")
    return _build_tree(str(file), values, find_json_lines(text))


def _build_tree(file: str, values: dict[str, PlainValue], lines: LineNumbers, path: KeyPath = ()) -> SettingTree:
    """Convert parsed values to a tree with the file and line of each value."""
    children: dict[str, SettingTree | SettingLeaf] = {}
    for key, value in values.items():
        inner_path = (*path, key)
        if isinstance(value, dict):
            children[key] = _build_tree(file, value, lines, inner_path)
        else:
            children[key] = SettingLeaf(value, _find_origin(file, lines, inner_path))
    return SettingTree(children, _find_origin(file, lines, path))


def _find_origin(file: str, lines: LineNumbers, path: KeyPath) -> ValueOrigin:
    """Return file and line of a key; the line of the table around it if the key's own is unknown."""
    while path and path not in lines:
        path = path[:-1]
    return ValueOrigin(OriginKind.FILE, f"{file}:{lines[path]}" if path else file)

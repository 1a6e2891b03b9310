"""Reads configuration files and folders into trees whose values know their file and line."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Final

from wharf.config.errors import ConfigurationProblem
from wharf.config.line_numbers import LineNumbers, find_json_lines, find_repeated_json_key, find_toml_lines
from wharf.config.tree import KeyPath, OriginKind, PlainValue, SettingLeaf, SettingTree, ValueOrigin

FILE_SUFFIXES: Final = (".toml", ".json")
MAX_FILE_BYTES: Final = 4_000_000
"""No configuration is as large; a wrong path to something else should not fill the memory."""


def list_files(paths: Sequence[FilePath]) -> tuple[list[FilePath], list[ConfigurationProblem]]:
    """The files to read, in order. A folder stands for the .toml and .json files in it, by name; not for its folders."""
    files: list[FilePath] = []
    problems: list[ConfigurationProblem] = []
    for place in paths:
        try:
            inside = sorted(place.iterdir()) if place.is_dir() else None
        except OSError as error:
            problems.append(_cannot_read(place, error))
            continue
        if inside is None:
            files.append(place)
        else:
            files.extend(file for file in inside if file.suffix in FILE_SUFFIXES and file.is_file())
    return files, problems


def read_file(file: FilePath) -> SettingTree | ConfigurationProblem:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return _cannot_read(file, error)
    if len(data) > MAX_FILE_BYTES:
        return ConfigurationProblem(
            str(file), "", f"the file is larger than {MAX_FILE_BYTES // 1_000_000} MB: it is no configuration"
        )
    if file.suffix and file.suffix not in FILE_SUFFIXES:
        return ConfigurationProblem(
            str(file), "", "only TOML and JSON are read: a file of configuration ends in .toml or .json"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return ConfigurationProblem(str(file), "", "the file is not text in UTF-8")
    return _parse_json(file, text) if file.suffix == ".json" else _parse_toml(file, text)


def _cannot_read(file: FilePath, error: OSError) -> ConfigurationProblem:
    if isinstance(error, FileNotFoundError):
        return ConfigurationProblem(str(file), "", "there is no such file or folder: check the path")
    if isinstance(error, PermissionError):
        return ConfigurationProblem(
            str(file), "", "not allowed to read it: change its owner or mode, or run as its owner"
        )
    return ConfigurationProblem(str(file), "", f"cannot be read: {error.strerror}")


def _parse_toml(file: FilePath, text: str) -> SettingTree | ConfigurationProblem:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = "; a file in JSON needs the ending .json" if text.lstrip().startswith("{") else ""
        return ConfigurationProblem(str(file), "", f"this is not valid TOML: {error}{hint}")
    return _tree(str(file), values, find_toml_lines(text))


def _parse_json(file: FilePath, text: str) -> SettingTree | ConfigurationProblem:
    try:
        values = json.loads(text) if text.strip() else {}
    except (json.JSONDecodeError, RecursionError) as error:
        return ConfigurationProblem(str(file), "", f"this is not valid JSON: {error}")
    if not isinstance(values, dict):
        return ConfigurationProblem(str(file), "", "a configuration in JSON is one object: { ... }")
    repeated = find_repeated_json_key(text)
    if repeated is not None:
        path, line = repeated
        return ConfigurationProblem(f"{file}:{line}", ".".join(path), "this key is given twice in one object")
    return _tree(str(file), values, find_json_lines(text))


def _tree(file: str, values: dict[str, PlainValue], lines: LineNumbers, path: KeyPath = ()) -> SettingTree:
    children: dict[str, SettingTree | SettingLeaf] = {}
    for key, value in values.items():
        inner = (*path, key)
        if isinstance(value, dict):
            children[key] = _tree(file, value, lines, inner)
        else:
            children[key] = SettingLeaf(value, _origin(file, lines, inner))
    return SettingTree(children, _origin(file, lines, path))


def _origin(file: str, lines: LineNumbers, path: KeyPath) -> ValueOrigin:
    while path and path not in lines:
        path = path[:-1]
    return ValueOrigin(OriginKind.FILE, f"{file}:{lines[path]}" if path else file)

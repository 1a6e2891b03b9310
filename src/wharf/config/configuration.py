"""Loads a configuration: defaults, then files in order, then the environment, then flags. Later values win."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Final

import msgspec

from wharf.config.builder import SettingsBuilder, format_path
from wharf.config.environment import read_environment, with_leaf
from wharf.config.errors import ConfigurationError, ConfigurationProblem
from wharf.config.files import find_open_file, list_files, read_file
from wharf.config.rules import check_settings
from wharf.config.settings import AgentSettings
from wharf.config.tree import (
    DEFAULT_ORIGIN,
    KeyPath,
    OriginKind,
    PlainValue,
    Scalar,
    SettingLeaf,
    SettingTree,
    ValueOrigin,
    merge_trees,
)

PRIVATE_SETTINGS: Final[tuple[KeyPath, ...]] = (("keyring", "secret"),)
"""Secrets whose file only its owner may read or write, because they decrypt all others."""


class CommandFlag(msgspec.Struct, frozen=True):
    """A command-line flag that sets the value at a path."""

    name: str
    path: KeyPath
    value: Scalar | list[PlainValue]


class Configuration(msgspec.Struct, frozen=True):
    """The loaded settings, with the origin of each value and the files that were read."""

    settings: AgentSettings
    origins: Mapping[KeyPath, ValueOrigin]
    """The origins of values that are not defaults. `origin_of` covers both."""
    files: Sequence[FilePath] = ()

    def origin_of(self, path: KeyPath) -> ValueOrigin:
        """Return where the value at a path came from."""
        return self.origins.get(path, DEFAULT_ORIGIN)


def load_configuration(
    paths: Sequence[FilePath] = (),
    *,
    environment: Mapping[str, str],
    flags: Sequence[CommandFlag] = (),
    presets: Mapping[KeyPath, Scalar | list[PlainValue]] | None = None,
) -> Configuration:
    """Return the configuration of all sources: defaults, files in order, environment, then flags. Later values win.

    `presets` are defaults of the calling command; every other source overrides them. Raises `ConfigurationError` with
    all problems of all sources, not only the first.
    """
    files, problems = list_files(paths)
    tree = SettingTree({}, DEFAULT_ORIGIN)
    for path, value in (presets or {}).items():
        tree = with_leaf(tree, path, SettingLeaf(value, ValueOrigin(OriginKind.DEFAULT, "default of this command")))
    for file in files:
        file_tree = read_file(file)
        if isinstance(file_tree, ConfigurationProblem):
            problems.append(file_tree)
        else:
            tree = merge_trees(tree, file_tree)
    tree = merge_trees(tree, read_environment(environment))
    for flag in flags:
        tree = with_leaf(tree, flag.path, SettingLeaf(flag.value, ValueOrigin(OriginKind.FLAG, flag.name)))

    builder = SettingsBuilder()
    settings = builder.build(tree)
    problems.extend(builder.problems)
    if settings is not None and not problems:
        problems.extend(check_settings(settings, lambda path: builder.origins.get(path, DEFAULT_ORIGIN)))
        problems.extend(_check_private_files(builder.origins))
    if problems or settings is None:
        raise ConfigurationError(problems)
    return Configuration(settings, builder.origins, files)


def _check_private_files(origins: Mapping[KeyPath, ValueOrigin]) -> Iterator[ConfigurationProblem]:
    """Check that only the owner has access to a file that contains the key of all secrets."""
    for path in PRIVATE_SETTINGS:
        origin = origins.get(path, DEFAULT_ORIGIN)
        if origin.kind is OriginKind.FILE and (found := find_open_file(origin.location)) is not None:
            file, mode = found
            message = f"other users have access to the file (mode {mode:04o}): replace the secret, and chmod 600 {file}"
            yield ConfigurationProblem(origin.location, format_path(path), message)

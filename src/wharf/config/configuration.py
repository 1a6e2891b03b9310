"""Loads a configuration: defaults, then files in order, then the environment, then flags. Later values win."""

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from wharf.config.builder import SettingsBuilder
from wharf.config.environment import read_environment, with_leaf
from wharf.config.errors import ConfigurationError, ConfigurationProblem
from wharf.config.files import list_files, read_file
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
    if problems or settings is None:
        raise ConfigurationError(problems)
    return Configuration(settings, builder.origins, files)

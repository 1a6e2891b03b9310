"""A whole configuration: defaults, then files in order, then the environment, then flags; later wins."""

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
    """A value from the command line, for the setting at a path."""

    name: str
    path: KeyPath
    value: Scalar | list[PlainValue]


class Configuration(msgspec.Struct, frozen=True):
    settings: AgentSettings
    origins: Mapping[KeyPath, ValueOrigin]
    """Of every value that was given. Use `origin_of`."""
    files: Sequence[FilePath] = ()

    def origin_of(self, path: KeyPath) -> ValueOrigin:
        return self.origins.get(path, DEFAULT_ORIGIN)


def load_configuration(
    paths: Sequence[FilePath] = (),
    *,
    environment: Mapping[str, str],
    flags: Sequence[CommandFlag] = (),
    presets: Mapping[KeyPath, Scalar | list[PlainValue]] | None = None,
) -> Configuration:
    """Read all and merge all. `presets` are defaults of one way to start, weaker than everything else.

    Raises ConfigurationRefused with every problem of every file, not only the first.
    """
    files, problems = list_files(paths)
    tree = SettingTree({}, DEFAULT_ORIGIN)
    for path, value in (presets or {}).items():
        tree = with_leaf(tree, path, SettingLeaf(value, ValueOrigin(OriginKind.DEFAULT, "default of this command")))
    for file in files:
        read = read_file(file)
        if isinstance(read, ConfigurationProblem):
            problems.append(read)
        else:
            tree = merge_trees(tree, read)
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

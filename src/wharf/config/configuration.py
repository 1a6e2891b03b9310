"""A whole configuration: defaults, then files in order, then the environment, then flags; later wins."""

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from wharf.config.building import Builder
from wharf.config.environment import put, read_environment
from wharf.config.files import list_files, read_file
from wharf.config.problems import ConfigurationRefused, Problem
from wharf.config.rules import check
from wharf.config.settings import Settings
from wharf.config.tree import DEFAULT, Leaf, Origin, Path, Plain, Scalar, Source, Tree, merge


class Flag(msgspec.Struct, frozen=True):
    """A value from the command line, for the setting at a path."""

    name: str
    path: Path
    value: Scalar | list[Plain]


class Configuration(msgspec.Struct, frozen=True):
    settings: Settings
    origins: Mapping[Path, Origin]
    """Of every value that was given. Use `origin_of`."""
    files: Sequence[FilePath] = ()

    def origin_of(self, path: Path) -> Origin:
        return self.origins.get(path, DEFAULT)


def load(
    places: Sequence[FilePath] = (),
    *,
    environment: Mapping[str, str],
    flags: Sequence[Flag] = (),
    presets: Mapping[Path, Scalar | list[Plain]] | None = None,
) -> Configuration:
    """Read all and merge all. `presets` are defaults of one way to start, weaker than everything else.

    Raises ConfigurationRefused with every problem of every file, not only the first.
    """
    files, problems = list_files(places)
    tree = Tree({}, DEFAULT)
    for path, value in (presets or {}).items():
        tree = put(tree, path, Leaf(value, Origin(Source.DEFAULT, "default of this command")))
    for file in files:
        read = read_file(file)
        if isinstance(read, Problem):
            problems.append(read)
        else:
            tree = merge(tree, read)
    tree = merge(tree, read_environment(environment))
    for flag in flags:
        tree = put(tree, flag.path, Leaf(flag.value, Origin(Source.FLAG, flag.name)))

    builder = Builder()
    settings = builder.build(tree)
    problems.extend(builder.problems)
    if settings is not None and not problems:
        problems.extend(check(settings, lambda path: builder.origins.get(path, DEFAULT)))
    if problems or settings is None:
        raise ConfigurationRefused(problems)
    return Configuration(settings, builder.origins, files)

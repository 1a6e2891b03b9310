"""Checks a settings file and the files that it names, as a limiter does when it starts. Opens no port and writes nothing."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.limits.config.certificates import check_authorities, check_certificate
from wharf.limits.config.settings_file import read_settings
from wharf.limits.core.rule import RuleSet
from wharf.limits.credentials.keyed_hash import UnusableKey, read_key
from wharf.limits.rate_limiter import find_misplaced_setting
from wharf.limits.rules import InvalidFile, LintFinding, lint_rules, read_directory, read_rules
from wharf.limits.rules.document import TomlDocument, format_key
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.toml.problems import FileProblem

AUTHORITY_KEYS: Final = ("ca_file", "upstream_ca_file", "client_ca_file")
"""Keys of any table that name the certificates of authorities."""
PLAIN_FILE_KEYS: Final = ("keys_file",)
"""Keys of any table that name other files, which are read later."""


class SettingsCheck(msgspec.Struct, frozen=True):
    """The result of a check."""

    problems: tuple[FileProblem, ...]
    """What a limiter would reject, in the settings file and in the directory file."""
    rules_file: str
    """The rules file; the name of the profile without one."""
    rules: RuleSet | None
    """The rules; `None` if they cannot be read. Then `problems` has the reason."""
    findings: tuple[LintFinding, ...]
    """The likely mistakes in the rules. A limiter rejects rules with errors."""


def check_settings(text: str, file: Path) -> SettingsCheck:
    """Return the problems of a settings file, given its text, and of the files that it names."""
    problems: list[FileProblem] = []
    try:
        document = TomlDocument(text, str(file))
    except InvalidFile as error:
        return SettingsCheck(error.problems, "", None, ())
    checker = _ReferenceChecker(document, file.parent)
    settings = None
    try:
        settings = read_settings(text, str(file), folder=file.parent)
    except InvalidFile as error:
        problems += error.problems
    rules = checker.read_rules()
    checker.check_files()
    if settings is not None and rules is not None and (message := find_misplaced_setting(settings, rules)):
        checker.add_problem(("opaque",), message)
    # A secret file that cannot be read is a problem for both.
    problems += [problem for problem in checker.problems if problem.location not in {p.location for p in problems}]
    return SettingsCheck(
        problems=tuple(sorted(problems)),
        rules_file=checker.rules_file,
        rules=rules,
        findings=() if rules is None else tuple(lint_rules(rules)),
    )


class _ReferenceChecker:
    """Checks the files that the keys of a settings file name. Keys with invalid values are left out."""

    def __init__(self, document: TomlDocument, folder: Path) -> None:
        self.problems: list[FileProblem] = []
        self.rules_file = ""
        self._document = document
        self._folder = folder

    def add_problem(self, path: tuple[str | int, ...], message: str) -> None:
        """Record a problem of the key at a path."""
        location = self._document.get_location(path)
        key = format_key(path[:-1], str(path[-1]))
        self.problems.append(FileProblem(self._document.file, location, key, message))

    def read_rules(self) -> RuleSet | None:
        """Return the rules of the rules file, or of the profile without one; `None` if they cannot be read."""
        name = self._document.raw.get("rules")
        if not isinstance(name, str):
            profile = self._document.raw.get("profile", "code-host")
            self.rules_file = f"profile {profile}"
            try:
                return read_profile(profile)
            except InvalidFile:
                return None  # `read_settings` reports an unknown profile.
        self.rules_file = str(self._folder / name)
        rules: list[RuleSet] = []
        self._read(("rules",), lambda text, file: rules.append(read_rules(text, file)))
        return rules[0] if rules else None

    def check_files(self) -> None:
        """Check the directory file, certificates, keys and authorities."""
        raw = self._document.raw
        if isinstance(raw.get("directory"), str):
            self._read(("directory",), read_directory)
        if isinstance(name := raw.get("credential_key_file"), str):
            try:
                read_key(self._folder / name)
            except UnusableKey as error:
                self.add_problem(("credential_key_file",), str(error))
        for path, table in _iter_tables(raw):
            self._check_table(path, table)

    def _check_table(self, path: tuple[str | int, ...], table: Mapping[str, Any]) -> None:
        """Check the files that the keys of one table name."""
        names = {key: self._folder / name for key, name in table.items() if isinstance(name, str)}
        if "certificate_file" in names and "key_file" in names:
            certificate_file, key_file = names["certificate_file"], names["key_file"]
            self._check((*path, "certificate_file"), lambda: check_certificate(certificate_file, key_file))
        for key in AUTHORITY_KEYS:
            if key in names:
                self._check((*path, key), lambda file=names[key]: check_authorities(file))  # type: ignore[misc] # Bound now.
        for key in PLAIN_FILE_KEYS:
            if key in names:
                self._read((*path, key), lambda _text, _file: None)

    def _check(self, path: tuple[str | int, ...], check: Callable[[], None]) -> None:
        """Run a check of the file that the key at a path names, and record its problem at the key."""
        try:
            check()
        except InvalidFile as error:
            self.add_problem(path, "; ".join(f"{problem.file}: {problem.message}" for problem in error.problems))

    def _read(self, path: tuple[str, ...] | tuple[str | int, ...], read: Callable[[str, str], object]) -> None:
        """Read the file that the key at a path names. Its own problems are recorded with their locations in that file."""
        value: Any = self._document.raw
        for part in path:
            value = value[part]
        file = self._folder / str(value)
        try:
            read(file.read_text("utf-8"), str(file))
        except InvalidFile as error:
            self.problems += error.problems
        except UnicodeDecodeError:
            self.add_problem(path, f"{file} is not UTF-8")
        except OSError as error:
            self.add_problem(path, f"{file} cannot be read: {error.strerror}")


def _iter_tables(raw: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    """Yield each table of a document, and each entry of a list of tables, with its path."""
    for name, value in raw.items():
        if isinstance(value, dict):
            yield (name,), value
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                if isinstance(entry, dict):
                    yield (name, index), entry

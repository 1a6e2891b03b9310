"""Writes the tables of docs/limits-rules.md from the declarations: `python -m wharf.limits.rules.reference`.

What stands above the marker in that page is written by hand and stays.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wharf.limits.core.callers.caller import LIMITED_CLASSES, CallerClass
from wharf.limits.core.rule import UNLIMITED, CountedUnit, Rule
from wharf.limits.rules.rules_file import PROFILES, read_profile
from wharf.limits.rules.schema import DIRECTORY_TABLES, RULES_TABLES, TableSchema

PAGE: Final = "docs/limits-rules.md"
MARKER: Final = "<!-- All below is written by `python -m wharf.limits.rules.reference`. -->"

_WITH_CREDENTIAL: Final = [case for case in LIMITED_CLASSES if case is not CallerClass.NONE]
_UNITS_MS: Final = ((3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def render_page(page: str) -> str:
    """The page with its tables made anew."""
    introduction = page.partition(MARKER)[0]
    parts = [MARKER, "", "## Keys of a rules file", "", *_tables(RULES_TABLES)]
    parts += ["## Keys of a directory file", "", *_tables(DIRECTORY_TABLES)]
    for name in PROFILES:
        parts += [f"## The rules of `{name}`", "", *_profile(name), ""]
    return introduction + "\n".join(parts)


def _tables(tables: tuple[TableSchema, ...]) -> Iterator[str]:
    for table in tables:
        brackets = f"[[{table.name}]]" if table.is_list else f"[{table.name}]"
        yield f"### `{brackets}`" if table.name else "### The file"
        yield f"\n{table.description}\n"
        yield "| key | what | default |\n|---|---|---|"
        for key in table.keys:
            yield f"| `{key.name}` | {key.description} {key.kind.description} | {key.default} |"
        yield ""


def _profile(name: str) -> Iterator[str]:
    rules = read_profile(name)
    yield "Primary limits, of which a request meets the first that fits:\n"
    yield "| rule | requests | in | ceiling |\n|---|---|---|---|"
    for rule in rules.rules:
        if rule.is_primary:
            yield f"| `{rule.name}` | {_requests(rule)} | {_window(rule)} | {_ceilings(rule)} |"
    yield "\nSecondary limits, of which a request meets all that fit:\n"
    yield "| rule | requests | counts | in | ceiling |\n|---|---|---|---|---|"
    for rule in rules.rules:
        if not rule.is_primary:
            counts = f"`{rule.counts.value}`" + (" by endpoint" if rule.per_endpoint else "")
            yield f"| `{rule.name}` | {_requests(rule)} | {counts} | {_window(rule)} | {_ceilings(rule)} |"


def _requests(rule: Rule) -> str:
    patterns = ", ".join(f"`{text}`" for text in rule.match)
    interfaces = " and ".join(interface.value for interface in rule.interface)
    return patterns or interfaces or "all"


def _window(rule: Rule) -> str:
    if rule.counts is CountedUnit.CONNECTIONS:
        return "at once"
    size_ms, name = next(unit for unit in _UNITS_MS if rule.window_ms % unit[0] == 0)
    count = rule.window_ms // size_ms
    return name if count == 1 else f"{count} {name}s"


def _ceilings(rule: Rule) -> str:
    values = {case: rule.ceilings[case] for case in CallerClass if case in rule.ceilings}
    if len(set(values.values())) == 1 and set(values) == set(LIMITED_CLASSES):
        return _number(next(iter(values.values())))
    said = []
    for ceiling in dict.fromkeys(values.values()):
        cases = [case for case, value in values.items() if value == ceiling]
        names = ["credential"] if cases == _WITH_CREDENTIAL else [case.value for case in cases]
        said.append(f"{', '.join(f'`{name}`' for name in names)}: {_number(ceiling)}")
    text = "; ".join(said)
    if rule.scale is not None:
        scale = rule.scale
        text += (
            f"; over {scale.above} repositories {scale.per_repository} more for each, and so for users by "
            f"{scale.per_user}, up to {_number(scale.most)}"
        )
    return text


def _number(ceiling: int) -> str:
    return "unlimited" if ceiling >= UNLIMITED else f"{ceiling:,}"


def main() -> None:
    page = Path(PAGE)
    page.write_text(render_page(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()

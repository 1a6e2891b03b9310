"""The page about streams of records: its examples are valid, and the schema file is up to date."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from wharf.agent.record_schema import SCHEMA_FILE, render_schema
from wharf.agent.server_records import SERVER_RECORD_TYPES
from wharf.config.configuration import CommandFlag, load_configuration
from wharf.limits.config.settings_file import LIMITER_RECORD_TYPES, read_settings
from wharf.limits.decisions.records import RECORD_TYPES, OperatorChangeRecord
from wharf.sinks.spool import MAX_BATCH_RECORDS
from wharf.sinks.stream import MAX_FOLLOWERS, MAX_RECENT_RECORDS

PAGE = Path("docs/streams.md").read_text("utf-8")
LIMITER_EXAMPLE, AGENT_EXAMPLE = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_schema_file_matches_the_records() -> None:
    assert Path(SCHEMA_FILE).read_text("utf-8") == render_schema()


def test_the_example_of_a_limiter_is_valid(tmp_path: Path) -> None:
    (tmp_path / "collector.secret").touch(mode=0o600)
    (tmp_path / "collector.secret").write_text("Bearer my-secret\n")

    sinks = read_settings(LIMITER_EXAMPLE, folder=tmp_path).sinks

    assert [(sink.name, sink.secret) for sink in sinks] == [("changes", ""), ("collector", "Bearer my-secret")]


def test_the_example_of_an_agent_is_valid() -> None:
    flags = [
        CommandFlag("a flag", ("sinks", name, key), value)
        for name, sink in tomllib.loads(AGENT_EXAMPLE)["sinks"].items()
        for key, value in sink.items()
    ]
    presets: Any = {("data_dir",): "/var/lib/wharf", ("server", "enabled"): True}

    settings = load_configuration(environment={}, flags=flags, presets=presets).settings

    assert [(name, sink.kind.value) for name, sink in settings.sinks.items()] == [
        ("collector", "otlp"),
        ("archive", "s3"),
    ]


def test_the_example_of_a_record_is_valid() -> None:
    (example,) = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)

    record = msgspec.json.decode(example, type=OperatorChangeRecord)

    assert msgspec.json.decode(msgspec.json.encode(record)) == msgspec.json.decode(example)


@pytest.mark.parametrize("record_type", [*RECORD_TYPES, *SERVER_RECORD_TYPES])
def test_every_type_of_record_is_in_the_table(record_type: type[msgspec.Struct]) -> None:
    assert f"| `{record_type.__struct_config__.tag}` |" in PAGE


def test_the_types_of_a_limiter_can_be_selected_by_its_sinks() -> None:
    assert tuple(record_type.__struct_config__.tag for record_type in RECORD_TYPES) == LIMITER_RECORD_TYPES


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"up to {MAX_BATCH_RECORDS} records" in PAGE
    assert f"the last {MAX_RECENT_RECORDS:,} records" in PAGE
    assert f"Up to {MAX_FOLLOWERS} clients" in PAGE

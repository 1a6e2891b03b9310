"""Generates the JSON schema of all records that sinks receive: `python -m wharf.agent.record_schema`."""

import json
from pathlib import Path
from typing import Final

from wharf.agent.server_records import SERVER_RECORD_TYPES
from wharf.limits.decisions.records import RECORD_TYPES
from wharf.sinks.records import StreamRecord, build_schema

SCHEMA_FILE: Final = "docs/records.schema.json"


def render_schema() -> str:
    """Return the text of the schema file, with the records of limiters and servers."""
    types: list[type[StreamRecord]] = [*RECORD_TYPES]
    types += [record_type for record_type in SERVER_RECORD_TYPES if record_type not in types]
    return json.dumps(build_schema(types), indent=2) + "\n"


if __name__ == "__main__":
    Path(SCHEMA_FILE).write_text(render_schema(), "utf-8")

"""Writes the schema and the pages of the reference of job files: `python -m wharf.job_files.reference`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from wharf.job_files.reference.document import build_schema_document
from wharf.job_files.reference.pages import FOLDER, build_pages
from wharf.job_files.schema import SCHEMA_FILE_NAME

SCHEMA_FILE: Final = f"src/wharf/job_files/{SCHEMA_FILE_NAME}"


def render_files() -> dict[str, str]:
    """Return the text of each generated file, by its path in the repository."""
    schema = build_schema_document()
    pages = {f"{FOLDER}/{name}": text for name, text in build_pages(schema).items()}
    return {SCHEMA_FILE: json.dumps(schema, indent=1, ensure_ascii=False) + "\n", **pages}


def write_files(files: Mapping[str, str]) -> None:
    """Write the files, relative to the current folder, and delete pages that no longer exist."""
    for path in Path(FOLDER).glob("*.md"):
        if str(path) not in files:
            path.unlink()
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, "utf-8")


if __name__ == "__main__":
    generated = render_files()
    write_files(generated)
    sys.stdout.write(f"wrote {len(generated)} files\n")

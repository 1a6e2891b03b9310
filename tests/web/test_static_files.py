"""Style and scripts: their addresses change with their content, and the scripts of others are those that we chose."""

import gzip
import hashlib
import tomllib
from pathlib import Path

from wharf.web.static_files import StaticFiles, load_static_files

ROOT = Path(__file__).parents[2]
VENDOR_FOLDERS = ("src/wharf/web/static/vendor", "tests/web/vendor")
FIRST_PAGE_BYTES = 60_000
"""The limit of the first page with everything that it loads, compressed."""
HTML_BYTES = 15_000


def test_a_changed_file_has_another_address() -> None:
    one, two = StaticFiles({"a.css": b"a"}), StaticFiles({"a.css": b"b"})

    assert one.get_url("a.css") != two.get_url("a.css")
    assert one.find(one.get_url("a.css")) is not None
    assert two.find(one.get_url("a.css")) is None


def test_the_scripts_of_others_are_those_of_the_table() -> None:
    table = tomllib.loads((ROOT / "tools/vendor.toml").read_text("utf-8"))["file"]

    assert sorted(f"{folder}/{path.name}" for folder in VENDOR_FOLDERS for path in (ROOT / folder).iterdir()) == sorted(
        {f"{row['folder']}/{name}" for row in table for name in (row["name"], row["license_file"])}
    )
    for row in table:
        content = (ROOT / row["folder"] / row["name"]).read_bytes()
        assert hashlib.sha512(content).hexdigest() == row["sha512"], row["name"]


def test_the_first_page_loads_little() -> None:
    files = load_static_files()
    loaded = [
        files.find(files.get_url(name))
        for name in ("style.css", "pages.js", "live.js", "icon.svg", "vendor/htmx.min.js")
    ]

    size = sum(len(file.compressed) for file in loaded if file is not None)

    assert size < FIRST_PAGE_BYTES - HTML_BYTES
    assert all(gzip.decompress(file.compressed) == file.content for file in loaded if file is not None)


def test_no_own_script_or_style_loads_from_elsewhere() -> None:
    for name in ("style.css", "pages.js", "live.js", "terminal.js"):
        text = (ROOT / "src/wharf/web/static" / name).read_text("utf-8")
        assert "://" not in text
        assert "eval(" not in text
        assert "innerHTML =" not in text

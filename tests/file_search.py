"""Searching for files and folders while others are created and deleted. Entries deleted during the search are omitted."""

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path


def find_folders(root: Path, name: str) -> Iterator[Path]:
    for at, folders, _ in os.walk(root):
        yield from (Path(at, each) for each in fnmatch.filter(folders, name))


def find_files(root: Path, name: str) -> Iterator[Path]:
    for at, _, files in os.walk(root):
        yield from (Path(at, each) for each in fnmatch.filter(files, name))

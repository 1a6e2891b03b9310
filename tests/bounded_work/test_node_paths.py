"""No path of a file request holds the event loop of a node for more than 20 ms of CPU time.

Servers pass `path` of the requests fs/ls, fs/stat, fs/cat, fs/readat and fs/stream on to the node, which resolves it on its loop.
"""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.attempts import limited_cpu
from tests.bounded_work.probe import MAX_HOLD_S
from tests.bounded_work.worst_requests import LONGEST_VALUE
from wharf.contract.model.refusal import Refusal
from wharf.node.files.folder import MAX_LINKS, ReadOnlyFolder

DEPTH = 199
"""Names on the longest path that is resolved."""
LONGEST_TARGET_BYTES = 4_095


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ReadOnlyFolder:
    """Return a folder with deeply nested folders, and with links that lead to one another by long targets."""
    root = tmp_path_factory.mktemp("allocation")
    (root / Path(*["a"] * DEPTH)).mkdir(parents=True)
    for number in range(MAX_LINKS + 1):
        next_name = f"link{number + 1}"
        padding = (LONGEST_TARGET_BYTES - len(next_name)) // 2
        (root / f"link{number}").symlink_to("./" * padding + next_name)
    return ReadOnlyFolder(root)


@pytest.mark.parametrize(
    "path",
    [
        "a/" * DEPTH,
        "a/" * (LONGEST_VALUE // 2),
        "./" * (LONGEST_VALUE // 2),
        "../" * (LONGEST_VALUE // 3),
        "a/../" * (LONGEST_VALUE // 5),
        "/" * LONGEST_VALUE,
        "x" * LONGEST_VALUE,
        "\U0001f6a2" * (LONGEST_VALUE // 12),
        "link0",
        "link0/" * (LONGEST_VALUE // 6),
    ],
    ids=lambda path: path[:6],
)
def test_no_path_of_a_file_holds_the_event_loop_of_a_node(folder: ReadOnlyFolder, path: str) -> None:
    with limited_cpu(MAX_HOLD_S, "the search"), suppress(Refusal):
        folder.read_info(path)

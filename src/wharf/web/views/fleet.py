"""The whole fleet: a picture with a cell for each node, what its colors mean, and the fullest nodes."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from wharf.contract.wire.nodes.fleet import LETTERS, FleetPicture
from wharf.web.rendering import build_link

MAX_FULLEST: Final = 20
GROUPINGS: Final = ("state", "job", "namespace", "use")
"""What colors can stand for. The last one is computed here: it colors nodes, not allocations."""
GROUPING_TEXTS: Final = {"use": "requested share"}
"""What the page calls a grouping, if it is not the word in the address."""
STATE_WORDS: Final = {"r": "ready", "i": "ineligible", "d": "draining", "a": "away", "n": "initializing"}
USE_STEP: Final = 20
"""The width of a class of use, in percent."""


class ColorRow(msgspec.Struct, frozen=True):
    """A color of the picture."""

    letter: str
    text: str
    count: int


class NodeUseRow(msgspec.Struct, frozen=True):
    """A node in the table of the fullest nodes."""

    name: str
    url: str
    state: str
    allocations: int
    cpu: int
    memory: int


class FleetView(msgspec.Struct, frozen=True):
    """The page."""

    nodes: int
    hidden_nodes: int
    allocations: int
    grouping: str
    choices: tuple[tuple[str, str, bool], ...]
    """Text, address and whether it is the one that is shown, of each grouping."""
    colors: tuple[ColorRow, ...]
    counted: str
    """What the numbers beside the colors count."""
    states: tuple[tuple[str, int], ...]
    """How many nodes are in each state, in words."""
    fullest: tuple[NodeUseRow, ...]
    names: str
    """The names of the nodes, for the picture; each on a line."""
    state_letters: str
    cells: str
    """The letters of each node's cell; a comma separates two nodes."""
    use: str
    """CPU and memory of each node in percent, for the picture."""
    is_whole: bool
    """Whether the color of a node fills its cell."""


def read_grouping(text: str) -> str:
    """Return what the address asks colors to stand for, if it is offered."""
    return text if text in GROUPINGS else GROUPINGS[0]


def build_fleet_view(fleet: FleetPicture, grouping: str) -> FleetView:
    """Return the page of a fleet."""
    counts = [len(letters) for letters in fleet.allocations.split(",")] if fleet.names else []
    is_use = grouping == "use"
    cells, colors = fleet.allocations, tuple(ColorRow(each.letter, each.text, each.count) for each in fleet.values)
    if is_use:
        classes = [max(pair) // USE_STEP for pair in zip(fleet.cpu, fleet.memory, strict=True)]
        letters = [LETTERS[min(each, 100 // USE_STEP - 1)] for each in classes]
        cells, colors = ",".join(letters), tuple(_list_use_colors(Counter(letters)))
    order = sorted(range(len(fleet.names)), key=lambda n: (-max(fleet.cpu[n], fleet.memory[n]), fleet.names[n]))
    state_counts = Counter(fleet.states)
    return FleetView(
        nodes=len(fleet.names),
        hidden_nodes=fleet.hidden_nodes,
        allocations=sum(counts),
        grouping=grouping,
        choices=tuple(
            (GROUPING_TEXTS.get(each, each), build_link("fleet", by=each), each == grouping) for each in GROUPINGS
        ),
        colors=colors,
        counted="Nodes" if is_use else "Allocations",
        states=tuple((word, state_counts[letter]) for letter, word in STATE_WORDS.items() if state_counts[letter]),
        fullest=tuple(
            NodeUseRow(
                name=fleet.names[n],
                url=link_to_node_name(fleet.names[n]),
                state=STATE_WORDS.get(fleet.states[n], ""),
                allocations=counts[n],
                cpu=fleet.cpu[n],
                memory=fleet.memory[n],
            )
            for n in order[:MAX_FULLEST]
        ),
        names="\n".join(name.replace("\n", " ") for name in fleet.names),
        state_letters=fleet.states,
        cells=cells,
        use=",".join(f"{cpu}.{memory}" for cpu, memory in zip(fleet.cpu, fleet.memory, strict=True)),
        is_whole=is_use,
    )


def _list_use_colors(counts: Counter[str]) -> Iterator[ColorRow]:
    for position in range(100 // USE_STEP):
        letter = LETTERS[position]
        yield ColorRow(letter, f"{position * USE_STEP} to {(position + 1) * USE_STEP} % requested", counts[letter])


def link_to_node_name(name: str) -> str:
    """Return the address that leads to the node of this name: a fleet names nodes without their IDs."""
    return build_link("nodes", name)

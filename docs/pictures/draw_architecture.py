"""Draws the pictures of docs/architecture.md as SVG files beside this script.

    python docs/pictures/draw_architecture.py

A text that does not fit its box, its gap or the picture stops the script with `ValueError`.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
TEXT_SIZE: Final = 12
TITLE_SIZE: Final = 13
LINE_HEIGHT: Final = 16
MARGIN: Final = 8
WIDTH_PER_CHARACTER: Final = 0.6
"""Of a character on average, in units of the text size. DejaVu Sans, one of the widest common fonts, needs 0.58."""
WIDTH_PER_BOLD_CHARACTER: Final = 0.68
BADGE_RADIUS: Final = 9

STYLE: Final = """
text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #1f2328 }
.background { fill: #ffffff }
.title { font-weight: 600 }
.note { fill: #57606a }
.plain { fill: #f6f8fa; stroke: #8c959f }
.blue { fill: #ddf4ff; stroke: #0969da }
.green { fill: #dafbe1; stroke: #1a7f37 }
.amber { fill: #fff8c5; stroke: #9a6700 }
.red { fill: #ffebe9; stroke: #cf222e }
.group { fill: none; stroke: #8c959f; stroke-dasharray: 5 4 }
.line { fill: none; stroke: #57606a; stroke-width: 1.4 }
.head { fill: #57606a }
.lifeline { stroke: #8c959f; stroke-dasharray: 2 4 }
.badge { fill: #0969da }
.number { fill: #ffffff; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.background { fill: #0d1117 }
.note { fill: #9ea7b3 }
.plain { fill: #1c2129; stroke: #6e7681 }
.blue { fill: #10294a; stroke: #4493f8 }
.green { fill: #12301d; stroke: #3fb950 }
.amber { fill: #3a2d0b; stroke: #d29922 }
.red { fill: #421a1a; stroke: #f85149 }
.group { stroke: #6e7681 }
.line { stroke: #9ea7b3 }
.head { fill: #9ea7b3 }
.lifeline { stroke: #6e7681 }
.badge { fill: #1f6feb }
}
"""

Point = tuple[float, float]


class Picture:
    """One SVG file."""

    def __init__(self, name: str, width: int, height: int, description: str) -> None:
        self.name = name
        self.width = width
        self.height = height
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(description)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
            f'<rect class="background" width="{width}" height="{height}" rx="8"/>',
        ]

    def save(self) -> None:
        (FOLDER / f"{self.name}.svg").write_text("\n".join([*self._parts, "</svg>", ""]), "utf-8")

    def draw_text(
        self, x: float, y: float, text: str, *, style: str = "", anchor: str = "start", max_width: float = 0
    ) -> None:
        """Write one line with its baseline at `y`. Raises `ValueError` if it is wider than `max_width`."""
        size = TITLE_SIZE if "title" in style else TEXT_SIZE
        width = measure_width(text, is_bold="title" in style)
        if max_width and width > max_width:
            raise ValueError(f"{self.name}: {text!r} needs {width:.0f} of {max_width:.0f}")
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        if left < 0 or left + width > self.width:
            raise ValueError(f"{self.name}: {text!r} leaves the picture")
        self._parts.append(
            f'<text class="{style}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def clear_text_background(self, x: float, y: float, text: str) -> None:
        width = measure_width(text, is_bold=False)
        self._parts.append(
            f'<rect class="background" x="{x:g}" y="{y - TEXT_SIZE:g}" width="{width:g}" height="{LINE_HEIGHT}"/>'
        )

    def draw_box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        title: str,
        lines: Sequence[str] = (),
        color: str = "plain",
    ) -> None:
        """Draw a box with a centered title and lines below it."""
        self._parts.append(f'<rect class="{color}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        rows = len(lines) + 1
        if rows * LINE_HEIGHT + 4 > height:
            raise ValueError(f"{self.name}: {rows} lines do not fit in {height}")
        first = y + (height - rows * LINE_HEIGHT) / 2 + 12
        middle = x + width / 2
        self.draw_text(middle, first, title, style="title", anchor="middle", max_width=width - MARGIN)
        for row, line in enumerate(lines, start=1):
            self.draw_text(middle, first + row * LINE_HEIGHT, line, anchor="middle", max_width=width - MARGIN)

    def draw_group(self, x: float, y: float, width: float, height: float, title: str) -> None:
        """Draw a dashed frame with its title in the upper left corner."""
        self._parts.append(f'<rect class="group" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>')
        self.draw_text(x + 10, y + 18, title, style="title", max_width=width - 20)

    def draw_arrow(self, *points: Point, is_double: bool = False) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        start = ' marker-start="url(#head)"' if is_double else ""
        self._parts.append(f'<polyline class="line" points="{path}" marker-end="url(#head)"{start}/>')

    def draw_lifeline(self, x: float, top: float, bottom: float) -> None:
        self._parts.append(f'<line class="lifeline" x1="{x:g}" x2="{x:g}" y1="{top:g}" y2="{bottom:g}"/>')

    def draw_badge(self, x: float, y: float, number: int) -> None:
        """Draw the number of a step in a filled circle."""
        self._parts.append(f'<circle class="badge" cx="{x:g}" cy="{y:g}" r="{BADGE_RADIUS}"/>')
        self._parts.append(
            f'<text class="number" x="{x:g}" y="{y + 4:g}" font-size="11" text-anchor="middle">{number}</text>'
        )


def measure_width(text: str, *, is_bold: bool) -> float:
    if is_bold:
        return len(text) * TITLE_SIZE * WIDTH_PER_BOLD_CHARACTER
    return len(text) * TEXT_SIZE * WIDTH_PER_CHARACTER


def draw_packages() -> None:
    picture = Picture(
        "architecture-packages", 900, 730, "The packages of wharf in layers: each imports only packages below it"
    )
    picture.draw_box(20, 20, 270, 56, "cli", ["the wharf command"])
    picture.draw_box(310, 20, 270, 56, "client", ["re-export of contract.client"])
    picture.draw_box(600, 20, 280, 56, "agent", ["processes: roles, supervision"])
    picture.draw_box(20, 112, 860, 48, "config", ["configuration files to the settings that packages declare"])
    picture.draw_group(20, 196, 560, 336, "cluster")
    picture.draw_box(40, 224, 520, 46, "api", ["HTTP: routing, handlers, lists, replies"], "blue")
    picture.draw_box(40, 290, 520, 46, "server", ["log, leader, calls to the leader, node channels"], "blue")
    picture.draw_box(40, 356, 160, 46, "controllers", ["what time requires"], "green")
    picture.draw_box(220, 356, 168, 46, "operations", ["request to write"], "green")
    picture.draw_box(40, 420, 200, 42, "scheduling", ["evaluation to plan"], "green")
    picture.draw_box(260, 420, 128, 42, "access", ["rights"], "green")
    picture.draw_box(40, 480, 348, 40, "state", ["the replica: tables, indexes, watches"], "green")
    picture.draw_box(412, 356, 148, 164, "engines", ["where the log is:", "SQLite, etcd,", "memory (tests)"], "amber")
    picture.draw_box(600, 196, 130, 336, "node", ["one machine:", "core, agent,", "drivers,", "supervisor"], "blue")
    picture.draw_box(750, 196, 130, 336, "limits", ["rate limiter:", "core, stores,", "middleware,", "gateway"], "blue")
    picture.draw_box(20, 568, 120, 82, "job_files", ["HCL files", "to jobs"])
    picture.draw_group(160, 568, 570, 82, "contract")
    picture.draw_box(236, 586, 140, 50, "client", ["typed HTTP client"])
    picture.draw_box(396, 586, 150, 50, "wire", ["endpoints, messages"])
    picture.draw_box(566, 586, 150, 50, "model", ["records, states"])
    picture.draw_box(750, 568, 130, 82, "sinks", ["records to", "receivers"])
    picture.draw_box(20, 676, 540, 40, "languages", ["filters, HCL, templates"])
    picture.draw_box(580, 676, 300, 40, "world", ["clock, randomness, ids, tasks"])
    downward = (
        *((x, 76, 112) for x in (155, 740)),
        *((x, 160, 196) for x in (300, 665, 815)),
        (300, 270, 290),
        *((x, 336, 356) for x in (120, 304, 486)),
        *((x, 402, 420) for x in (120, 230, 350)),
        *((x, 462, 480) for x in (140, 324)),
        *((x, 532, 568) for x in (80, 300, 665)),
        (815, 532, 568),
        (815, 650, 676),
        *((x, 650, 676) for x in (80, 300, 665)),
    )
    for x, top, bottom in downward:
        picture.draw_arrow((x, top), (x, bottom))
    for left, right, y in ((200, 220, 379), (140, 160, 611), (376, 396, 611), (546, 566, 611)):
        picture.draw_arrow((left, y), (right, y))
    picture.save()


def draw_job_path() -> None:
    picture = Picture(
        "architecture-job", 970, 700, "The path of a job: request, log, leader, log, node, supervisor, task"
    )
    names = ("client", "api", "log", "brain (leader)", "node agent", "supervisor", "shim, task")
    colors = ("plain", "blue", "amber", "green", "blue", "blue", "blue")
    at = [74 + 137 * number for number in range(len(names))]
    bottom = 680
    for x, name, color in zip(at, names, colors, strict=True):
        picture.draw_lifeline(x, 56, bottom)
        picture.draw_box(x - 66, 20, 132, 36, name, color=color)

    def message(y: float, start: int, end: int, text: str, number: int = 0) -> None:
        """An arrow between two lifelines, with a text above it."""
        left, right = min(at[start], at[end]), max(at[start], at[end])
        picture.draw_arrow((at[start], y), (at[end], y))
        indent = 26.0 if number else 8.0
        if number:
            picture.draw_badge(left + 13, y - 12, number)
        picture.clear_text_background(left + indent, y - 8, text)  # Lifelines between the two must not cross the text.
        picture.draw_text(left + indent, y - 8, text, max_width=right - left - indent)

    def work(y: float, where: int, title: str, line: str, number: int, width: float) -> None:
        """What one process does by itself."""
        picture.draw_box(at[where] - width / 2, y, width, 40, title, [line])
        picture.draw_badge(at[where] - width / 2, y, number)

    message(90, 0, 1, "PUT /v1/jobs", 1)
    work(102, 1, "register_job", "validate, decide", 2, 136)
    message(176, 1, 2, "commit", 3)
    message(206, 2, 1, "batch")
    message(206, 2, 3, "same batch", 4)
    message(236, 1, 0, "EvalID", 5)
    work(222, 3, "EvaluationBroker", "priority, then age", 6, 160)
    work(282, 3, "plan_evaluation", "reconcile, rank", 7, 160)
    message(356, 3, 2, "check, commit", 8)
    message(386, 2, 1, "batch")
    message(420, 4, 1, "GET, then POST /v1/node/{id}/desired", 9)
    work(434, 4, "AllocationManager", "journal, prepare", 10, 168)
    message(508, 4, 5, "StartRun", 11)
    message(538, 5, 6, "start", 12)
    message(568, 5, 4, "RunBegun", 13)
    message(602, 4, 1, "PUT /v1/node/{id}/report: running", 14)
    message(632, 1, 3, "call to the leader", 15)
    message(662, 3, 2, "commit", 16)
    picture.save()


def draw_limiter() -> None:
    picture = Picture(
        "architecture-limiter", 940, 400, "The path of a request through the rate limiter, from socket to refusal"
    )
    top, height, width = 40, 84, 160
    steps = (
        ("1 Read", ["CallerConnection", "read_request_head"], "blue"),
        ("2 Identify", ["CallerResolver", "address or token"], "green"),
        ("3 Plan", ["Rulebook", "which limits apply"], "green"),
        ("4 Count", ["Store.take", "all limits or none"], "amber"),
        ("5 Decide", ["build_decision", "a LimitDecision"], "green"),
    )
    lefts = [20 + 185 * number for number in range(len(steps))]
    for left, (title, lines, color) in zip(lefts, steps, strict=True):
        picture.draw_box(left, top, width, height, title, lines, color)
    for left in lefts[1:]:
        picture.draw_arrow((left - 25, top + height / 2), (left, top + height / 2))
    picture.draw_text(20, 26, "from the caller's socket", style="note")
    picture.draw_box(
        650, 190, 270, 70, "6 Refused", ["build_refusal: status, headers, body", "DecisionLog records it"], "red"
    )
    picture.draw_box(
        650,
        300,
        270,
        80,
        "6 Admitted",
        ["UpstreamPool: to the service", "headers added, charge refunded", "or added, slot released"],
        "green",
    )
    picture.draw_arrow((800, 124), (800, 190))
    picture.draw_arrow((780, 124), (780, 160), (628, 160), (628, 340), (650, 340))
    picture.draw_group(20, 160, 580, 220, "Where counters are (step 4)")
    picture.draw_box(40, 192, 250, 70, "MemoryStore", ["counters of this process,", "decided without waiting"], "amber")
    picture.draw_box(
        330, 192, 250, 70, "GuardedStore", ["timeout, breaker, and each", "rule's on_store_loss policy"], "amber"
    )
    picture.draw_box(
        40, 296, 250, 70, "NeighbourStore", ["asks another process of this", "machine over a Unix socket"], "amber"
    )
    picture.draw_box(
        330, 296, 250, 70, "RedisStore", ["shared by machines;", "one script decides and charges"], "amber"
    )
    picture.draw_arrow((400, 262), (400, 279), (165, 279), (165, 296))
    picture.draw_arrow((455, 262), (455, 296))
    picture.save()


def draw_processes() -> None:
    picture = Picture(
        "architecture-processes", 940, 640, "The processes of a server and of a node, and the channels between them"
    )
    picture.draw_box(20, 20, 180, 50, "HTTP clients", ["wharf, curl, others"])
    picture.draw_group(20, 110, 430, 510, "a server")
    picture.draw_box(
        40,
        144,
        140,
        456,
        "agent (parent)",
        ["holds the", "HTTP socket;", "starts, watches,", "restarts and", "stops the rest,", "each alone"],
    )
    picture.draw_box(250, 144, 180, 76, "api (1 or more)", ["HTTP, replica,", "lists, limits"], "blue")
    picture.draw_box(
        250, 280, 180, 96, "brain", ["replica; as leader:", "scheduler, duties,", "node heartbeats"], "green"
    )
    picture.draw_box(250, 500, 180, 82, "store, or etcd", ["the log: order and", "durability"], "amber")
    picture.draw_group(490, 110, 430, 510, "a node")
    picture.draw_box(510, 144, 140, 456, "agent (parent)", ["starts, watches", "and restarts the", "node process"])
    picture.draw_box(720, 144, 180, 76, "node", ["node agent, drivers,", "journal on disk"], "blue")
    picture.draw_box(720, 280, 180, 60, "task supervisor", ["outlives the agent"], "green")
    picture.draw_box(720, 400, 180, 60, "shim, one per task", ["waits for the exit"], "green")
    picture.draw_box(720, 520, 180, 62, "task", ["process or sandbox"])
    # The channels of a server.
    picture.draw_arrow((110, 70), (110, 92), (340, 92), (340, 144))
    picture.draw_text(120, 87, "HTTP", style="note")
    picture.draw_arrow((180, 182), (250, 182), is_double=True)
    picture.draw_arrow((180, 328), (250, 328), is_double=True)
    picture.draw_arrow((180, 541), (250, 541), is_double=True)
    picture.draw_text(184, 172, "control", style="note", max_width=62)
    picture.draw_arrow((340, 220), (340, 280))
    picture.draw_text(332, 246, "Unix socket,", style="note", anchor="end")
    picture.draw_text(332, 262, "msgpack", style="note", anchor="end")
    picture.draw_arrow((405, 220), (405, 240), (440, 240), (440, 480), (405, 480), (405, 500))
    picture.draw_arrow((300, 376), (300, 500))
    picture.draw_text(308, 424, "Unix socket", style="note", max_width=120)
    picture.draw_text(308, 440, "or gRPC (etcd)", style="note", max_width=120)
    # Between a node and a server, and between servers.
    picture.draw_arrow((810, 144), (810, 92), (400, 92), (400, 144))
    picture.draw_text(500, 84, "HTTP, and one websocket opened by the node", style="note", max_width=400)
    picture.draw_text(
        220, 50, "other servers: HTTP to their api, for calls to the leader and for other regions", style="note"
    )
    # The channels of a node.
    picture.draw_arrow((650, 182), (720, 182), is_double=True)
    picture.draw_text(654, 172, "control", style="note", max_width=62)
    picture.draw_arrow((810, 220), (810, 280), is_double=True)
    picture.draw_text(802, 246, "Unix socket,", style="note", anchor="end")
    picture.draw_text(802, 262, "msgpack", style="note", anchor="end")
    picture.draw_arrow((810, 340), (810, 400), is_double=True)
    picture.draw_text(802, 366, "pipes and the", style="note", anchor="end")
    picture.draw_text(802, 382, "run's folder", style="note", anchor="end")
    picture.draw_arrow((810, 460), (810, 520))
    picture.draw_text(802, 494, "parent of", style="note", anchor="end")
    picture.save()


if __name__ == "__main__":
    draw_packages()
    draw_job_path()
    draw_limiter()
    draw_processes()

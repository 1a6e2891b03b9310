"""What the README shows is what happens: its tour runs against a real agent, and links of all pages lead somewhere."""

import re
import shlex
from pathlib import Path

import httpx2
import pytest

from tests.agent.processes import running
from tests.waiting import wait_until

README = Path(__file__).parents[2] / "README.md"
PAGES = [README, README.parent / "CONTRIBUTING.md", *sorted((README.parent / "docs").rglob("*.md"))]
SHOWN_ADDRESS = "http://127.0.0.1:4646"


def tour() -> list[tuple[list[str], str]]:
    """Each command as words, with what is shown beneath it."""
    block = re.search(r"```console\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    return [(shlex.split(lines[at][2:]), lines[at + 1]) for at in range(0, len(lines), 2)]


def call(command: list[str], address: str) -> str:
    """What curl would print."""
    assert command[0] == "curl"
    url = next(word for word in command if word.startswith(SHOWN_ADDRESS)).replace(SHOWN_ADDRESS, address)
    method = command[command.index("-X") + 1] if "-X" in command else "GET"
    body = command[command.index("-d") + 1] if "-d" in command else ""
    return httpx2.request(method, url, content=body).text


def certain(shown: str) -> list[str]:
    """The parts of what is shown that come so every time: no ids, no indexes, nothing that was left out."""
    pieces = re.split(r'…|[0-9a-f]{8}-[0-9a-f-]{27}|(?<=Index":)\d+|[\[\]{}]', shown)
    return [piece.strip(' ,"') for piece in pieces if piece.strip(' ,"')]


def test_the_tour_shows_what_happens(tmp_path: Path) -> None:
    with running(tmp_path / "tour", "dev", "--port", "0") as agent:
        agent.wait_ready()
        for command, shown in tour():
            if "-X" in command:
                said = call(command, agent.address)
                assert [piece for piece in certain(shown) if piece not in said] == [], said
            else:
                wait_until(
                    lambda command=command, shown=shown: all(  # type: ignore[misc]  # a loop's values, bound now
                        piece in call(command, agent.address) for piece in certain(shown)
                    ),
                    what=f"{shlex.join(command)} shows {certain(shown)}",
                )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []

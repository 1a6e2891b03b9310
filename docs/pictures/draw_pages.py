"""Draws pictures of the pages from a real cluster, light and dark, as WebP files beside this script.

    python -m docs.pictures.draw_pages

It needs Chromium. It starts `wharf dev` with fake nodes in a temporary folder, fills the cluster with jobs, and ends everything.
"""

import base64
import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

from playwright.sync_api import Browser, sync_playwright

from docs.pictures.draw_terminals import (
    SETTLE_WITHIN_S,
    build_environment,
    find_free_port,
    run_in_terminal,
    running_cluster,
    wait_for,
)

FOLDER: Final = Path(__file__).parent
CHROMIUM: Final = "/usr/bin/chromium"
WIDTH: Final = 1_200
QUALITY: Final = 70
"""Of 100. Text stays sharp, and a picture has about 30 kB."""
SHOP: Final = """\
job "shop" {
  group "web" {
    count = 6
    update {
      canary           = 1
      min_healthy_time = "1s"
    }
    task "server" {
      driver = "mock"
      config { run_for = "24h" }
      env { VERSION = "1" }
      resources {
        cpu    = 900
        memory = 1500
      }
    }
  }
  group "orders" {
    count = 3
    task "api" {
      driver = "mock"
      config { run_for = "24h" }
      resources {
        cpu    = 400
        memory = 2000
      }
    }
  }
}
"""
SEARCH: Final = SHOP.replace('"shop"', '"search"').replace("count = 6", "count = 9").replace("canary           = 1", "")
TRAINING: Final = """\
job "training" {
  type = "batch"
  group "model" {
    count = 2
    task "fit" {
      driver = "mock"
      config { run_for = "1h" }
      resources {
        cpu    = 1000
        memory = 16000
      }
    }
  }
}
"""
IMPORT: Final = """\
job "import" {
  type = "batch"
  group "orders" {
    restart { attempts = 0 }
    reschedule { attempts = 0 }
    constraint {
      attribute = "${node.unique.name}"
      value     = "THIS_MACHINE"
    }
    task "load" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo reading /data/orders.csv; for n in 1 2 3; do echo row $n: ok; done; echo row 4: no such customer >&2; exit 3"]
      }
    }
  }
}
"""
NAME: Final = "rack"
"""The name of the real node; those of the fake ones begin with it."""
FILES: Final = {
    "shop.hcl": SHOP,
    "shop-2.hcl": SHOP.replace('VERSION = "1"', 'VERSION = "2"'),
    "search.hcl": SEARCH,
    "training.hcl": TRAINING,
    "agent.toml": f'name = "{NAME}"\n',
    "import.hcl": IMPORT.replace("THIS_MACHINE", NAME),  # Fake nodes run nothing.
}


class Picture(NamedTuple):
    """A picture: its name, the address of its page, and the height of the window."""

    name: str
    path: str
    height: int = 720


PICTURES: Final = (
    Picture("overview", "/ui", 700),
    Picture("job", "/ui/jobs/training", 620),
    Picture("rollout", "/ui/jobs/shop"),
    Picture("logs", "/ui/jobs/import/logs", 560),
    Picture("node", "/ui/nodes/{node}"),
    Picture("fleet", "/ui/fleet?by=job", 620),
)
SCHEMES: Final = ("light", "dark")


def get_file(picture: Picture, scheme: str) -> Path:
    return FOLDER / f"page-{picture.name}-{scheme}.webp"


def fill_cluster(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Submit the jobs, drain a node, and wait until all is settled. Returns the IDs that addresses name."""
    for name in ("shop", "search"):
        run_in_terminal(f"job run {name}.hcl", environment, folder)
    for name in ("training", "import", "shop-2"):
        run_in_terminal(f"job run --detach {name}.hcl", environment, folder)
    wait_for("job status import", "failed", environment, folder, within_s=SETTLE_WITHIN_S)
    wait_for("job status shop", "promot", environment, folder, within_s=SETTLE_WITHIN_S)
    with urllib.request.urlopen(environment["WHARF_ADDR"] + "/v1/nodes") as reply:
        names = {node["Name"]: node["ID"] for node in json.load(reply)}
    drained = min(names.keys() - {NAME})
    run_in_terminal(f"node drain --enable --yes --detach --message new-disks {names[drained]}", environment, folder)
    return {"node": names[NAME]}


def draw(browser: Browser, address: str, ids: dict[str, str]) -> None:
    """Write each picture in both schemes."""
    for scheme in SCHEMES:
        for picture in PICTURES:
            size = {"width": WIDTH, "height": picture.height}
            page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(address + picture.path.format(**ids))
            page.wait_for_load_state()
            session = page.context.new_cdp_session(page)
            shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
            get_file(picture, scheme).write_bytes(base64.b64decode(shot["data"]))
            print(f"wrote {get_file(picture, scheme)}")
            page.close()


def main() -> None:
    """Draw all pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        port = find_free_port()
        environment = build_environment(port) | {"TERM": "dumb"}
        with running_cluster(folder, environment, "--port", str(port), "--fake-nodes", "12", "--config", "agent.toml"):
            ids = fill_cluster(environment, folder)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                draw(browser, environment["WHARF_ADDR"], ids)
                browser.close()


if __name__ == "__main__":
    main()

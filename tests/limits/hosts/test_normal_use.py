"""Git, API, packages and pages of a host through the gateway: no refusal in normal use, and exact ones under abuse.

`code_host` is the stand-in for the host. Unmodified API clients and git-lfs are in `tests/limits/existing`.
"""

import json
import os
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.docs.test_limits_for_your_host import read_files
from tests.limits.decision_services import AdvancingWorld, encode_basic
from tests.limits.hosts.code_host import EVENTS, SESSION, TOKEN, RunningHost, run_code_host
from wharf.limits.config.settings import LimiterSettings
from wharf.limits.core.callers.carriers import CarrierSettings, find_carried
from wharf.limits.decisions.requests import IncomingRequest, LocalReply
from wharf.limits.rate_limiter import RateLimiter, load_settings
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.simulation.access_log import AccessLogReader
from wharf.limits.simulation.replay import Replay

PROFILES = ["gitea", "forgejo", "gitlab"]
API = {"gitea": "/api/v1", "forgejo": "/api/v1", "gitlab": "/api/v4"}


def run_git(folder: Path, *words: str) -> str:
    """Run git without the configuration of the machine. Fails if git does."""
    environment = {
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.com",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.com",
    }
    result = subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def push_and_clone(running: RunningHost, folder: Path) -> str:
    """Push a commit to the host, clone it again, and return the content of its file in the clone."""
    work = folder / "work"
    work.mkdir()
    run_git(work, "init", "-q", "-b", "main")
    (work / "a.txt").write_text("hello\n")
    run_git(work, "add", ".")
    run_git(work, "commit", "-q", "-m", "a file")
    run_git(work, "push", "-q", f"{running.address_with_token}/acme/site.git", "main")
    run_git(folder, "clone", "-q", f"{running.address_with_token}/acme/site.git", "clone")
    run_git(folder / "clone", "pull", "-q")
    return (folder / "clone" / "a.txt").read_text()


@pytest.mark.parametrize("profile", ["gitea", "gitlab"])
def test_git_pushes_clones_and_pulls_through_the_gateway(tmp_path: Path, profile: str) -> None:
    with run_code_host(tmp_path, profile) as running:
        content = push_and_clone(running, tmp_path)
    buckets = {entry["resource"] for entry in running.read_decisions()}

    assert (content, running.list_refusals(), buckets) == ("hello\n", [], {"git"})


def test_a_clone_with_a_credential_is_four_requests_of_which_the_first_has_none(tmp_path: Path) -> None:
    with run_code_host(tmp_path, "gitea") as running:
        push_and_clone(running, tmp_path)
        before = len(running.host.requests)
        run_git(tmp_path, "clone", "-q", f"{running.address_with_token}/acme/site.git", "again")
        requests = running.host.requests[before:]
    owners = [entry["caller"] for entry in running.read_decisions()[before:]]

    refs, pack = "GET /acme/site.git/info/refs", "POST /acme/site.git/git-upload-pack"
    assert requests == [refs, refs, pack, pack]
    assert owners == ["address:127.0.0.1", "user:ada", "user:ada", "user:ada"]


def test_a_package_that_is_published_is_installed_unchanged(tmp_path: Path) -> None:
    package, path = os.urandom(300_000), "/api/packages/acme/generic/tool/1.0/tool.bin"
    with run_code_host(tmp_path, "gitea") as running:
        published = running.send(path, method="PUT", token=TOKEN, body=package)
        installed = running.send(path)
        registry = running.send("/v2/")

    assert (published.status, installed.status, installed.body == package) == (201, 200, True)
    assert (registry.status, registry.headers["WWW-Authenticate"]) == (
        401,
        f'Bearer realm="{running.address}/v2/token"',
    )
    assert [entry["resource"] for entry in running.read_decisions()] == ["packages"] * 3


def test_an_event_stream_arrives_and_occupies_only_the_place_of_a_stream(tmp_path: Path) -> None:
    rules = '[[rule]]\nname = "concurrent_web"\nceiling = 0\n'
    with run_code_host(tmp_path, "gitea", rules) as running:
        stream = running.send("/user/events")
        page = running.send("/acme/site")

    assert (stream.status, stream.body.count(b"event: ping")) == (200, EVENTS)
    assert (page.status, json.loads(page.body)["violated"]) == (403, ["concurrent_web"])


@pytest.mark.parametrize(("profile", "base_path"), [("gitea", "/api/v1"), ("gitlab", "/api/v4")])
def test_clients_find_their_limits_below_the_base_path(tmp_path: Path, profile: str, base_path: str) -> None:
    with run_code_host(tmp_path, profile) as running:
        status = running.send(f"{base_path}/rate_limit", token=TOKEN)
        page_of_the_host = running.send("/rate_limit")

    resources = json.loads(status.body)["resources"]
    assert {"core", "search", "git", "raw", "packages", "web"} <= resources.keys()
    assert page_of_the_host.body == b"<html>a page</html>"


@pytest.mark.parametrize(
    ("profile", "path", "ceiling"),
    [("gitea", "/api/v1/repos/search?q=a", 30), ("gitlab", "/api/v4/search?scope=projects&search=a", 300)],
)
def test_more_searches_than_the_limit_are_refused_exactly(
    tmp_path: Path, profile: str, path: str, ceiling: int
) -> None:
    excess = 7
    with run_code_host(tmp_path, profile) as running:
        replies = [running.send(path, token=TOKEN) for _ in range(ceiling + excess)]
        other = running.send(path.partition("search")[0] + "user", token=TOKEN)

    assert Counter(reply.status for reply in replies) == {200: ceiling, 429: excess}
    assert [reply.status for reply in replies[ceiling:]] == [429] * excess
    assert {reply.headers["x-ratelimit-resource"] for reply in replies} == {"search"}
    assert all(0 < int(reply.headers["retry-after"]) <= 60 for reply in replies[ceiling:])
    assert other.headers["x-ratelimit-resource"] == "core"
    assert len(running.list_refusals()) == excess


def test_content_of_the_api_and_of_the_pages_is_counted_together(tmp_path: Path) -> None:
    issue = json.dumps({"title": "an issue"}).encode()
    with run_code_host(tmp_path, "gitea", '[[rule]]\nname = "content"\nceiling = 4\n') as running:
        statuses = [
            running.send(path, method="POST", token=TOKEN, body=issue).status
            for path in ("/api/v1/repos/acme/site/issues", "/acme/site/issues/new") * 3
        ]

    assert (statuses, len(running.host.issues)) == ([201, 200, 201, 200, 429, 429], 2)


def test_a_flood_of_sign_ins_is_refused_exactly_and_the_pages_stay_open(tmp_path: Path) -> None:
    with run_code_host(tmp_path, "gitea") as running:
        statuses = [running.send("/user/login", method="POST", body=b"password=x").status for _ in range(40)]
        page = running.send("/acme/site")

    assert (Counter(statuses), page.status) == ({200: 30, 429: 10}, 200)


@pytest.mark.parametrize("profile", ["gitea", "gitlab"])
def test_what_a_user_does_in_an_hour_is_admitted_even_at_once(tmp_path: Path, profile: str) -> None:
    """Unlike the simulated hour, this includes the limits on concurrency and CPU time."""
    base, project = (API[profile], "projects/7" if profile == "gitlab" else "repos/acme/site")
    issue = json.dumps({"title": "an issue"}).encode()
    reads = [
        *["/acme/site"] * 120,
        *["/assets/a.js"] * 120,
        *["/user/events"] * 10,
        *[f"{base}/{project}"] * 120,
        *[f"{base}/{'search' if profile == 'gitlab' else 'repos/search'}?q=a"] * 20,
        *[f"{base}/packages/generic/a" if profile == "gitlab" else "/api/packages/acme/generic/a"] * 60,
    ]
    with run_code_host(tmp_path, profile) as running, ThreadPoolExecutor(8) as pool:
        push_and_clone(running, tmp_path)
        statuses = Counter(reply.status for reply in pool.map(lambda path: running.send(path, token=TOKEN), reads))
        created = [
            running.send(f"{base}/{project}/issues", method="POST", token=TOKEN, body=issue).status for _ in range(20)
        ]

    assert (running.list_refusals(), statuses, created) == ([], {200: len(reads) - 60, 404: 60}, [201] * 20)


# -- an hour of an office ------------------------------------------------------------------------------------------------


def list_requests_of_an_hour(profile: str) -> list[tuple[int, str, str, str]]:
    """Return second, address, user and request of an hour: 60 people behind one address, and 30 runners behind another.

    Each person opens the page with her notifications, or the start page of GitLab, then 60 pages, with 3 parts each that the browser
    lacks, and watches a page that asks for news every 10 seconds.
    They pull 4 times, search 10 times and write 5 comments. A bot reads 4,000 records of the API. Each runner
    polls every 3 seconds, clones 6 times and installs 100 packages each time.
    """
    base = API[profile]
    project = "projects/7" if profile == "gitlab" else "repos/acme/site"
    comment = f"POST {base}/{project}/issues/7/{'notes' if profile == 'gitlab' else 'comments'}"
    search = f"GET {base}/{'search' if profile == 'gitlab' else 'repos/search'}"
    poll = f"POST {base}/jobs/request" if profile == "gitlab" else "POST /api/actions/runner.v1.RunnerService/FetchTask"
    package = f"GET {base}/packages/npm/tool" if profile == "gitlab" else "GET /api/packages/acme/npm/tool"
    first_page = "GET /" if profile == "gitlab" else "GET /notifications"
    news = "GET /acme/site/-/issues/7/realtime_changes" if profile == "gitlab" else "GET /notifications/new"
    clone = ["GET /acme/site.git/info/refs", *["POST /acme/site.git/git-upload-pack"] * 2]
    requests: list[tuple[int, str, str, str]] = []
    for person in range(60):
        user, office = f"person{person}", "192.0.2.7"
        requests.append((person, office, user, first_page))
        for minute in range(60):
            second = minute * 60 + person
            requests.append((second, office, user, "GET /acme/site"))
            requests += [(second, office, user, "GET /assets/a.js")] * 3
            requests += [(second + tick, office, user, news) for tick in range(0, 60, 10)]
        for pull in range(4):
            # Git first tries without a credential.
            requests.append((pull * 900 + person, office, "-", clone[0]))
            requests += [(pull * 900 + person, office, user, request) for request in clone]
        requests += [(number * 360 + person, office, user, search) for number in range(10)]
        requests += [(number * 720 + person, office, user, comment) for number in range(5)]
    requests += [
        (number * 3_600 // 4_000, "192.0.2.8", "bot", f"GET {base}/{project}/issues") for number in range(4_000)
    ]
    for runner in range(30):
        requests += [(second, "192.0.2.9", "-", poll) for second in range(runner % 3, 3_600, 3)]
        for job in range(6):
            second = job * 600 + runner
            requests += [(second, "192.0.2.9", "-", clone[0])]
            requests += [(second, "192.0.2.9", "ci", request) for request in clone]
            requests += [(second, "192.0.2.9", "ci", f"{package}{number}") for number in range(100)]
    return sorted(requests, key=lambda request: request[0])


@pytest.mark.parametrize("profile", PROFILES)
def test_an_hour_of_normal_use_of_an_office_has_no_refusal(profile: str) -> None:
    reader, replay = AccessLogReader(), Replay(read_profile(profile), has_durations=False)
    requests = list_requests_of_an_hour(profile)

    for second, address, user, request in requests:
        clock = f"{12 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        record = reader.read_line(
            f'{address} - {user} [21/Nov/2026:{clock} +0000] "{request} HTTP/1.1" 200 12'.encode()
        )
        assert record is not None
        replay.replay_record(record)
    result = replay.finish().to_dict()

    assert (result["admitted"], result["refused"], result["rules"]) == (len(requests), 0, {})


def read_settings_of_page(folder: Path, profile: str) -> LimiterSettings:
    """Write the files of the page for a host of this kind, and return their settings."""
    name = "limits-gitlab.toml" if profile == "gitlab" else "limits.toml"
    (folder / "limits.toml").write_text(read_files()[name])
    (folder / "rules.toml").write_text(f'profile = "{profile}"\n')
    return load_settings(folder / "limits.toml")


def make_request(profile: str, address: str, user: str, text: str, carriers: CarrierSettings) -> IncomingRequest:
    """Return a request of a user: to git, API and packages with a token, and to pages with a session."""
    method, path = text.split(" ")
    authorization, headers = None, list[tuple[bytes, bytes]]()
    token = f"token-of-{user}-0123456789abcdef"
    if user == "-":
        pass
    elif ".git/" in path:
        authorization = encode_basic(user, token)
    elif path.startswith("/api/") and profile == "gitlab":
        headers.append((b"private-token", token.encode()))
    elif path.startswith("/api/"):
        authorization = f"token {token}"
    else:
        headers.append((b"cookie", f"i_like_gitea={user}; _gitlab_session={user}".encode()))
    return IncomingRequest(method, path, "", address, authorization, carried=find_carried(headers, carriers))


def count_refusals(settings: LimiterSettings, profile: str, *, until_s: int = 3_600) -> tuple[Counter[str], int]:
    """Send the requests of an hour to a limiter that has just started. Return the refused ones, and how many addresses and
    credentials are counted.

    The host accepts every credential, and answers git without one with 401.
    """
    world = AdvancingWorld()
    limiter = RateLimiter(settings, world)
    service, refused, owners = limiter.decision_service, Counter[str](), set[str]()
    assert service.carriers is not None
    for second, address, user, text in list_requests_of_an_hour(profile):
        if second >= until_s:
            break
        world.advance(max(0, second - world.elapsed_s))
        incoming = make_request(profile, address, user, text, service.carriers)
        result = service.admit_locally(incoming)
        if isinstance(result, LocalReply):
            refused[text] += 1
            continue
        owners.add(result.caller.owner)
        result.measured_ms = 0
        if result.proof is not None:
            service.on_reply_status(result, 401 if user == "-" and ".git/" in incoming.path else 200)
        service.end_request_locally(result)
    return refused, len(owners)


@pytest.mark.parametrize("profile", PROFILES)
def test_with_the_settings_of_the_page_an_hour_of_an_office_has_no_refusal(tmp_path: Path, profile: str) -> None:
    """60 sessions, 60 tokens of people, those of bot and ci, and three addresses are counted."""
    refused, owners = count_refusals(read_settings_of_page(tmp_path, profile), profile)
    assert (refused, owners) == (Counter(), 60 + 60 + 2 + 3)


def test_without_pages_that_prove_sessions_an_office_shares_the_limit_of_its_address(tmp_path: Path) -> None:
    settings = read_settings_of_page(tmp_path, "gitea")
    opaque = msgspec.structs.replace(settings.credentials.opaque, sessions_accepted_on=("GET outside:/user/settings",))
    credentials = msgspec.structs.replace(settings.credentials, opaque=opaque)
    without = msgspec.structs.replace(settings, credentials=credentials)
    refused, owners = count_refusals(without, "gitea", until_s=120)
    assert (refused.total() > 0, owners) == (True, 60 + 2 + 3)


@pytest.mark.parametrize("profile", ["gitea", "gitlab"])
def test_a_session_counts_by_itself_after_a_page_that_needs_it(tmp_path: Path, profile: str) -> None:
    page, cookie = ("/", "_gitlab_session") if profile == "gitlab" else ("/notifications", "i_like_gitea")
    settings = read_files()["limits-gitlab.toml" if profile == "gitlab" else "limits.toml"].partition("[gateway]")[0]
    with run_code_host(tmp_path, profile, settings=settings) as running:
        limits = [
            running.send(path, cookie=f"{cookie}={session}").headers["x-ratelimit-limit"]
            for session in ("invented", SESSION)
            for path in ("/acme/site", page, "/acme/site")
        ]
    none, credential = ("500", "1000") if profile == "gitlab" else ("300", "600")
    assert limits == [none] * 5 + [credential]

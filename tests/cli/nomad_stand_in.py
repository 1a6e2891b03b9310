"""A stand-in for a Nomad server: serves documents in the formats that Nomad's API returns, with pages and tokens."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.http_servers import QuietHandler, serving

TOKEN = "5b1c7a3e-0000-4000-8000-5ec2e7000000"
Document = dict[str, Any]


class StandIn:
    """The documents by path, the paths that the token may not read, and the requests that were received."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Document]] = {}
        self.records: dict[str, Any] = {"/v1/status/leader": "10.0.0.1:4647"}
        self.errors: dict[str, tuple[int, str]] = {"/v1/quotas": (501, "Nomad Enterprise only endpoint")}
        self.requests: list[tuple[str, str]] = []
        self.regions: set[str] = set()
        self.broken_path = ""
        """A request for this path ends with a closed connection."""
        self.tokens: set[str] = set()
        self.page_size = 2
        self.address = ""

    def add_job(self, job_id: str, *, namespace: str = "default", stub: Document | None = None, **fields: Any) -> None:
        document = build_job(job_id, namespace=namespace, **fields)
        names = ("ID", "Namespace", "ParentID", "Stop", "Status", "Type")
        self.lists.setdefault("/v1/jobs", []).append({**{name: document[name] for name in names}, **(stub or {})})
        self.records[f"/v1/job/{job_id}?namespace={namespace}"] = document

    def add_variable(self, path: str, *, namespace: str = "default", **items: str) -> None:
        stub = {
            "Namespace": namespace,
            "Path": path,
            "CreateIndex": 7,
            "ModifyIndex": 9,
            "CreateTime": 1_700_000_000_000_000_000,
            "ModifyTime": 1_700_000_000_000_000_000,
        }
        self.lists.setdefault("/v1/vars", []).append(stub)
        self.records[f"/v1/var/{path}?namespace={namespace}"] = {**stub, "Items": items}

    def add_policy(self, name: str, rules: str) -> None:
        stub = {"Name": name, "Description": "", "JobACL": None, "Hash": "aGFzaA==", "CreateIndex": 3, "ModifyIndex": 4}
        self.lists.setdefault("/v1/acl/policies", []).append(stub)
        self.records[f"/v1/acl/policy/{name}"] = {**stub, "Rules": rules, "RulesJSON": {"Namespaces": []}}


def build_namespace(name: str, **fields: Any) -> Document:
    return {
        "Name": name,
        "Description": "",
        "Quota": "",
        "Meta": None,
        "Capabilities": None,
        "NodePoolConfiguration": None,
        "VaultConfiguration": None,
        "ConsulConfiguration": None,
        "Hash": "aGFzaA==",
        "CreateIndex": 11,
        "ModifyIndex": 12,
        **fields,
    }


def build_job(job_id: str, *, namespace: str = "default", **fields: Any) -> Document:
    task = {
        "Name": "main",
        "Driver": "mock",
        "Config": {},
        "Env": None,
        "Services": None,
        "Resources": {"CPU": 100, "Cores": 0, "MemoryMB": 32, "MemoryMaxMB": 0, "Networks": None, "Devices": None},
        "Vault": None,
        "KillTimeout": 5_000_000_000,
    }
    return {
        "ID": job_id,
        "Name": job_id,
        "Namespace": namespace,
        "Region": "global",
        "Type": "service",
        "Priority": 50,
        "AllAtOnce": False,
        "Datacenters": ["*"],
        "NodePool": "default",
        "Constraints": None,
        "TaskGroups": [{"Name": "api", "Count": 1, "Tasks": [task], "Networks": None, "Meta": None}],
        "Periodic": None,
        "ParameterizedJob": None,
        "Payload": None,
        "Meta": None,
        "ParentID": "",
        "Stop": False,
        "Status": "running",
        "StatusDescription": "",
        "Stable": True,
        "Version": 3,
        "SubmitTime": 1_700_000_000_000_000_000,
        "CreateIndex": 20,
        "ModifyIndex": 30,
        "JobModifyIndex": 25,
        **fields,
    }


def fill(nomad: StandIn) -> None:
    """Give Nomad a record of each kind."""
    nomad.lists["/v1/node/pools"] = [
        {"Name": "all", "Description": "", "Meta": None, "SchedulerConfiguration": None},
        {"Name": "default", "Description": "", "Meta": None, "SchedulerConfiguration": None},
        {"Name": "gpu", "Description": "cards", "Meta": {"a": "b"}, "SchedulerConfiguration": None, "Hash": "aGFzaA=="},
    ]
    nomad.lists["/v1/namespaces"] = [
        build_namespace("default", Description="Default shared namespace"),
        build_namespace("shop", Description="the shop", Meta={"team": "web"}),
    ]
    nomad.records["/v1/operator/scheduler/configuration"] = {
        "SchedulerConfig": {
            "SchedulerAlgorithm": "spread",
            "MemoryOversubscriptionEnabled": True,
            "RejectJobRegistration": False,
            "PauseEvalBroker": False,
            "PreemptionConfig": {"SystemSchedulerEnabled": True},
            "CreateIndex": 5,
            "ModifyIndex": 6,
        },
        "Index": 6,
        "LastContact": 0,
        "KnownLeader": True,
        "NextToken": "",
    }
    nomad.add_variable("nomad/jobs/web", namespace="shop", password="correct-horse")
    nomad.add_job("web", namespace="shop", NodePool="gpu")


@contextmanager
def serving_nomad(tls: ssl.SSLContext | None = None) -> Iterator[StandIn]:
    """Serve a stand-in until the end of the block, over https if a TLS context is given."""
    stand_in = StandIn()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self._serve_get()

        def do_POST(self) -> None:
            stand_in.requests.append((self.command, self.path))
            self.reply(500, b"the stand-in accepts no writes")

        do_PUT = do_POST  # noqa: N815

        def _serve_get(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            path = unquote(url.path)
            stand_in.requests.append(("GET", path))
            stand_in.regions.add(query.get("region", ""))
            if path == stand_in.broken_path:
                self.close_connection = True
                return
            if path != "/v1/status/leader" and stand_in.tokens and self._get_token() not in stand_in.tokens:
                self.reply(403, b"Permission denied")
            elif path in stand_in.errors:
                status, text = stand_in.errors[path]
                self.reply(status, text.encode())
            elif path in stand_in.lists or path in EMPTY_LISTS:
                self._serve_page(stand_in.lists.get(path, []), query)
            else:
                record = stand_in.records.get(f"{path}?namespace={query.get('namespace', '')}")
                record = stand_in.records.get(path) if record is None else record
                self.reply(404, b"") if record is None else self.reply(200, json.dumps(record).encode())

        def _get_token(self) -> str:
            return self.headers.get("X-Nomad-Token", "")

        def _serve_page(self, documents: list[Document], query: Document) -> None:
            start = int(query.get("next_token", "0"))
            end = start + stand_in.page_size
            further = [("X-Nomad-NextToken", str(end))] if end < len(documents) else []
            self.reply(200, json.dumps(documents[start:end]).encode(), ("X-Nomad-Index", "40"), *further)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    stand_in.address = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    with serving(server):
        yield stand_in


EMPTY_LISTS = frozenset({
    "/v1/node/pools", "/v1/namespaces", "/v1/acl/policies", "/v1/acl/roles", "/v1/vars", "/v1/jobs", "/v1/acl/tokens",
    "/v1/acl/auth-methods", "/v1/acl/binding-rules", "/v1/volumes",
})  # fmt: skip
"""The lists that every Nomad server has."""

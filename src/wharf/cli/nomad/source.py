"""Reads the records of a Nomad cluster through its HTTP API, with limits, and reports what cannot be read or imported.

Only reads. The formats are loose: nulls, unknown fields and unknown records are reported, and stop nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from wharf.cli.common.errors import CliError
from wharf.cli.nomad.import_plan import Action, Change, ImportKind, SourceJob, SourceState
from wharf.contract.client.settings import ClientSettings
from wharf.contract.client.transport import (
    ClientReply,
    ClientRequest,
    InvalidHeader,
    SyncTransport,
    TlsFailure,
    Unreachable,
)
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.decoding import DecodingError, convert_object
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.quotas import Quota
from wharf.contract.wire.acl import PolicyView
from wharf.contract.wire.jobs.messages import JobSource
from wharf.contract.wire.variables import VariableView

T = TypeVar("T")

TOKEN_HEADER: Final = "x-nomad-token"
NEXT_TOKEN_HEADERS: Final = ("x-nomad-nexttoken", "x-cluster-nexttoken")
PAGE_RECORDS: Final = 500
"""Records of one page of a list; keeps each reply small."""
MAX_RECORDS: Final = 200_000
"""Records of one kind; protects the memory of this command. Larger clusters are beyond what one import should change."""
MAX_TOTAL_BYTES: Final = 1 << 30
"""All replies of an import; protects the memory of this command, which holds them until everything is read."""
MAX_ERROR_CHARS: Final = 300
"""Limit of Nomad's text in an error; it could be a whole page of another server."""
MAX_SHOWN_PROBLEMS: Final = 3
OK: Final = 200
NOT_FOUND: Final = 404
FORBIDDEN: Final = 403
UNAVAILABLE: Final = 501
_USE_MANAGEMENT_TOKEN: Final = "use a management token of Nomad, with --token or NOMAD_TOKEN"
_ACL_OFF_ACCESSOR: Final = "acls-disabled"
"""The token that Nomad returns to every caller while access control is off."""
_TLS_FIXES: Final = {
    TlsFailure.UNTRUSTED_SERVER_CERTIFICATE: "set --ca-cert or NOMAD_CACERT to the certificate of the authority that "
    "signed it",
    TlsFailure.EXPIRED_SERVER_CERTIFICATE: "renew the certificate of Nomad's server, and check the clocks of both machines",
    TlsFailure.WRONG_SERVER_NAME: "set --tls-server-name or NOMAD_TLS_SERVER_NAME to a name that the certificate "
    "contains, such as server.global.nomad",
    TlsFailure.CLIENT_CERTIFICATE_REQUIRED: "Nomad requires a client certificate: set --client-cert and --client-key, or "
    "NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY",
    TlsFailure.SERVER_WITHOUT_TLS: "Nomad does not use https: set --address or NOMAD_ADDR to http://HOST:PORT",
    TlsFailure.OTHER: "does Nomad use https at this address?",
}


class _UncopiedKind(NamedTuple):
    """Records of Nomad that are never imported: where they are listed, and what to do about them."""

    name: str
    path: str
    reason: str


UNCOPIED_KINDS: Final = (
    _UncopiedKind(
        "tokens",
        "/v1/acl/tokens",
        "their secrets are not copied; create tokens with `wharf acl token create` and hand them to their users",
    ),
    _UncopiedKind(
        "auth methods",
        "/v1/acl/auth-methods",
        "Nomad does not return their client secrets; create them with `wharf acl auth-method create`",
    ),
    _UncopiedKind(
        "binding rules",
        "/v1/acl/binding-rules",
        "each needs its auth method; create them after it with `wharf acl binding-rule create`",
    ),
    _UncopiedKind(
        "host volumes",
        "/v1/volumes?type=host&namespace=*",
        "their data is on Nomad's nodes; create or register them with `wharf volume create` or `wharf volume register`",
    ),
    _UncopiedKind("CSI volumes", "/v1/volumes?type=csi&namespace=*", "Wharf has no CSI plugins; use host volumes"),
)


class Uncopied(msgspec.Struct, frozen=True, rename="pascal"):
    """Records of a kind that the import never copies: their number, and what to do instead."""

    kind: str
    count: int
    reason: str


class UnreadKind(msgspec.Struct, frozen=True, rename="pascal"):
    """A kind of record that Nomad did not return, and what to do about it."""

    kind: str
    reason: str


class _Refusal(Exception):
    """The error for a reply of Nomad with an error status, or with a body that is not what the path returns."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class NomadSource:
    """Reads one Nomad cluster. `unread` and `uncopied` list what is missing in the state that `read` returned."""

    def __init__(self, transport: SyncTransport, address: str, region: str = "") -> None:
        self.unread: list[UnreadKind] = []
        self.uncopied: list[Uncopied] = []
        self.absent: list[UnreadKind] = []
        """Kinds that this Nomad does not have, such as quotas in the edition without licenses."""
        self._transport = transport
        self._address = address
        self._region = {"region": region} if region else {}
        self._received_bytes = 0
        self._skipped: list[Change] = []
        self._losses: dict[tuple[ImportKind, str], str] = {}

    def close(self) -> None:
        self._transport.close()

    def read(self) -> SourceState:
        """Return all records. Raises CliError if Nomad cannot be reached; kinds that it refuses are in `unread`."""
        try:
            self._check_server()
            self._check_token()
            state = SourceState(
                quotas=self._read_kind(
                    ImportKind.QUOTA, lambda: self._read_list(ImportKind.QUOTA, "/v1/quotas", Quota)
                ),
                node_pools=self._read_kind(
                    ImportKind.NODE_POOL, lambda: self._read_list(ImportKind.NODE_POOL, "/v1/node/pools", NodePool)
                ),
                namespaces=self._read_kind(
                    ImportKind.NAMESPACE, lambda: self._read_list(ImportKind.NAMESPACE, "/v1/namespaces", Namespace)
                ),
                scheduler=next(iter(self._read_kind(ImportKind.SCHEDULER, self._read_scheduler)), None),
                policies=self._read_kind(ImportKind.POLICY, self._read_policies),
                roles=self._read_kind(ImportKind.ROLE, lambda: self._read_list(ImportKind.ROLE, "/v1/acl/roles", Role)),
                variables=self._read_kind(ImportKind.VARIABLE, self._read_variables),
                jobs=self._read_kind(ImportKind.JOB, self._read_jobs),
            )
            self._count_uncopied()
        except Unreachable as error:
            raise CliError(f"{error}; {_suggest_fix(error)}; nothing was imported") from error
        return msgspec.structs.replace(state, skipped=tuple(self._skipped), losses=self._losses)

    def _check_server(self) -> None:
        """Raise CliError unless a Nomad server with a leader replies. The check needs no token."""
        reply = self._send("/v1/status/leader", {})
        leader = _decode(reply) if reply.status == OK else None
        if not isinstance(leader, str):
            found = f"status {reply.status}" if reply.status != OK else "a body that is not the address of a leader"
            raise CliError(
                f"{self._address}: this is not a Nomad server: GET /v1/status/leader was answered with {found}; set "
                "--address or NOMAD_ADDR to one"
            )
        if not leader:
            raise CliError(f"{self._address}: the Nomad cluster has no leader now: repeat the command when it has one")

    def _check_token(self) -> None:
        """Report a token that sees only a part: Nomad leaves records that it may not read out of lists, without an error."""
        try:
            token = self._read("/v1/acl/token/self")
        except _Refusal:
            return  # Access control is off in an older version, or each list reports the invalid token.
        if (
            isinstance(token, dict)
            and token.get("Type") != "management"
            and token.get("AccessorID") != _ACL_OFF_ACCESSOR
        ):
            self.unread.append(
                UnreadKind(
                    "records that the token may not read",
                    f"it is not a management token, so lists can lack records: {_USE_MANAGEMENT_TOKEN}",
                )
            )

    def _read_kind(self, kind: ImportKind, read: Callable[[], Iterator[T]]) -> tuple[T, ...]:
        """Return the records of a kind; none if Nomad refuses to return them, which is then reported."""
        try:
            return tuple(read())
        except _Refusal as refusal:
            self._note_refusal(kind.value, refusal)
            return ()

    def _note_refusal(self, kind: str, refusal: _Refusal) -> None:
        if refusal.status == FORBIDDEN:
            self.unread.append(
                UnreadKind(kind, f"permission denied: the token may not read them: {_USE_MANAGEMENT_TOKEN}")
            )
        elif refusal.status in (NOT_FOUND, UNAVAILABLE):
            self.absent.append(UnreadKind(kind, "this edition or version of Nomad does not have them"))
        elif "ACL support disabled" in str(refusal):
            self.absent.append(UnreadKind(kind, "access control is off in Nomad"))
        else:
            text = f"Nomad replied with status {refusal.status}: {refusal}; repeat the import when Nomad returns them"
            self.unread.append(UnreadKind(kind, text))

    def _read_list(self, kind: ImportKind, path: str, record_type: type[T]) -> Iterator[T]:
        for document in self._iterate(path):
            record = self._convert(kind, record_type, document, _name_record(document))
            if record is not None:
                yield record

    def _read_scheduler(self) -> Iterator[SchedulerConfiguration]:
        document = self._read("/v1/operator/scheduler/configuration")
        if isinstance(document, dict):
            record = self._convert(
                ImportKind.SCHEDULER, SchedulerConfiguration, document.get("SchedulerConfig"), "configuration"
            )
            if record is not None:
                yield record

    def _read_policies(self) -> Iterator[PolicyView]:
        for stub in self._iterate("/v1/acl/policies"):
            document = self._read_record(f"/v1/acl/policy/{_quote(stub.get('Name'))}", {})
            if document is not None:
                document.pop("RulesJSON", None)
                record = self._convert(ImportKind.POLICY, PolicyView, document, _name_record(document))
                if record is not None:
                    yield record

    def _read_variables(self) -> Iterator[VariableView]:
        for stub in self._iterate("/v1/vars", namespace="*"):
            namespace, path = str(stub.get("Namespace")), str(stub.get("Path"))
            name = f"{namespace}/{path}"
            try:
                document = self._read_record(f"/v1/var/{_quote(path, keep='/')}", {"namespace": namespace})
            except _Refusal as refusal:
                if refusal.status != FORBIDDEN:
                    raise
                self._skip(ImportKind.VARIABLE, name, "permission denied: the token may list, but not read it")
                continue
            if document is None:
                continue  # It was deleted in the meantime.
            if not document.get("Items"):
                self._skip(ImportKind.VARIABLE, name, "it has no items: locks without items are not imported")
                continue
            document.pop("Lock", None)  # Held by a client of Nomad.
            record = self._convert(ImportKind.VARIABLE, VariableView, document, name)
            if record is not None:
                yield record

    def _read_jobs(self) -> Iterator[SourceJob]:
        children = 0
        for stub in self._iterate("/v1/jobs", namespace="*"):
            if stub.get("ParentID"):
                children += 1
                continue
            namespace, job_id = str(stub.get("Namespace") or "default"), str(stub.get("ID"))
            query = {"namespace": namespace}
            path = f"/v1/job/{_quote(job_id)}"
            document = self._read_record(path, query)
            if document is not None:
                yield SourceJob(namespace, job_id, document, self._read_submission(path, query, document))
        if children:
            reason = "launches of periodic and parameterized jobs; their parents are imported"
            self.uncopied.append(Uncopied("child jobs", children, reason))

    def _read_submission(self, path: str, query: Mapping[str, str], document: Mapping[str, Any]) -> JobSource | None:
        """Return the text from which a user submitted this version of the job; None if Nomad does not have it."""
        try:
            found = self._read_record(f"{path}/submission", {**query, "version": str(document.get("Version") or 0)})
            return None if found is None else convert_object(JobSource, found).value
        except (_Refusal, DecodingError):
            return None  # The job is complete without it.

    def _count_uncopied(self) -> None:
        """Count the records that are never imported. Kinds that Nomad does not return are left out."""
        for kind in UNCOPIED_KINDS:
            path, _, query = kind.path.partition("?")
            parameters = dict(pair.split("=", 1) for pair in query.split("&")) if query else {}
            try:
                count = sum(1 for _ in self._iterate(path, **parameters))
            except _Refusal:
                continue
            if count:
                self.uncopied.append(Uncopied(kind.name, count, kind.reason))

    def _convert(self, kind: ImportKind, record_type: type[T], document: object, name: str) -> T | None:
        """Return a document as a record of Wharf; None if that is impossible, which is then reported.

        Fields without a counterpart are reported if they are set.
        """
        try:
            decoded = convert_object(record_type, document)
        except DecodingError as error:
            problems = "; ".join(str(problem) for problem in error.problems[:MAX_SHOWN_PROBLEMS])
            self._skip(kind, name, f"Nomad's record cannot be read: {problems[:MAX_ERROR_CHARS]}")
            return None
        fields = document if isinstance(document, dict) else {}
        lost = sorted(path for path in decoded.unknown_paths if fields.get(path))
        if lost:
            self._losses[kind, name] = f"imported without {', '.join(lost)}: Wharf does not have these fields"
        return decoded.value

    def _skip(self, kind: ImportKind, name: str, reason: str) -> None:
        self._skipped.append(Change(kind=kind, name=name, action=Action.SKIP, reason=reason))

    def _iterate(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page. Raises _Refusal, also for a list that does not end."""
        count, token, seen = 0, "", set[str]()
        while True:
            parameters = {**query, "per_page": str(PAGE_RECORDS), **({"next_token": token} if token else {})}
            reply = self._send(path, parameters)
            documents = _decode_reply(reply)
            if not isinstance(documents, list):
                raise _Refusal(reply.status, f"{path} did not return a list")
            for document in documents:
                count += 1
                if count > MAX_RECORDS:
                    raise _Refusal(
                        reply.status, f"{path} has more than {MAX_RECORDS:,} records, the limit of an import"
                    )
                if isinstance(document, dict):
                    yield document
            token = next((reply.headers[name] for name in NEXT_TOKEN_HEADERS if reply.headers.get(name)), "")
            if not token:
                return
            if token in seen:
                raise _Refusal(reply.status, f"{path} returned the same page twice")
            seen.add(token)

    def _read_record(self, path: str, query: Mapping[str, str]) -> dict[str, Any] | None:
        """Return one object; None if it does not exist, because it was deleted after it was listed."""
        try:
            document = self._read(path, query)
        except _Refusal as refusal:
            if refusal.status == NOT_FOUND:
                return None
            raise
        return document if isinstance(document, dict) else None

    def _read(self, path: str, query: Mapping[str, str] | None = None) -> Any:  # Any JSON value.
        return _decode_reply(self._send(path, query or {}))

    def _send(self, path: str, query: Mapping[str, str]) -> ClientReply:
        reply = self._transport.send(ClientRequest("GET", path, tuple({**self._region, **query}.items())))
        self._received_bytes += len(reply.body)
        if self._received_bytes > MAX_TOTAL_BYTES:
            raise CliError(
                f"{self._address}: Nomad's records are larger than {MAX_TOTAL_BYTES >> 20} MiB, the limit of an import; nothing "
                "was imported"
            )
        return reply


def connect_source(settings: ClientSettings) -> NomadSource:
    """Return a reader of the Nomad cluster in these settings. Raises CliError if they are invalid. Does not connect yet."""
    # Only here, because help need not wait for the import of the HTTP library.
    from wharf.contract.client.connection import ClientSettingsError, build_headers, build_tls_context
    from wharf.contract.client.http_transport import SyncHttpTransport

    address = settings.addresses[0]
    headers = build_headers(msgspec.structs.replace(settings, token=""))
    if settings.token:
        headers[TOKEN_HEADER] = settings.token
    try:
        tls = build_tls_context(settings) if address.startswith("https://") else None
        transport = SyncHttpTransport(address, tls=tls, server_name=settings.server_name, headers=headers)
    except InvalidHeader as error:
        raise CliError(
            "the token of Nomad contains characters that no token has: check --token or NOMAD_TOKEN"
        ) from error
    except (ClientSettingsError, Unreachable) as error:
        raise CliError(str(error)) from error
    return NomadSource(transport, address, settings.region)


def _suggest_fix(error: Unreachable) -> str:
    """Return what to do about a failed connection to Nomad."""
    if error.tls_failure is not None:
        return _TLS_FIXES[error.tls_failure]
    if error.is_sent:
        return "the connection to Nomad broke: repeat the command"
    return "set --address or NOMAD_ADDR to a server of Nomad that this machine can reach"


def _decode_reply(reply: ClientReply) -> Any:  # Any JSON value.
    """Return the decoded body of a reply. Raises _Refusal for an error status, and for a body that is not JSON."""
    if reply.status != OK:
        raise _Refusal(reply.status, reply.body.decode("utf-8", "replace")[:MAX_ERROR_CHARS].strip())
    value = _decode(reply)
    if value is msgspec.UNSET:
        raise _Refusal(reply.status, "the reply is not JSON")
    return value


def _decode(reply: ClientReply) -> Any:  # Any JSON value.
    """Return the decoded body; UNSET if it is not JSON."""
    try:
        return msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.UNSET


def _quote(value: object, *, keep: str = "") -> str:
    return quote(str(value), safe=keep)


def _name_record(document: Mapping[str, Any]) -> str:
    return str(document.get("Name") or "without a name")

"""A server in memory whose API has a rate limiter in front of it, with few requests for each caller."""

from pathlib import Path

from tests.kit.cluster import OneServer
from wharf.agent.http.limiter_adapter import LimiterAdapter
from wharf.agent.http.limits import REQUEST_ID_HEADER, ReplicaTokens
from wharf.cluster.api.asgi import App
from wharf.cluster.api.rate_limiting import RequestClassifier
from wharf.limits.admin.actions import OperatorActions
from wharf.limits.admin.queries import OperatorQueries
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config import LimiterSettings
from wharf.limits.decisions import AdmittedRequest, IncomingRequest
from wharf.limits.rate_limiter import RateLimiter

ADDRESS = "address:192.0.2.7"
RULES = """
profile = "cluster"
[[rule]]
name = "core"
ceiling = { credential = 8, none = 3 }
"""


class LimitedServer:
    """Puts a limiter in front of a server, and sends requests through it."""

    def __init__(self, server: OneServer, folder: Path, *, rules: str = RULES) -> None:
        rules_file = folder / "rules.toml"
        rules_file.write_text(rules)
        settings = LimiterSettings(data_folder=folder, rules_file=rules_file, request_id_header=REQUEST_ID_HEADER)
        self._server, self._tokens = server.server, ReplicaTokens(server=server.server)
        self.limiter = RateLimiter(settings, server.world, directory=self._tokens)
        queries, actions = OperatorQueries(self.limiter), OperatorActions(self.limiter, server.world)
        server.server.limiter = LimiterAdapter(self.limiter, queries, actions)

    def wrap(self, api: App) -> App:
        """Return the API with the limiter in front of it, as a server has it."""
        inner = LimitsMiddleware(api, self.limiter.decision_service, routes_raw_paths=True)
        return RequestClassifier(inner, self._server, self._tokens)

    async def send(self, path: str = "/v1/jobs", *, times: int = 1) -> list[bool]:
        """Send requests of one address and end them. Return which were admitted."""
        service = self.limiter.decision_service
        admitted = []
        for _ in range(times):
            result = await service.admit(IncomingRequest("GET", path, "", ADDRESS.removeprefix("address:"), None))
            admitted.append(isinstance(result, AdmittedRequest))
            if isinstance(result, AdmittedRequest):
                await service.end_request(result)
        return admitted

"""A login provider for tests: an ASGI application that issues real codes and signs real tokens.

`visit` plays the user at its page. Like real providers it is strict: a code can be used once, and only with the client,
redirect address and verifier of its request.
"""

import base64
import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

CLIENT_ID = "wharf"
CLIENT_SECRET = "a secret of the client"


class LoginProvider:
    """The provider, with one user."""

    def __init__(self, now_s: Callable[[], int], *, issuer: str = "https://login.example") -> None:
        self.now_s = now_s
        self.issuer = issuer
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.names_keys = True
        """Whether tokens contain the id of the key that signed them."""
        self.codes: dict[str, dict[str, str]] = {}
        self.identity_claims: dict[str, Any] = {"sub": "ada", "email": "ada@example.com", "groups": ["web", "ops"]}
        self.user_info: dict[str, Any] = {"sub": "ada", "team": "engines"}
        self.changed: dict[str, Any] = {}
        """Claims that replace the correct ones in the next identity token."""
        self.key_count = 1
        """How often the key is in the key set."""
        self.requested_paths: list[str] = []
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._configuration),
                Route("/keys", self._keys),
                Route("/token", self._token, methods=["POST"]),
                Route("/person", self._user_info),
            ]
        )

    @property
    def public_pem(self) -> str:
        return self.key.as_pem(private=False).decode()

    def rotate(self, key_id: str) -> None:
        """Sign with a new key from now on, and forget the old one."""
        self.key = RSAKey.generate_key(2048, {"kid": key_id, "use": "sig"})

    def visit(self, auth_url: str) -> dict[str, str]:
        """Log in at the page, and return the parameters with which it redirects back."""
        requests = {name: values[0] for name, values in parse_qs(urlsplit(auth_url).query).items()}
        code = f"code-{len(self.codes) + 1}"
        self.codes[code] = requests
        return {"state": requests["state"], "code": code, "iss": self.issuer, **requests}

    def sign(self, claims: dict[str, Any], *, key: RSAKey | None = None, algorithm: str = "RS256") -> str:
        signing = key or self.key
        header = {"alg": algorithm}
        if self.names_keys:
            header["kid"] = signing.kid or "one"
        return jwt.encode(header, claims, signing, algorithms=[algorithm])

    def identity(self, **changed: Any) -> str:
        now_s = self.now_s()
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now_s, "exp": now_s + 300, **self.identity_claims}
        return self.sign({name: value for name, value in {**claims, **changed}.items() if value is not None})

    async def _configuration(self, _request: Request) -> Response:
        self.requested_paths.append("configuration")
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/page",
                "token_endpoint": f"{self.issuer}/token",
                "userinfo_endpoint": f"{self.issuer}/person",
                "jwks_uri": f"{self.issuer}/keys",
            }
        )

    async def _keys(self, _request: Request) -> Response:
        self.requested_paths.append("keys")
        return JSONResponse(KeySet([self.key] * self.key_count).as_dict(private=False))

    async def _token(self, request: Request) -> Response:
        self.requested_paths.append("token")
        encoding = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        pair = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET.replace(' ', '+')}".encode()).decode()
        requests = self.codes.pop(encoding["code"], None)
        is_valid = (
            requests is not None
            and request.headers.get("authorization") == f"Basic {pair}"
            and encoding["redirect_uri"] == requests["redirect_uri"]
            and _challenge(encoding.get("code_verifier", "")) == requests.get("code_challenge", _challenge(""))
        )
        if requests is None or not is_valid:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        return JSONResponse(
            {"access_token": "for-ada", "id_token": self.identity(**{"nonce": requests["nonce"], **self.changed})}
        )

    async def _user_info(self, request: Request) -> Response:
        if request.headers["authorization"] != "Bearer for-ada":
            return Response(status_code=401)
        return JSONResponse(self.user_info)


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")

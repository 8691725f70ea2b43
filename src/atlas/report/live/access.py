"""Who may look: anybody on this machine, and elsewhere whoever has the token.

The one check of every page and answer that Atlas gives over HTTP. Requests that name another host
than the one served are refused as well: a foreign page could otherwise have a browser on this
machine ask in its name.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qs, quote, unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atlas.report.live.errors import error_response

COOKIE = "atlas_token"
OPEN = ("/health",)
"""Paths that need no token: they tell that there is an answer, and no more."""
HERE = ("127.0.0.1", "localhost", "[::1]", "::1")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Of every answer."""
WRONG = "missing or wrong token; open the printed address, or send: Authorization: Bearer TOKEN"


@dataclass(frozen=True)
class Access:
    """Where the page is served, and what it takes to see it.

    Attributes:
        host: The address that is listened to.
        token: What a request must bring; None asks for nothing.
    """

    host: str
    token: str | None

    @classmethod
    def to(cls, host: str, token: str | None = None) -> Access:
        """Without a token on this machine alone; elsewhere with one, made up if none is given."""
        if not token:
            token = None if is_here(host) else secrets.token_urlsafe(24)
        return cls(host, token)

    def base(self, port: int) -> str:
        """What every address begins with."""
        named = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        named = f"[{named}]" if ":" in named else named
        return f"http://{named}:{port}"

    def address(self, port: int) -> str:
        """What to open in a browser."""
        token = f"?token={quote(self.token, safe='')}" if self.token else ""
        return f"{self.base(port)}/{token}"

    def knows(self, host: str) -> bool:
        """Whether a request may name this host; one with the token may name any."""
        name = host.rsplit(":", 1)[0] if host.count(":") == 1 or "]:" in host else host
        return self.token is not None or name in HERE or name == self.host


def is_here(host: str) -> bool:
    """Whether an address is this machine's own loopback."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class AccessCheck:
    """Lets requests through that may see the page, and adds headers that keep it closed."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self.access.knows(headers.get("host", "")):
            await error_response(421, "this host is not served here")(scope, receive, send)
            return
        given, by_address = _given(scope, headers)
        if scope["path"] not in OPEN and not self._right(given):
            await error_response(401, WRONG)(scope, receive, send)
            return
        kept = f"{COOKIE}={quote(given, safe='')}; HttpOnly; SameSite=Strict; Path=/"
        cookie = kept if by_address and self._right(given) else None

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = {**HEADERS, **({"set-cookie": cookie} if cookie else {})}
                pairs = [(name.encode(), value.encode("latin-1")) for name, value in added.items()]
                message = {**message, "headers": [*message.get("headers", []), *pairs]}
            await send(message)

        await self.app(scope, receive, closed)

    def _right(self, given: str) -> bool:
        wanted = self.access.token
        return wanted is None or secrets.compare_digest(
            given.encode("utf-8", "replace"), wanted.encode("utf-8", "replace")
        )


def _given(scope: Scope, headers: Headers) -> tuple[str, bool]:
    """The token that a request brings, and whether it stood in the address."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip(), False
    asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token")
    if asked:
        return asked[0], True
    try:
        kept = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        kept = None
    return (unquote(kept.value) if kept else ""), False

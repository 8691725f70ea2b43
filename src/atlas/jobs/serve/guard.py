"""What stands before every route: a token, and a limit on how much a request may send."""

from __future__ import annotations

import hmac
import ipaddress
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

MOST_BYTES = 4_000_000
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def needed_token(host: str, given: str | None) -> str | None:
    """The token that requests must bring: the given one; a new one where others can reach us."""
    if given:
        return given
    return None if is_loopback(host) else secrets.token_urlsafe(24)


def error_body(message: str, kind: str, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class Guard:
    """Passes on requests that bring the token and are not too large."""

    def __init__(
        self,
        app: App,
        token: str | None,
        most_bytes: int = MOST_BYTES,
        open_paths: Collection[str] = ("/health",),
    ) -> None:
        """Wraps an app.

        Args:
            app: What is behind.
            token: What `Authorization: Bearer` must hold; None for nothing.
            most_bytes: The largest body.
            open_paths: Routes that need no token.
        """
        self._app = app
        self._token = token
        self._most = most_bytes
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v for k, v in scope["headers"]}
        if not self._may(scope["path"], headers.get("authorization", b"")):
            told = "missing or wrong token; send: Authorization: Bearer TOKEN"
            await _refuse(send, 401, error_body(told, "authentication_error", "invalid_api_key"))
            return
        length = headers.get("content-length", b"0")
        told = f"a request may have {self._most} bytes"
        if not length.isdigit() or int(length) > self._most:
            await _refuse(send, 413, error_body(told, "invalid_request_error", "too_large"))
            return
        body = await self._read(receive)
        if body is None:
            await _refuse(send, 413, error_body(told, "invalid_request_error", "too_large"))
            return
        await self._app(scope, _again(body, receive), send)

    def _may(self, path: str, header: bytes) -> bool:
        if self._token is None or path in self._open:
            return True
        return hmac.compare_digest(header, f"Bearer {self._token}".encode())

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None if it is too large, whatever its header said."""
        body = bytearray()
        while True:
            part = await receive()
            body += part.get("body", b"")
            if len(body) > self._most:
                return None
            if part["type"] != "http.request" or not part.get("more_body"):
                return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read once more, then whatever comes after it."""
    told = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Send, status: int, told: dict[str, Any]) -> None:
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

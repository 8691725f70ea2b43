"""How much a request may send."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atlas.report.live.errors import error_response

MOST_BYTES = 4_000_000


class BodyLimit:
    """Lets requests through whose body is not too large, whatever their header says of it."""

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES) -> None:
        self.app = app
        self.most = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        short = length.isascii() and length.isdigit() and int(length) <= self.most
        body = await self._read(receive) if short else None
        if body is None:
            refused = error_response(413, f"a request may have {self.most} bytes")
            await refused(scope, receive, send)
            return
        await self.app(scope, _again(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None if it is too large."""
        body = bytearray()
        while True:
            part = await receive()
            body += part.get("body", b"")
            if len(body) > self.most:
                return None
            if part["type"] != "http.request" or not part.get("more_body"):
                return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read once more, then whatever comes after it."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again

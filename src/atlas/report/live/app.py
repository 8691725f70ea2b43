"""The page over run folders as a web application: it reads, and changes nothing.

`create_app` makes the application with its one check of who may ask (`access.py`); what it offers
are routers: `page_router` is the page, and whoever serves models adds another.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from atlas.errors import InputError
from atlas.report.html.document import Document
from atlas.report.html.page import asset, open_document, script, style
from atlas.report.live.access import Access, AccessCheck
from atlas.report.live.body_limit import BodyLimit
from atlas.report.live.errors import tell_errors
from atlas.report.read.catalogue import Catalogue, Stamp, find_below, progress_of, stamp_of
from atlas.report.read.source import read_run
from atlas.report.words.plain_text import spelled

BETWEEN = 0.5
"""Seconds between looks at a run that is followed."""
SILENCE = 15.0
"""Seconds after which a follower hears that nothing has changed, so that the line stays open."""
MOST_COMPARED = 8
KEPT = 16
"""Documents that are kept until their folders change."""


def create_app(access: Access, routers: Sequence[APIRouter]) -> FastAPI:
    """An application behind the one check, with whatever it is to offer."""
    app = FastAPI(title="Atlas", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyLimit)
    app.add_middleware(AccessCheck, access=access)  # the last one added is the first one asked
    tell_errors(app)
    for router in routers:
        app.include_router(router)
    return app


def page_router(root: Path, between: float = BETWEEN, only: str | None = None) -> APIRouter:
    """The page: a list of runs, one run as it goes on, several side by side.

    Args:
        root: The folder that holds run folders.
        between: Seconds between looks at a run that is followed.
        only: The one run to show; None shows all below the folder.
    """
    router, catalogue, documents = APIRouter(), Catalogue(root, only), _Documents(root, only)
    lock = threading.Lock()
    page = HTMLResponse(asset("live.html"))
    files = {
        "page.css": Response(style() + asset("live.css"), media_type="text/css"),
        "charts.js": Response(script(), media_type="text/javascript"),
        "live.js": Response(asset("live.js"), media_type="text/javascript"),
    }

    @router.get("/")
    async def first() -> Response:
        return page if only is None else RedirectResponse(f"/run?run={quote(only)}")

    @router.get("/run")
    async def shown() -> HTMLResponse:
        return page

    @router.get("/assets/{name}")
    async def file(name: str) -> Response:
        return files[name] if name in files else Response(status_code=404)

    @router.get("/favicon.ico")
    async def icon() -> Response:
        return Response(status_code=204)

    @router.get("/api/runs")
    def runs() -> Response:
        with lock:
            return _json({"root": spelled(str(root)), "runs": catalogue.rows()})

    @router.get("/api/document")
    def document(
        run: Annotated[list[str], Query(min_length=1, max_length=MOST_COMPARED)],
    ) -> Response:
        return _json(documents.get(run))

    @router.get("/api/follow")
    async def follow(run: str) -> StreamingResponse:
        path = await run_in_threadpool(find_below, root, run, only)
        return StreamingResponse(_told(path, between), media_type="text/event-stream")

    return router


def _json(value: object) -> Response:
    """JSON without NaN, which no browser reads."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text, media_type="application/json")


class _Documents:
    """Documents by the runs they show, made again when one of their folders has changed."""

    def __init__(self, root: Path, only: str | None) -> None:
        self.root = root
        self.only = only
        self.known: dict[tuple[str, ...], tuple[list[Stamp], Document]] = {}
        self.lock = threading.Lock()

    def get(self, names: Sequence[str]) -> Document:
        paths = [find_below(self.root, name, self.only) for name in names]
        stamps = [stamp_of(path) for path in paths]
        with self.lock:
            known = self.known.get(tuple(names))
            if known is None or known[0] != stamps:
                while len(self.known) >= KEPT:
                    self.known.pop(next(iter(self.known)))
                self.known[tuple(names)] = known = (stamps, open_document(paths))
            return known[1]


async def _told(path: Path, between: float) -> AsyncIterator[str]:
    """What a follower hears: how far the run is, whenever that has changed, until it ends."""
    before: Any = None
    silent = 0.0
    while True:
        stamp = await run_in_threadpool(stamp_of, path)
        now = await run_in_threadpool(_progress, path) if stamp != before else None
        if now is not None:
            before, silent = stamp, 0.0
            yield f"event: progress\ndata: {json.dumps(now, allow_nan=False)}\n\n"
            if now["state"] == "finished":
                yield "event: end\ndata: {}\n\n"
                return
        elif silent >= SILENCE:
            # A run that was killed leaves no trace in its folder, so it is looked at anew.
            silent, before = 0.0, None
            yield ": nothing new\n\n"
        await asyncio.sleep(between)
        silent += between


def _progress(path: Path) -> dict[str, Any]:
    try:
        return progress_of(read_run(path))
    except InputError as error:
        empty = {"done": 0, "rounds": 0, "left": None, "doing": "", "events": 0}
        return {"state": "unreadable", "alerts": [spelled(str(error))], **empty}

"""What goes wrong in a request, told in one form that OpenAI's clients read, too."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from atlas.errors import InputError
from atlas.report.words.plain_text import spelled

KINDS = {401: "authentication_error", 404: "not_found_error", 503: "overloaded_error"}
CODES = {401: "invalid_api_key", 413: "too_large"}
MOST_PROBLEMS = 3
"""Of one body that are told."""


def error_response(
    status: int, message: str, kind: str = "", headers: dict[str, str] | None = None
) -> JSONResponse:
    """`{"error": {"message", "type", "param", "code"}}`.

    Args:
        status: Of HTTP.
        message: A sentence that names what is wrong.
        kind: As OpenAI's clients know it; by default that of the status.
        headers: Besides.
    """
    kind = kind or KINDS.get(status, "invalid_request_error")
    told = {"message": message, "type": kind, "param": None, "code": CODES.get(status)}
    return JSONResponse({"error": told}, status, headers=headers)


def tell_errors(app: FastAPI) -> None:
    """Every error of an application has a sentence, and one form."""

    @app.exception_handler(HTTPException)
    async def known(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers) if error.headers else None
        return error_response(error.status_code, str(error.detail), headers=headers)

    @app.exception_handler(InputError)
    async def said(request: Request, error: InputError) -> JSONResponse:
        return error_response(404, spelled(str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        told = "; ".join(_problem(one) for one in error.errors()[:MOST_PROBLEMS])
        return error_response(422, told)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return error_response(500, f"{type(error).__name__}: {error}", "server_error")


def _problem(one: Any) -> str:  # noqa: ANN401 - a dictionary of pydantic's
    where = ".".join(str(part) for part in one["loc"] if part != "body")
    return f"{where or 'body'}: {one['msg'].removeprefix('Value error, ')}"

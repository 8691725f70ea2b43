"""The routes: who there is, labels for texts, and completions as OpenAI's clients ask for them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, HTTPException

from atlas.data.examples import check_texts
from atlas.errors import InputError
from atlas.federation.clients import Task, TaskKind
from atlas.jobs.federation.client_models import ClientModels, Question
from atlas.jobs.serve.batcher import Batcher, Busy
from atlas.jobs.serve.bodies import ClassifyBody, ClassifyInput, CompletionBody

ROUTES: dict[TaskKind, str] = {"classification": "/classify", "causal": "/v1/completions"}


def answer_router(models: ClientModels, batcher: Batcher, run: str) -> APIRouter:
    """All routes over the clients of one run.

    Args:
        models: The clients, for what is known of them.
        batcher: Answers for them.
        run: The run's name.
    """
    router, tasks, numbers = APIRouter(), models.tasks, itertools.count(1)

    @router.get("/health")
    async def health() -> dict[str, Any]:
        counts = {"requests": batcher.requests, "texts": batcher.texts, "passes": batcher.passes}
        return {"status": "ok", "run": run, "clients": len(tasks), **counts}

    @router.get("/clients")
    async def clients() -> dict[str, Any]:
        return {"clients": [_about(client, task) for client, task in tasks.items()]}

    @router.get("/v1/models")
    async def listed() -> dict[str, Any]:
        each = [{"id": c, "object": "model", "created": 0, "owned_by": "atlas"} for c in tasks]
        return {"object": "list", "data": each}

    @router.post("/classify")
    async def classify(body: ClassifyBody) -> dict[str, Any]:
        asked = [
            _classified(tasks, body.client, given, number)
            for number, given in enumerate(body.inputs)
        ]
        return {"answers": await _answers(batcher, asked)}

    @router.post("/v1/completions")
    async def complete(body: CompletionBody) -> dict[str, Any]:
        task = _task(tasks, body.model, "causal")
        room = models.stack_of(body.model).room
        if body.max_tokens is not None and body.max_tokens > room:
            raise HTTPException(422, f"max_tokens: {body.max_tokens} given; allowed: 1 to {room}")
        for number, prompt in enumerate(body.prompts):
            _checked(task, (prompt,), f"prompt[{number}]")
        most = body.max_tokens
        asked = [Question(body.model, (p,), prompt=True, max_tokens=most) for p in body.prompts]
        answers = await _answers(batcher, asked)
        return _completion(f"cmpl-{next(numbers)}", body, answers)

    return router


def _about(client: str, task: Task) -> dict[str, Any]:
    """What one must know to ask a client."""
    facts = {"client": client, "task": task.name, "kind": task.kind, "route": ROUTES[task.kind]}
    own = {"prompt": task.prompt} if task.kind == "causal" else {"labels": list(task.labels)}
    return {**facts, "text": list(task.text), **own}


def _task(tasks: dict[str, Task], client: str | None, kind: TaskKind) -> Task:
    """The task of a client that is there and of that kind."""
    if client is None:
        raise HTTPException(422, "client: missing; name it in the request or in each input")
    if client not in tasks:
        raise HTTPException(404, f"client {client!r}: no such client; GET /clients lists them")
    task = tasks[client]
    if task.kind != kind:
        raise HTTPException(
            422, f"client {client!r}: its task is {task.kind}; POST {ROUTES[task.kind]}"
        )
    return task


def _classified(
    tasks: dict[str, Task], common: str | None, given: str | list[str] | ClassifyInput, number: int
) -> Question:
    client = common
    if isinstance(given, ClassifyInput):
        client, given = given.client or common, given.texts
    task = _task(tasks, client, "classification")
    listed = (given,) if isinstance(given, str) else tuple(given)
    if len(listed) != len(task.text):
        fields = ", ".join(task.text)
        told = f"{len(listed)} texts, but task {task.name!r} reads {len(task.text)}: {fields}"
        raise HTTPException(422, f"inputs[{number}]: {told}")
    assert client is not None
    return Question(client, _checked(task, listed, f"inputs[{number}]"))


def _checked(task: Task, texts: tuple[str, ...], where: str) -> tuple[str, ...]:
    try:
        check_texts(task, texts, where)
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    return texts


async def _answers(batcher: Batcher, asked: Sequence[Question]) -> list[dict[str, Any]]:
    try:
        return await asyncio.wrap_future(batcher.ask(asked))
    except Busy:
        raise HTTPException(
            503, "too many requests wait; try again", {"Retry-After": "1"}
        ) from None


def _completion(name: str, body: CompletionBody, answers: Sequence[Any]) -> dict[str, Any]:
    """The reply as OpenAI's clients read it."""
    choices, read, made = [], 0, 0
    for index, told in enumerate(answers):
        cut = min((i for s in body.stops if (i := told["answer"].find(s)) >= 0), default=None)
        ended = "stop" if cut is not None or not told["tokens"]["full"] else "length"
        text = told["answer"] if cut is None else told["answer"][:cut]
        choices.append({"index": index, "text": text, "finish_reason": ended, "logprobs": None})
        read, made = read + told["tokens"]["prompt"], made + told["tokens"]["answer"]
    usage = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
    about = {"id": name, "object": "text_completion", "created": int(time.time())}
    return {**about, "model": body.model, "choices": choices, "usage": usage}

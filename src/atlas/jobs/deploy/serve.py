"""The server's side of a deployment: a run in its folder, over Flower, from wherever it is.

`app` is what Flower starts. A run that was killed is started again by the same command and goes on
at the next round, which Flower alone does not do.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from atlas.build.federation import Federation
from atlas.build.remote import build_server, sent_settings
from atlas.config.federation import FederationConfig
from atlas.config.load import load_resolved_federation
from atlas.engines.flower.node_states import NodeStates, Session
from atlas.engines.flower.post import Post
from atlas.engines.flower.records import Value
from atlas.engines.flower.roll import Roll, needed
from atlas.engines.flower.server_app import server_app
from atlas.engines.flower.transport import FlowerTransport
from atlas.errors import InputError
from atlas.federation.rounds import asked_next
from atlas.jobs.federation.run import FederationJob
from atlas.jobs.runner import (
    Finished,
    carry_on,
    known_result,
    recorded_threads,
    reported,
    use_threads,
)
from atlas.runs.checkpoint import latest_round
from atlas.runs.events import Observe
from atlas.runs.files import check_name, write_text_atomic
from atlas.runs.folder import RunFolder

HOME = "ATLAS_DEPLOY"
"""The environment variable that names the deployment's folder to whatever Flower starts."""
RUNS, NAME_FILE = "runs", "flower.json"


def begin(folder: RunFolder) -> None:
    """Give a new run the name by which nodes keep what they know of it."""
    write_text_atomic(folder.path / NAME_FILE, json.dumps({"run": uuid.uuid4().hex}) + "\n")


def run_name(folder: RunFolder) -> str:
    """The name by which nodes know a run.

    Raises:
        InputError: It was not begun on nodes.
    """
    path = folder.path / NAME_FILE
    try:
        name = str(json.loads(path.read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a run of a deployment: {error}") from error
    check_name(name, "run name")
    return name


def make_run(post: Post, config: Mapping[str, object]) -> None:
    """Make the run that Flower's config names, or what is left of it.

    Raises:
        InputError: There is no such run.
        RuntimeError: Too few clients are there.
    """
    name = str(config.get("run", ""))
    check_name(name, "run name")
    folder = RunFolder.open(Path(os.environ[HOME]) / RUNS / name)
    serve(post, folder)


def serve(post: Post, folder: RunFolder, watch: Observe | None = None) -> Finished:
    """Make a run over nodes from wherever it is to its end."""
    if (done := known_result(folder)) is not None:
        return done
    config = load_resolved_federation(folder.config)
    use_threads(recorded_threads(folder))
    saved = latest_round(folder.rounds)
    session = Session(run_name(folder), 0 if saved is None else saved.number)
    federation = build_server(config)
    roll = connect(federation, config, replace(post, deadline=config.flower.deadline), session)
    everybody = len(federation.holders)
    roll.gather(everybody if saved is None else needed(config.flower, everybody))
    federation.told = roll.told
    return reported(carry_on(FederationJob(federation), folder, watch), config)


def connect(federation: Federation, config: FederationConfig, post: Post, session: Session) -> Roll:
    """Put nodes where a federation asks its clients; returns who is where."""
    settings = sent_settings(config)

    def common() -> dict[str, Value]:
        return {
            "run": session.run,
            "session": session.name,
            "after": session.after,
            "settings": settings,
        }

    roll = Roll(post, list(federation.holders), config.flower, common, _note)
    transport = FlowerTransport(post, roll, asked_next(federation.plan))
    federation.engine = NodeStates(transport, session, config.flower)
    return roll


def _note(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - Flower keeps what its apps print


app = server_app(make_run)

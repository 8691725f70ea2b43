"""What is done with a deployment that stands: register its nodes, make runs, see what is there."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from atlas.config.deploy import DeploySettings, load_deployment
from atlas.engines.flower.control import SLOW, UNREACHABLE, Control, RunStatus
from atlas.errors import InputError
from atlas.jobs.deploy.folder import APP, NODES, SERVER, read_federation
from atlas.jobs.deploy.serve import RUNS, begin
from atlas.jobs.runner import Finished, known_result, new_folder, set_threads
from atlas.runs.events import Observe, read_events
from atlas.runs.folder import RunFolder

PAUSE = 1.0
PATIENCE = 60.0
"""Seconds without an answer after which a server that is still listening counts as gone."""
ONLINE = "online"
LOG = "superlink.log"


@contextlib.contextmanager
def control_of(folder: Path) -> Iterator[Control]:
    """The control API of a deployment's server."""
    settings = load_deployment(folder)
    control = Control(settings.address, folder / SERVER / "ca.pem")
    try:
        yield control
    finally:
        control.close()


def register_nodes(folder: Path, wait: float = 60.0) -> list[str]:
    """Make the keys of all nodes known to the server; returns those that were not yet.

    Raises:
        RuntimeError: The server does not answer.
    """
    settings = load_deployment(folder)
    with control_of(folder) as control:
        known = _patiently(control.nodes, wait, settings)
        new = [name for name in settings.nodes if name not in known]
        for name in new:
            control.register(name, folder / NODES / name / "node.pub")
    return new


def _patiently(
    ask: Callable[[], dict[str, str]], wait: float, settings: DeploySettings
) -> dict[str, str]:
    began = time.monotonic()
    while True:
        try:
            return ask()
        except UNREACHABLE as error:
            if time.monotonic() - began >= wait:
                raise RuntimeError(
                    f"no answer from {settings.address} ({type(error).__name__}); is the server "
                    "started?"
                ) from error
        time.sleep(PAUSE)


def check(folder: Path, wait: float = 0.0) -> dict[str, Any]:
    """What of a deployment is reachable, as plain values.

    Args:
        folder: The deployment's.
        wait: Seconds to wait for all of it.
    """
    began = time.monotonic()
    while True:
        found = _look(folder)
        if found["ready"] or time.monotonic() - began >= wait:
            return found
        time.sleep(PAUSE)


def _look(folder: Path) -> dict[str, Any]:
    settings = load_deployment(folder)
    found: dict[str, Any] = {"address": settings.address, "port": _port_open(settings)}
    found["tls"] = found["port"] and _tls_holds(settings, folder / SERVER / "ca.pem")
    known: dict[str, str] = {}
    found["server"] = "not reached"
    if found["tls"]:
        try:
            with control_of(folder) as control:
                known = control.nodes()
            found["server"] = "answers"
        except (*UNREACHABLE, RuntimeError) as error:
            found["server"] = f"does not answer as Flower does ({type(error).__name__})"
    found["nodes"] = {
        name: {"clients": list(node.clients), "state": known.get(name, "not registered")}
        for name, node in settings.nodes.items()
    }
    states = [node["state"] for node in found["nodes"].values()]
    found["ready"] = all(state == ONLINE for state in states)
    return found


def _port_open(settings: DeploySettings) -> bool:
    try:
        with socket.create_connection((settings.host, settings.port), timeout=5):
            return True
    except OSError:
        return False


def _tls_holds(settings: DeploySettings, authority: Path) -> bool:
    """Whether the port is our server's: another one could take a run."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with (
            socket.create_connection((settings.host, settings.port), timeout=5) as raw,
            context.wrap_socket(raw, server_hostname=settings.host),
        ):
            return True
    except OSError:  # also what ssl raises
        return False


def run_deployed(
    folder: Path,
    overrides: Sequence[str] = (),
    resume: str = "",
    watch: Observe | None = None,
) -> Finished:
    """Make a run on a deployment, or go on with one, and follow it to its end.

    Args:
        folder: The deployment's.
        overrides: Settings on top of `federation.yaml`.
        resume: The name of a run under `runs` to go on with; empty for a new one.
        watch: Receives the run's events.

    Raises:
        InputError: There is no such run.
        RuntimeError: It failed; what it has saved can be resumed.
    """
    place = _open(folder, overrides, resume)
    if (done := known_result(place)) is not None:
        return done
    with control_of(folder) as control:
        if not _look(folder)["tls"]:
            raise RuntimeError(f"{load_deployment(folder).address} is not the server of {folder}")
        number = control.start(folder / SERVER / APP, {"run": place.path.name})
        status = _follow(control, number, place, watch)
    done = known_result(place)
    if done is None or not status.well:
        log = folder / SERVER / LOG
        raise RuntimeError(
            f"the run failed: {status.details or 'no reason told'}; its log is in {log}; go on "
            f"with: atlas deploy run {folder} --resume {place.path.name}"
        )
    return done


def _open(folder: Path, overrides: Sequence[str], resume: str) -> RunFolder:
    runs = folder / RUNS
    if resume and overrides:
        raise InputError(f"{overrides[0]}: a run goes on with the settings it was started with")
    if resume:
        return RunFolder.open(runs / resume)
    config = read_federation(folder, overrides)
    place = new_folder(config, runs, set_threads(config))
    begin(place)
    return place


def _follow(control: Control, number: int, place: RunFolder, watch: Observe | None) -> RunStatus:
    """Pass on a run's events until Flower says that it is over."""
    seen = _events(place)
    heard = time.monotonic()
    while True:
        try:
            status = control.status(number)
            heard = time.monotonic()
        except UNREACHABLE as error:
            # A server that is late answers the next time; the run itself does not wait for us.
            gone = not isinstance(error, SLOW) or time.monotonic() - heard >= PATIENCE
            status = RunStatus(gone, False, f"the server is gone ({type(error).__name__})")
        events = _events(place)
        for event in _news(seen, events):
            told = {key: value for key, value in event.items() if key not in ("event", "time")}
            if watch is not None:
                watch(str(event["event"]), told)
        seen = events
        if status.over:
            return status
        time.sleep(PAUSE)


def _events(place: RunFolder) -> list[dict[str, Any]]:
    return read_events(place.events) if place.events.exists() else []


def _news(seen: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What came since; a resumed run first takes back what it had told of an unsaved round."""
    pairs = enumerate(zip(seen, events, strict=False))
    same = next((at for at, (old, new) in pairs if old != new), min(len(seen), len(events)))
    return events[same:]

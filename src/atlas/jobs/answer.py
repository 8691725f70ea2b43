"""Use what a finished run made, whatever its kind: a client's model, or that of a memory run's arm.

A federation is asked for a client, a memory run for an arm; a folder with a saved memory model is
asked for neither. Each kind is imported only where it is met.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.config.federation import FederationConfig
from atlas.config.load import load_resolved
from atlas.errors import InputError
from atlas.jobs.show import find_run
from atlas.runs.events import Progress
from atlas.runs.folder import RunFolder


@dataclass(frozen=True)
class Asked:
    """Whose model is meant.

    Attributes:
        name: A run, or a folder with a saved memory model.
        parent: The folder that holds run folders.
        client: Of a federation.
        arm: Of a memory run; None is the first.
    """

    name: str
    parent: Path
    client: str | None = None
    arm: str | None = None

    def federation(self) -> tuple[RunFolder, str] | None:
        """The run and the client, where a federation is meant; None for a memory model.

        Raises:
            InputError: There is no such run, or it is asked for what it does not have.
        """
        for path in (Path(self.name), self.parent / self.name):
            with contextlib.suppress(OSError):
                if (path / "config.json").is_file() and not (path / "config.yaml").is_file():
                    self._refuse_client("a saved model", "")
                    return None
        folder = find_run(self.name, self.parent)
        config = load_resolved(folder.config)
        if not isinstance(config, FederationConfig):
            arms = ", ".join(getattr(config, "arms", ()))
            told = f"; allowed: --arm with one of {arms}" if arms else ""
            self._refuse_client(f"a {config.kind} run", told)
            return None
        if self.arm is not None:
            raise InputError(f"--arm {self.arm}: a federation has clients and no arms: --client")
        if self.client is None:
            known = sorted(p.name for p in folder.adapters.glob("*") if p.is_dir())
            told = f"; clients: {', '.join(known)}" if known else ""
            raise InputError(f"--client: missing; a federation has a model for each client{told}")
        return folder, self.client

    def _refuse_client(self, what: str, allowed: str) -> None:
        if self.client is not None:
            raise InputError(f"--client {self.client}: {what}, which has no clients{allowed}")

    def memory(self) -> Any:  # noqa: ANN401 - a `SavedModel`, imported late
        """The saved memory model."""
        from atlas.jobs.memory.saved_model import find_model

        return find_model(self.name, self.parent, self.arm)


def export(asked: Asked, to: Path, *, merged: bool = False) -> dict[str, Any]:
    """Write a client's adapter, or merged model, or a memory run's model, to a new folder.

    Raises:
        InputError: There is no such model, or the folder will not do.
    """
    if (found := asked.federation()) is not None:
        from atlas.jobs.federation.answer import export_client, export_merged

        (export_merged if merged else export_client)(*found, to)
        return {"client": found[1], "folder": str(to), "merged": merged}
    if merged:
        raise InputError("--merged: a memory run's models are whole: there is nothing to merge")
    from atlas.jobs.memory.answer import export_model

    saved = asked.memory()
    export_model(saved, to)
    return {"arm": saved.arm, "folder": str(to), "model": str(saved.place)}


def export_clients(asked: Asked, to: Path, *, merged: bool = False) -> dict[str, Any]:
    """Write all clients of a federation into one new folder, for servers of many adapters.

    Raises:
        InputError: It is no finished federation, or the folder will not do.
    """
    if asked.client is not None:
        raise InputError(
            f"--client {asked.client}: --all exports every client; allowed: one of both"
        )
    if merged:
        raise InputError("--merged: writes one client's whole model, --all adapters; choose one")
    folder = find_run(asked.name, asked.parent)
    config = load_resolved(folder.config)
    if not isinstance(config, FederationConfig):
        raise InputError(f"--all: a {config.kind} run has no clients; leave --all out")
    from atlas.jobs.federation.export_all import export_all

    return export_all(folder, to)


def predict(asked: Asked, texts: Sequence[str], progress: Progress | None = None) -> dict[str, Any]:
    """A client's answer to one input, or what a memory model expects after a text.

    Raises:
        InputError: There is no such model, or it reads other texts.
    """
    if (found := asked.federation()) is not None:
        from atlas.jobs.federation.answer import predict_texts

        return predict_texts(*found, texts)
    if len(texts) != 1:
        raise InputError(f"{len(texts)} texts given, but a memory model reads one")
    from atlas.jobs.memory.answer import predict_next

    return predict_next(asked.memory(), texts[0], progress)


def predict_file(asked: Asked, source: str, form: str | None = None) -> Any:  # noqa: ANN401
    """Answers of clients to the rows of a file, or of standard input (`-`).

    Returns:
        An `AnsweredRows` of `jobs.federation.batch`.

    Raises:
        InputError: It is no finished federation, or no row can be answered.
    """
    from atlas.data.questions import read_rows

    folder = find_run(asked.name, asked.parent)
    config = load_resolved(folder.config)
    if not isinstance(config, FederationConfig) or asked.arm is not None:
        raise InputError(
            f"--file: rows are answered by clients; a {config.kind} run reads one text"
        )
    from atlas.jobs.federation.batch import answer_rows

    return answer_rows(folder, read_rows(source, form), asked.client)


def evaluate(asked: Asked, file: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Scores of a client's model on a labelled file, or of a memory model on a text.

    Raises:
        InputError: There is no such model, or the file will not do.
    """
    if (found := asked.federation()) is not None:
        from atlas.jobs.federation.answer import evaluate_file

        return evaluate_file(*found, file)
    from atlas.jobs.memory.answer import score_file

    return score_file(asked.memory(), file, progress)

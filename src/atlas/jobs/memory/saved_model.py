"""The saved model that a verb is about: that of a memory run's arm, or a folder with a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from atlas.backbones.families import ATLAS
from atlas.config.load import load_resolved
from atlas.config.memory import MemoryConfig
from atlas.errors import InputError
from atlas.runs.folder import RunFolder


@dataclass(frozen=True)
class SavedModel:
    """Where a model is, and the arm and the run it comes from, if any."""

    place: Path
    arm: str | None = None
    run: RunFolder | None = None

    def check_text(self) -> None:
        """Refuse a model whose tokens are numbers of a game, and no text.

        Raises:
            InputError: They are none.
        """
        if self.run is not None and not (self.place / "tokenizer.json").is_file():
            config = load_resolved(self.run.config)
            if isinstance(config, MemoryConfig) and config.task.name == "recall":
                raise InputError(
                    f"{self.place}: trained on {config.task.name}, whose tokens are keys and "
                    "values and no text; it can be exported, but neither reads nor writes texts"
                )


def find_model(name: str, parent: Path, arm: str | None = None) -> SavedModel:
    """A model by its run, path or name, or by its own folder.

    Args:
        name: A run folder, the name of one under `parent`, or a folder with a saved model.
        parent: The folder that holds run folders.
        arm: Which of the run's models; None is its first.

    Raises:
        InputError: There is no such model.
    """
    for path in (Path(name), parent / name):
        if _has(path, "config.yaml"):
            return model_of_run(RunFolder(path), arm)
        if _has(path, "config.json"):
            return _model_in(path, arm)
    raise InputError(
        f"{name}: no such run or model here or under {parent}: a folder with config.yaml or "
        "config.json"
    )


def _has(folder: Path, name: str) -> bool:
    try:
        return (folder / name).is_file()
    except (OSError, ValueError):  # a name no file system takes is no model
        return False


def model_of_run(folder: RunFolder, arm: str | None) -> SavedModel:
    """The model of one arm of a finished memory run.

    Raises:
        InputError: It is no memory run, is not finished, or has no such arm.
    """
    config = load_resolved(folder.config)
    if not isinstance(config, MemoryConfig):
        raise InputError(
            f"{folder.path}: kind: {config.kind}; this needs a memory run, whose models can be "
            "used by themselves"
        )
    if arm is not None and arm not in config.arms:
        raise InputError(f"--arm {arm}: no such arm; arms: {', '.join(config.arms)}")
    place = folder.models / (config.arms[0] if arm is None else arm)
    if not (place / "config.json").is_file():
        raise InputError(f"{folder.path}: no models yet; go on with: atlas resume {folder.path}")
    return SavedModel(place, place.name, folder)


def _model_in(folder: Path, arm: str | None) -> SavedModel:
    """A folder with a model; one inside a run is that run's."""
    if arm is not None:
        raise InputError(f"--arm {arm}: {folder} is one model, not a run with arms")
    try:
        kind = json.loads((folder / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'}: cannot be read: {error}") from None
    if kind != ATLAS:
        raise InputError(f"{folder}: model_type: {kind!r}; allowed: {ATLAS}, a memory model")
    run = RunFolder(folder.absolute().parent.parent)
    within = folder.absolute().parent == run.models and run.config.is_file()
    return SavedModel(folder, folder.name if within else None, run if within else None)

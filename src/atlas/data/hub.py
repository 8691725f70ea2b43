"""Records from the data set hub, or from local copies in its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atlas.config.messages import show
from atlas.data.examples import Record
from atlas.errors import InputError
from atlas.federation.clients import Task

GLUE = ("sst2", "mrpc", "cola", "qnli", "rte", "mnli")
# Data set and configuration of the built-in tasks.
NAMES: dict[str, tuple[str, str | None]] = {
    **{task: ("nyu-mll/glue", task) for task in GLUE},
    "csqa": ("tau/commonsense_qa", None),
    "squad": ("rajpurkar/squad", None),
    "gsm8k": ("openai/gsm8k", "main"),
}
# The hub hides the test labels of these tasks; their validation split takes the place of the test.
_HIDDEN = frozenset((*GLUE, "csqa", "squad"))


def _csqa(record: Mapping[str, Any]) -> dict[str, object]:
    if "answerKey" not in record:
        return dict(record)
    choices = record["choices"]
    label = list(choices["label"]).index(record["answerKey"])
    return {"question": record["question"], "choices": list(choices["text"]), "label": label}


def _squad(record: Mapping[str, Any]) -> dict[str, object]:
    if "answers" not in record:
        return dict(record)
    return {**record, "answer": record["answers"]["text"][0]}


_RESHAPE: dict[str, Callable[[Mapping[str, Any]], dict[str, object]]] = {
    "csqa": _csqa,
    "squad": _squad,
}


@dataclass
class HubSource:
    """Data sets of the hub.

    Attributes:
        root: Local copies, `<root>/<task>`: saved by `save_to_disk`, or a folder of parquet,
            JSONL or CSV files named after their splits. None fetches from the hub.
        places: Folders or hub names of tasks that are elsewhere.
    """

    root: Path | None = None
    places: Mapping[str, Path] = field(default_factory=dict)
    _loaded: dict[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def records(self, task: Task, split: str) -> list[Record]:
        """All records of a split, in the fields of the task.

        Raises:
            InputError: If the library, the data set or the split is missing.
        """
        place, name = self._place(task)
        if task.name not in self._loaded:
            self._loaded[task.name] = _load(place, name)
        splits = self._loaded[task.name]
        chosen = _choose(task, split, tuple(splits), str(place))
        reshape = _RESHAPE.get(task.records, dict)
        records = []
        for number, row in enumerate(splits[chosen], start=1):
            where = f"{place}:{chosen}:{number}"
            try:
                records.append(Record(reshape(row), where))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise InputError(
                    f"{where}: not in the hub's format of {task.name!r} ({error!r}): {show(row)}"
                ) from error
        if not records:
            raise InputError(f"{place}: split {chosen!r} is empty")
        return records

    def _place(self, task: Task) -> tuple[Path | str, str | None]:
        """Folder, or name and configuration at the hub."""
        if task.name in self.places:
            place = self.places[task.name]
            return (place, None) if place.is_dir() else (place.as_posix(), None)
        if self.root is not None:
            folder = self.root / task.records
            if not folder.is_dir():
                raise InputError(
                    f"{folder}: no such folder; data.path must hold one folder per task, in the "
                    "hub's format"
                )
            return folder, None
        if task.records not in NAMES:
            raise InputError(
                f"tasks.{task.name}.path: not set; name the data set's folder or hub name there "
                f"(known by themselves: {', '.join(NAMES)})"
            )
        return NAMES[task.records]


def _load(place: Path | str, name: str | None) -> Mapping[str, Any]:
    """The splits of one data set, by name."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            "data.source: hub needs the datasets library: pip install atlas-personal[hub]"
        ) from error
    try:
        if isinstance(place, Path) and (place / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(str(place))
        else:
            loaded = datasets.load_dataset(str(place), name)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise InputError(
            f"{place}: cannot be loaded as a data set ({type(error).__name__}: {error}); "
            "data.path can name a folder of local copies"
        ) from error
    splits: Mapping[str, Any] = loaded
    return splits


def _choose(task: Task, split: str, there: tuple[str, ...], place: str) -> str:
    """The hub's name of a split."""
    wanted: tuple[str, ...] = ("train",)
    if split == "test":
        validation = ("validation_matched", "validation")
        wanted = (*validation, "test") if task.records in _HIDDEN else ("test", *validation)
    for name in wanted:
        if name in there:
            return name
    raise InputError(
        f"{place}: no split {' or '.join(wanted)} in it; splits there: {', '.join(there)}"
    )

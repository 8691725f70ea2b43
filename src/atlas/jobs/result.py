"""A run in Python: its tables, its pictures, and each client's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atlas.config.load import RunConfig, load_resolved
from atlas.config.messages import nearest
from atlas.config.reading import override_texts
from atlas.errors import InputError
from atlas.jobs.progress import shown
from atlas.runs.events import Observe, Progress, read_events
from atlas.runs.folder import RunFolder, read_summary

if TYPE_CHECKING:
    from pandas import DataFrame

    from atlas.federation.clients import Task
    from atlas.jobs.federation.client_models import ClientModels
    from atlas.jobs.memory.generate import Writer


@dataclass(frozen=True)
class Picture:
    """A picture of a run; a notebook shows it, `path` is the file."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not."""

    folder: RunFolder

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder.path

    @property
    def config(self) -> RunConfig:
        """The settings it runs with, complete."""
        return load_resolved(self.folder.config)

    @property
    def summary(self) -> dict[str, Any] | None:
        """Its results, as `--json` prints them; None before it is finished."""
        return read_summary(self.folder.summary) if self.folder.summary.exists() else None

    def events(self) -> list[dict[str, Any]]:
        """What happened, in order."""
        return read_events(self.folder.events) if self.folder.events.exists() else []

    def table(self) -> DataFrame:
        """Results of a finished run: a row for each client, or for each arm of a memory run.

        >>> import atlas
        >>> atlas.open_run("demo").table().columns[:5].tolist()
        ['task', 'metric', 'score', 'alone', 'gain']

        Raises:
            InputError: The run is not finished, or pandas is not installed.
        """
        from atlas.jobs.show import describe_run
        from atlas.report.read.rows import arm_rows, client_rows

        summary = self.summary
        if summary is None:
            raise InputError(f"{self.path}: not finished; go on with: run.resume()")
        if summary["kind"] != "federation":
            return _frame(arm_rows(summary)).set_index("arm")
        return _frame(client_rows(summary, describe_run(self.folder)["tasks"])).set_index("client")

    def rounds(self, by: Literal["round", "client"] = "round") -> DataFrame:
        """What every round came to, also of a run that is under way.

        Args:
            by: A row for each round, with means over clients; or for each client in each round.

        >>> import atlas
        >>> atlas.open_run("demo").rounds().index.tolist()
        [1, 2]
        >>> len(atlas.open_run("demo").rounds("client"))
        18
        """
        from atlas.report.read.rows import client_round_rows, round_rows

        if by not in ("round", "client"):
            raise InputError(f"rounds: {by!r} given; allowed: round, client")
        found = (round_rows if by == "round" else client_round_rows)(self.events())
        frame = _frame(found)
        return (
            frame.set_index("round" if by == "round" else ["round", "client"]) if found else frame
        )

    def weights(
        self, round: int | None = None, *, cohort: str | None = None, module: int | None = None
    ) -> DataFrame:
        """Who learned from whom: row k holds the shares of which client k's adapter was made.

        Args:
            round: Which round; None for the last.
            cohort: The backbone, where clients have several.
            module: Of runs that route, W of one module; None for the mean over all.

        >>> import atlas
        >>> weights = atlas.open_run("demo").weights(1)
        >>> weights.shape, weights.sum(axis=1).round(6).unique().tolist()
        ((9, 9), [1.0])

        Raises:
            InputError: There is no such W in the log.
        """
        from atlas.report.read.rows import mixing_weights

        clients, values = mixing_weights(self.events(), round, cohort, module)
        return _pandas().DataFrame(values, index=clients, columns=clients)

    def plot(self, name: str = "clients") -> Picture:
        """A picture of a finished run, such as `clients`, `affinity`, `mixing` or `ranks`.

        >>> import atlas
        >>> atlas.open_run("demo").plot("affinity").path.name
        'affinity.png'

        Raises:
            InputError: There is no such picture; names those that there are.
        """
        known = sorted(path.stem for path in self.folder.plots.glob("*.png"))
        if name in known:
            return Picture(self.folder.plots / f"{name}.png")
        guess = nearest(name, known)
        hint = f"did you mean {guess}? " if guess else ""
        there = ", ".join(known) or "none yet: they are drawn when a run ends"
        raise InputError(
            f"plot: no picture {name!r} in {self.folder.plots}; {hint}pictures: {there}"
        )

    def report(self, to: str | Path | None = None) -> Path:
        """Write its report, one HTML file that needs nothing else; as `atlas report`.

        Args:
            to: The file; None for `report.html` in its folder.

        Returns:
            The file.

        >>> import atlas
        >>> atlas.open_run("demo").report("demo.html").read_text("utf-8")[:15]
        '<!doctype html>'

        Raises:
            InputError: The file cannot be written.
        """
        from atlas.report.html.page import write_report

        return write_report([self.path], None if to is None else Path(to))

    @property
    def clients(self) -> list[str]:
        """Ids of a federation's clients, newcomers among them.

        Raises:
            InputError: They have no adapters yet.
        """
        from atlas.jobs.federation.client_models import client_names

        return client_names(self.folder)

    def client(self, name: str) -> RunClient:
        """One client of a finished federation, with its model.

        Raises:
            InputError: There is no such client.
        """
        if name not in self.clients:
            raise InputError(f"client {name!r}: no such client; clients: {', '.join(self.clients)}")
        return RunClient(self, name)

    def export_all(self, to: str | Path) -> dict[str, Any]:
        """All clients in one folder for servers of many adapters, as `atlas export --all`."""
        from atlas.jobs.federation.export_all import export_all

        return export_all(self.folder, Path(to))

    def resume(
        self,
        *overrides: str,
        watch: Observe | None = None,
        progress: Progress | None = None,
        show: bool | None = None,
        **settings: object,
    ) -> Run:
        """Go on from the last saved round; a finished run only to a later end, `rounds=20`."""
        from atlas.jobs.runner import resume_run

        texts = [*overrides, *override_texts(settings)]
        with shown(show, watch, progress) as (seen, done):
            return Run(resume_run(self.path, seen, done, texts).folder)

    def generate(
        self,
        arm: str | None = None,
        *,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = 0.95,
        seed: int = 0,
    ) -> Writer:
        """A writer with a memory run's model, as `atlas generate`; `answer` goes on from a prompt.

        Args:
            arm: Which of its models; None is the first.
            temperature: 0 is always the likeliest token.
            top_k: Choose among so many of the likeliest.
            top_p: Choose among the likeliest of this share together.
            seed: Every draw follows it.

        Raises:
            InputError: It is no finished memory run, or its tokens are no text.
        """
        from atlas.jobs.memory.generate import open_writer, sampling
        from atlas.jobs.memory.saved_model import model_of_run

        how = sampling(temperature, top_k, top_p, seed)
        return open_writer(model_of_run(self.folder, arm), how)


@dataclass(frozen=True)
class RunClient:
    """One client of a finished federation."""

    run: Run
    id: str

    @cached_property
    def _models(self) -> ClientModels:
        from atlas.jobs.federation.client_models import open_clients

        return open_clients(self.run.folder, [self.id])

    @property
    def task(self) -> Task:
        """What its model was trained for: text fields, labels, metric."""
        return self._models.tasks[self.id]

    @property
    def adapter(self) -> Path:
        """Its adapter, a plain PEFT folder."""
        return self.run.folder.safe_child(self.id)

    @property
    def scores(self) -> Mapping[str, Any]:
        """Its row of `Run.table`."""
        row: Mapping[str, Any] = self.run.table().loc[self.id].to_dict()
        return row

    def model(self) -> Any:  # noqa: ANN401 - a PeftModel, not typed
        """Its model as a plain PeftModel with weights of its own, in eval mode.

        >>> import atlas
        >>> model = atlas.open_run("demo").client("order-1").model()
        >>> type(model).__name__
        'PeftModelForSequenceClassification'
        """
        from atlas.jobs.federation.answer import peft_model

        return peft_model(self.run.folder, self.id)

    def predict(self, texts: str | Sequence[str | Sequence[str]]) -> list[dict[str, Any]]:
        """Its answers, many texts in one pass.

        Args:
            texts: One text, or several; where its task reads two, each is a pair of them.

        Returns:
            Of each text a dictionary with `answer` and, of labels, `probabilities`.

        >>> import atlas
        >>> client = atlas.open_run("demo").client("sentiment-1")
        >>> [answer["answer"] in client.task.labels for answer in client.predict(["Good.", "Bad."])]
        [True, True]

        Raises:
            InputError: A text is empty, or there are too many or too few for the task.
        """
        from atlas.jobs.federation.answer import predict_many

        listed = [texts] if isinstance(texts, str) else texts
        given = [(text,) if isinstance(text, str) else tuple(text) for text in listed]
        return predict_many(self._models, self.id, given)

    def export(self, to: str | Path, *, merged: bool = False) -> Path:
        """Write its adapter, or its whole merged model, to a new folder, as `atlas export`."""
        from atlas.jobs.federation.answer import export_client, export_merged

        place = Path(to)
        (export_merged if merged else export_client)(self.run.folder, self.id, place)
        return place


def _pandas() -> Any:  # noqa: ANN401 - a module
    try:
        import pandas
    except ImportError:
        raise InputError(
            "tables in Python need pandas: pip install pandas (it also comes with "
            "atlas-personal[hub]); run.summary and run.events() do without"
        ) from None
    return pandas


def _frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    found: DataFrame = _pandas().DataFrame(list(rows))
    return found

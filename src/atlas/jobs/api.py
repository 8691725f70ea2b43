"""The front door in Python: the verbs of the command line, by the same names and with its results.

`atlas.run("demo", strategy="atlas", rounds=3)` is `atlas run demo strategy=atlas rounds=3`.
Settings are keywords, blocks of them dictionaries (`train={"lr": 1e-3}`), or texts as on the
command line (`"train.lr=1e-3"`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.config.load import RunConfig, load_config, load_resolved
from atlas.config.reading import override_texts
from atlas.jobs.show import find_run
from atlas.runs.events import Observe, Progress, read_events
from atlas.runs.folder import RunFolder, read_summary

if TYPE_CHECKING:
    from atlas.jobs.memory.generate import Writer


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

    def resume(
        self,
        *overrides: str,
        watch: Observe | None = None,
        progress: Progress | None = None,
        **settings: object,
    ) -> Run:
        """Go on from the last saved round; a finished run only to a later end, `rounds=20`."""
        from atlas.jobs.runner import resume_run

        texts = [*overrides, *override_texts(settings)]
        return Run(resume_run(self.path, watch, progress, texts).folder)

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


def run(
    source: str | Path = "demo",
    *overrides: str,
    out: str | Path = "runs",
    watch: Observe | None = None,
    progress: Progress | None = None,
    **settings: object,
) -> Run:
    """Run any job: a federation or a memory model, by the kind of its settings.

    Args:
        source: A preset's name or a YAML file.
        *overrides: Settings as texts, `key=value`.
        out: Folder that holds run folders.
        watch: Receives events as they happen.
        progress: Receives (what, done, total) during long work.
        **settings: Settings by name.

    Returns:
        The run. Its summary is None if Ctrl-C stopped it; `resume` goes on.

    Raises:
        InputError: If a setting, or anything it names, will not do.
    """
    from atlas.jobs.runner import start_run

    config = load_config(str(source), [*overrides, *override_texts(settings)])
    return Run(start_run(config, Path(out), watch, progress).folder)


def plan(
    source: str | Path = "demo",
    *overrides: str,
    watch: Observe | None = None,
    progress: Progress | None = None,
    **settings: object,
) -> dict[str, Any]:
    """Who would take part, who is like whom, and which ranks; no training. As `atlas plan --json`.

    Arguments as in `run`.
    """
    from atlas.jobs.federation.plan import plan_run

    return plan_run(str(source), [*overrides, *override_texts(settings)], watch, progress)


def compare(  # noqa: PLR0913
    source: str | Path = "demo",
    *overrides: str,
    arm: Sequence[str] = (),
    ceiling: bool = True,
    workers: int = 1,
    out: str | Path = "runs",
    watch: Observe | None = None,
    progress: Progress | None = None,
    **settings: object,
) -> dict[str, Any] | None:
    """Run every combination of values and arms, and compare them. As `atlas compare --json`.

    Args:
        source: A preset's name or a YAML file.
        *overrides: As on the command line, `key=a,b,c` for each key compared.
        arm: Bundles of settings, `"label: key=value key=value"`.
        ceiling: Whether the ceiling, `pooled`, is also run.
        workers: Processes at a time.
        out: Folder that holds run folders; what is finished there is not run again.
        watch: Receives the events of every run in this process.
        progress: Receives (what, done, total) during long work.
        **settings: Settings by name; a list is one run with each of its values.

    Returns:
        The table as plain values; None if Ctrl-C stopped it, after which the same call goes on.
    """
    from atlas.jobs.study.cases import plan_study
    from atlas.jobs.study.compare import run_study
    from atlas.jobs.study.workers import finish_apart

    texts = [*overrides, *override_texts(settings, lists="compared")]
    study, whole = plan_study(str(source), texts, list(arm), ceiling=ceiling), True
    if workers > 1:
        study, whole = finish_apart(study, Path(out), workers, lambda number, news: None)
    return run_study(study, Path(out), None, watch, progress) if whole else None


def open_run(name: str | Path, out: str | Path = "runs") -> Run:
    """A run by its path, or by its name under `out`.

    Raises:
        InputError: If there is no such run.
    """
    return Run(find_run(str(name), Path(out)))

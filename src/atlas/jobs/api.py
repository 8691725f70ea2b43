"""The front door in Python: the verbs of the command line, by the same names and with its results.

`atlas.run("demo", strategy="atlas", rounds=3)` is `atlas run demo strategy=atlas rounds=3`.
Settings are keywords, blocks of them dictionaries (`train={"lr": 1e-3}`), or texts as on the
command line (`"train.lr=1e-3"`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.config.load import load_config
from atlas.config.reading import override_texts
from atlas.jobs.progress import shown
from atlas.jobs.result import Run, RunClient
from atlas.jobs.show import find_run
from atlas.runs.events import Observe, Progress

__all__ = ["Run", "RunClient", "compare", "federate", "open_run", "plan", "run"]


def run(  # noqa: PLR0913
    source: str | Path = "demo",
    *overrides: str,
    out: str | Path = "runs",
    watch: Observe | None = None,
    progress: Progress | None = None,
    show: bool | None = None,
    **settings: object,
) -> Run:
    """Run any job: a federation or a memory model, by the kind of its settings.

    Args:
        source: A preset's name or a YAML file.
        *overrides: Settings as texts, `key=value`.
        out: Folder that holds run folders.
        watch: Receives events as they happen.
        progress: Receives (what, done, total) during long work.
        show: Whether to print a line for each round; None: in notebooks, where nobody watches.
        **settings: Settings by name.

    Returns:
        The run. Its summary is None if Ctrl-C stopped it; `resume` goes on.

    Raises:
        InputError: If a setting, or anything it names, will not do.

    >>> import atlas
    >>> tiny = {"backbone": {"name": "tiny"}, "data": {"train": 8, "validation": 8, "test": 8}}
    >>> run = atlas.run("demo", "ranks.method=fixed", strategy="fedavg", rounds=1, **tiny)
    >>> sorted(run.summary["score"]["clients"])[:2]
    ['order-1', 'order-2']
    """
    from atlas.jobs.runner import start_run

    config = load_config(str(source), [*overrides, *override_texts(settings)])
    with shown(show, watch, progress) as (seen, done):
        return Run(start_run(config, Path(out), seen, done).folder)


def federate(  # noqa: PLR0913
    clients: Mapping[str, object],
    *overrides: str,
    task: str | Mapping[str, str] | None = None,
    backbone: str | Mapping[str, object] = "minilm",
    strategy: str = "atlas",
    out: str | Path = "runs",
    watch: Observe | None = None,
    progress: Progress | None = None,
    show: bool | None = None,
    **settings: Any,  # noqa: ANN401 - settings of any kind
) -> Run:
    """Run a federation of data that lies in memory.

    What each client is given is written into the run's own folder as JSONL, and from there it is
    read, split, checked and counted as clients' own files are; the run can be resumed from another
    process, and its folder can be moved.

    Args:
        clients: By id, each client's data: `(texts, labels)`, a list of records, a pandas
            DataFrame or a `datasets.Dataset`. Where a task reads two texts, `texts` are pairs.
        *overrides: Settings as texts, `key=value`.
        task: The task's name, or that of each client by its id. One that is built in, or that the
            setting `tasks` describes, reads the columns it names. Any other is found out from the
            data: a column `label`, and one or two of text.
        backbone: The model's name, or the block of its settings.
        strategy: Who learns from whom.
        out: Folder that holds run folders.
        watch: Receives events as they happen.
        progress: Receives (what, done, total) during long work.
        show: Whether to print a line for each round; None: in notebooks, where nobody watches.
        **settings: Settings by name, among them `name`, that of the run's folder.

    Returns:
        The run, as `run` gives it.

    Raises:
        InputError: If data or settings will not do; rows are named by client and number.

    >>> import atlas
    >>> shops = {
    ...     shop: ([f"{word} tea {n}" for n in range(10) for word in ("good", "bad")], [1, 0] * 10)
    ...     for shop in ("shop-1", "shop-2")
    ... }
    >>> run = atlas.federate(shops, task="mood", backbone="tiny", strategy="fedavg", rounds=1)
    >>> run.clients, run.client("shop-1").task.labels
    (['shop-1', 'shop-2'], ('0', '1'))
    """
    from atlas.jobs.federation.from_memory import run_from_memory

    own = {"name": backbone} if isinstance(backbone, str) else dict(backbone)
    given = {"strategy": strategy, "backbone": own, **settings}
    with shown(show, watch, progress) as (seen, done):
        made = run_from_memory(clients, task, given, overrides, Path(out), seen, done)
    return Run(made.folder)


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

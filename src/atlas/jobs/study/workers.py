"""Runs of a study in several processes at a time.

Cores share the training of a run, but plans, mixtures and the ends of rounds keep one of them busy;
runs side by side leave none idle. A worker takes whole seeds, since runs of one seed read the same
texts and share what the frozen blocks make of them.

A worker is this module run as a program: it finishes the runs it reads from standard input, one
after another, and says on standard output, a JSON object a line, which run it begins, ends, was
stopped in or could not do, and each round. A parent that is gone breaks that pipe, and so ends the
worker at its next round.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

from atlas.config.grid import Case
from atlas.config.load import KINDS, RunConfig
from atlas.config.plan import Settings
from atlas.errors import InputError
from atlas.jobs.study.cases import Study, folder_name
from atlas.jobs.study.compare import finish_run
from atlas.runs.process import stop_after_round, usable_cores

Job = tuple[int, Case, RunConfig]
Kind = TypeVar("Kind", bound=Settings)
Say = Callable[[int, str], None]
"""Told the number of a run and what is new of it."""
BAD_INPUT, FAILED = 2, 1
"""Exit codes of a worker, as those of the command line."""


def with_threads(study: Study, threads: int) -> Study:
    """The same study with so many threads a run, where its settings leave that open."""

    def narrowed(config: Kind) -> Kind:
        own: int | None = getattr(config, "threads", None)
        return config.model_copy(update={"threads": own or threads})

    return replace(
        study,
        configs=tuple(narrowed(config) for config in study.configs),
        ceilings={seed: narrowed(config) for seed, config in study.ceilings.items()},
    )


def deal(study: Study, workers: int) -> list[list[Job]]:
    """Who runs what: all runs of a seed, then of the next; the seeds are dealt in turn.

    A study that is stopped early so has whole seeds, which can be compared.
    """
    jobs = [(number, *job) for number, job in enumerate(study.jobs(), start=1)]
    seeds = sorted({config.seed for _, _, config in jobs})
    shares: list[list[Job]] = [[] for _ in range(min(workers, len(seeds)))]
    for job in sorted(jobs, key=lambda job: (job[2].seed, job[0])):
        shares[seeds.index(job[2].seed) % len(shares)].append(job)
    return shares


def run_apart(study: Study, folder: Path, workers: int, say: Say) -> bool:
    """Finish the study's runs in `workers` processes; False if they were stopped before.

    Asked to stop, by Ctrl-C or SIGTERM, it asks the workers, which save their round and end.

    Raises:
        InputError: If a worker was given settings or data that will not do, in its own words.
        RuntimeError: If a worker failed; what the others finished is kept.
    """
    said: queue.Queue[dict[str, Any] | None] = queue.Queue()
    started: list[subprocess.Popen[str]] = []
    stopped = False
    failure: Exception | None = None
    with stop_after_round(partial(_ask_to_stop, started)) as asked:
        try:
            for share in deal(study, workers):
                if not asked.requested:
                    started.append(_start(share, folder, said))
            if asked.requested:
                _ask_to_stop(started)  # also whom the signal met before it was in the list
            running = len(started)
            while running:
                news = said.get()
                if news is None:
                    running -= 1
                    continue
                stopped |= news["said"] == "stopped"
                failure = failure or _failure(news)
                say(news["number"], news["said"])
        finally:
            codes = [process.wait() for process in started]
    # Between two runs a worker has nothing to save, and the signal itself ends it.
    if any(codes) and not asked.requested:
        if failure is not None:
            raise failure
        raise RuntimeError(f"a worker ended with exit code {next(filter(None, codes))}")
    return not (asked.requested or stopped or any(codes))


def _failure(news: Mapping[str, Any]) -> Exception | None:
    """What to raise for a run that its worker could not do, as if it had been done here."""
    if "failed" not in news:
        return None
    return (InputError if news["failed"] == BAD_INPUT else RuntimeError)(news["message"])


def finish_apart(study: Study, parent: Path, workers: int, say: Say) -> tuple[Study, bool]:
    """Finish a study's runs in several processes that share the cores.

    Returns:
        The study as it is run, with so many threads a run, and whether all runs are done.
    """
    study = with_threads(study, max(1, usable_cores() // workers))
    return study, run_apart(study, parent / study.name, workers, say)


def _ask_to_stop(workers: Sequence[subprocess.Popen[str]]) -> None:
    for process in workers:
        process.terminate()


def _start(
    share: Sequence[Job], folder: Path, said: queue.Queue[dict[str, Any] | None]
) -> subprocess.Popen[str]:
    process = subprocess.Popen(  # noqa: S603 - this very interpreter
        [sys.executable, "-m", "atlas.jobs.study.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    jobs = [
        {
            "number": number,
            "place": str(folder / folder_name(case.keys)),
            "config": config.model_dump(mode="json"),
        }
        for number, case, config in share
    ]
    # One that was stopped before it could read has an exit code that says so.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(jobs))
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    threading.Thread(target=_listen, args=(process.stdout, said), daemon=True).start()
    return process


def _listen(lines: IO[str], said: queue.Queue[dict[str, Any] | None]) -> None:
    try:
        for line in lines:
            # A library may print there too, and a worker that is killed may leave half a line.
            with contextlib.suppress(ValueError):
                news = json.loads(line)
                if isinstance(news, dict) and "said" in news:
                    said.put(news)
    finally:
        said.put(None)  # or the parent would wait for ever


def main() -> None:
    """Do what standard input says; the exit code is 2 for bad input, 1 for a run that failed."""
    for job in json.loads(sys.stdin.read()):
        say = partial(_say, job["number"])
        say("began")
        kind = KINDS[job["config"]["kind"]]
        config = kind.model_validate_json(json.dumps(job["config"]))
        try:
            finished = finish_run(config, Path(job["place"]), partial(_watch, say), None)
        except InputError as error:
            _give_up(job["number"], str(error), BAD_INPUT)
        except (RuntimeError, OSError, MemoryError) as error:
            _give_up(job["number"], f"{type(error).__name__}: {error}", FAILED)
        if finished.summary is not None:
            say("ended")
        if finished.summary is None or finished.asked:
            say("stopped")
            return


def _watch(say: partial[None], event: str, fields: Mapping[str, object]) -> None:
    if event == "round_finished":
        say(f"round {fields['round']}")


def _give_up(number: int, message: str, code: int) -> NoReturn:
    _say(number, f"failed: {message}", failed=code, message=message)
    sys.exit(code)


def _say(number: int, what: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"number": number, "said": what, **more}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

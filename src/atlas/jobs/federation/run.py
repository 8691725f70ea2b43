"""The steps of a federation run: plan, rounds, what is saved of them, and the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from atlas.build.federation import Federation, build_federation
from atlas.config.federation import FederationConfig
from atlas.errors import InputError
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.exchange.transport import Failure
from atlas.federation.mixing.feedback import empty_residual
from atlas.federation.mixing.parts import parts_of
from atlas.federation.rounds import run_rounds
from atlas.federation.routing.masks import RouteState
from atlas.federation.state.references import References
from atlas.jobs.federation.finish import finish, save_state
from atlas.jobs.federation.own_data import tell_data
from atlas.jobs.federation.plan import plan_again, plan_start
from atlas.jobs.job import Snapshot
from atlas.ops.graph.shrink import read_deviation
from atlas.runs.checkpoint import Checkpoint, SavedTensors
from atlas.runs.events import Observe, Progress
from atlas.runs.folder import RunFolder
from atlas.runs.ranks import ALONE, Ranks

_REFERENCE = "|reference|"
"""Begins the name of what clients' replies are changes of, where they are compressed."""
_SIGNATURE = "|signature|"
"""Begins the name of a client's signature; names of adapters begin with their backbone's."""
_RESIDUAL = "|residual|"
"""Begins the name of what was cut from mixtures, followed by the backbone's."""


@dataclass(frozen=True)
class SavedClients(Mapping[str, bytes]):
    """What every client saves of itself, asked for when it is written."""

    federation: Federation

    def __iter__(self) -> Iterator[str]:
        return iter(self.federation.holders)

    def __len__(self) -> int:
        return len(self.federation.holders)

    def __getitem__(self, client: str) -> bytes:
        return save_state(self.federation, client)


@dataclass(frozen=True)
class FederationJob:
    """A federation as `runner` runs it."""

    federation: Federation

    @classmethod
    def open(cls, config: FederationConfig, progress: Progress | None) -> FederationJob:
        """Load data and backbones.

        Raises:
            InputError: If anything the settings name cannot be had.
        """
        return cls(build_federation(config, progress))

    @property
    def ranks(self) -> Ranks:
        """It is made by one process."""
        return ALONE

    @property
    def identity(self) -> dict[str, str]:
        """Hashes of all examples and of every backbone's weights."""
        return self.federation.identity

    @property
    def round(self) -> int:
        """The last round done."""
        return self.federation.state.round

    def facts(self) -> dict[str, object]:
        """Strategy, clients and cohorts."""
        plan, state = self.federation.plan, self.federation.state
        holders = self.federation.holders.values()
        return {
            "rounds": plan.rounds,
            "after": state.round,
            "strategy": plan.strategy.name,
            "tasks": {m.id: m.task.name for holder in holders for m in holder.members},
            "cohorts": {
                name: {"clients": list(cohort.clients), "modules": list(cohort.layout.modules)}
                for name, cohort in state.cohorts.items()
            },
        }

    def begin(self, folder: RunFolder, observe: Observe) -> None:
        """Tell what data there is, make the plan and keep it."""
        tell_data(self.federation, observe)
        if self.federation.alignment is not None:
            observe("aligned", self.federation.alignment)
        plan_start(self.federation, folder, observe)

    def run_rounds(self, observe: Observe, after_round: Callable[[], bool]) -> bool:
        """The rounds that are left."""
        own = self.federation
        return run_rounds(own.plan, own.state, own.engine, observe, lambda state: after_round())

    def snapshot(self, seconds: float) -> Snapshot:
        """The server's adapters and every client's own state."""
        state = self.federation.state
        tensors = {
            f"{backbone}|{name}": value
            for backbone, cohort in state.cohorts.items()
            for name, value in cohort.tensors.items()
        }
        tensors |= {
            f"{_RESIDUAL}{backbone}|{name}": value
            for backbone, cohort in state.residuals.items()
            for name, value in cohort.tensors.items()
        }
        tensors |= {
            f"{_REFERENCE}{backbone}|{name}": value
            for backbone, cohort in state.references.cohorts.items()
            for name, value in cohort.tensors.items()
        }
        tensors |= {_SIGNATURE + client: value for client, value in state.signatures.items()}
        meta = {
            "seconds": seconds,
            "examples": state.examples,
            "bytes": state.ledger.totals,
            "split": state.ledger.split,
            "refused": state.refused,
            "failures": state.failures,
            "routes": asdict(state.routes),
            "deviations": {client: asdict(one) for client, one in state.deviations.items()},
            "estimates": state.steps,
        }
        return Snapshot(tensors, meta, SavedClients(self.federation), self._release)

    def _release(self) -> None:
        state = self.federation.state
        kept = (state.cohorts, state.residuals, state.references.cohorts)
        for cohort in (one for cohorts in kept for one in cohorts.values()):
            cohort.release()

    def restore(self, folder: RunFolder, saved: Checkpoint) -> float:
        """Put a saved round back; returns the seconds the run had taken by then."""
        # The plan first: it decides how large the adapters are that are put back.
        plan_again(self.federation, folder)
        state, meta = self.federation.state, saved.meta
        found: Any = meta
        try:
            for backbone, cohort in state.cohorts.items():
                _put_back(cohort, backbone, saved.tensors)
                if any(name.startswith(f"{_RESIDUAL}{backbone}|") for name in saved.tensors):
                    residual = empty_residual(cohort, self.federation.plan.mixing)
                    _put_back(residual, _RESIDUAL + backbone, saved.tensors)
                    state.residuals[backbone] = residual
            if self.federation.plan.wire.form != "plain":
                state.references = References.at_start(state.cohorts)
            for backbone, cohort in state.references.cohorts.items():
                _put_back(cohort, _REFERENCE + backbone, saved.tensors)
            state.signatures = {
                client: saved.tensors[_SIGNATURE + client]
                for client in self.federation.holders
                if _SIGNATURE + client in saved.tensors
            }
            state.round = saved.number
            state.examples = dict(found["examples"])
            state.ledger.totals = dict(found["bytes"])
            state.ledger.split |= found["split"]
            state.refused, state.failures = list(found["refused"]), list(found["failures"])
            state.routes = RouteState(**found.get("routes", {}))
            state.deviations = {
                client: read_deviation(one) for client, one in found.get("deviations", {}).items()
            }
            state.steps = dict(found.get("estimates", {}))
            seconds = float(found["seconds"])
            for some in parts_of(state.cohorts, list(self.federation.holders)):
                self._load({client: saved.blobs[client] for client in some}, saved.number)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"round {saved.number} does not fit this run: {error}") from error
        return seconds

    def _load(self, blobs: Mapping[str, bytes], number: int) -> None:
        """Give some clients back what they saved."""
        for client, reply in sorted(self.federation.engine.ask("load", blobs).items()):
            if isinstance(reply, Failure):
                raise InputError(f"round {number}, client {client}: {reply.reason}")

    def finish(self, folder: RunFolder, observe: Observe, seconds: float) -> dict[str, Any]:
        """Test, export, summary."""
        return finish(self.federation, folder, observe, seconds)

    def draw(self, folder: RunFolder) -> None:
        """Pictures of the run."""
        # Late: training can use the memory that the library for drawing takes.
        from atlas.report.figures.run import plot_run

        plot_run(folder)


ROWS_AT_ONCE = 64
"""Clients whose rows of a saved tensor are in memory at a time."""


def _put_back(cohort: Cohort, backbone: str, saved: SavedTensors) -> None:
    """Write saved adapters into a cohort that nobody has used yet, some rows at a time.

    Raises:
        ValueError: If their sizes are others.
    """
    for name, value in cohort.tensors.items():
        key = f"{backbone}|{name}"
        if saved.shapes[key] != tuple(value.shape):
            raise ValueError(f"a tensor has shape {saved.shapes[key]}, not {tuple(value.shape)}")
        for start in range(0, len(value), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            rows = saved.rows(key, some)
            if rows.dtype != value.dtype:
                raise ValueError(f"a tensor is of {rows.dtype}, not {value.dtype}")
            value[some] = rows.to(value.device)
            cohort.release()

"""Training alone is done once per seed of a study and told to every run."""

import pytest

from atlas.config.load import load_config
from atlas.jobs.runner import start_run
from atlas.jobs.study.cases import plan_study, share_shadows, solo_key
from atlas.jobs.study.compare import run_study

TINY = [
    "backbone.name=tiny", "rounds=2", "threads=1", "data.train=16", "data.validation=8",
    "data.test=40", "data.clients_per_task=2", "train.lr=0.05", "ranks.method=fixed",
]  # fmt: skip


def configs(*overrides):
    return [load_config("demo", [*TINY, *some]) for some in overrides]


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        # atlas needs its shadow anyway.
        ([["strategy=fedavg"], ["strategy=atlas"]], ["needed", "needed"]),
        # local is training alone.
        ([["strategy=fedavg"], ["strategy=local"]], ["needed", "needed"]),
        # Somebody has to: the first, once per seed.
        ([["strategy=fedavg"], ["strategy=oracle"]], [True, "needed"]),
        ([["strategy=fedavg", "seed=1"], ["strategy=oracle"]], [True, True]),
        ([["strategy=fedavg", "keep_margin=2"], ["strategy=oracle"]], [True, "needed"]),
        # Other training makes another shadow.
        ([["strategy=fedavg"], ["strategy=local", "train.lr=0.1"]], [True, "needed"]),
        # Nobody asked.
        ([["strategy=fedavg", "alone=false"], ["strategy=local"]], [False, "needed"]),
    ],
)
def test_a_shadow_is_trained_where_it_is_needed_or_once(runs, wanted):
    assert [config.alone for config in share_shadows(configs(*runs))] == wanted


def test_planned_ranks_make_the_shadow_depend_on_the_plan():
    plain = configs(["clusters.method=one"], ["clusters.method=kmeans"])
    assert solo_key(plain[0]) == solo_key(plain[1])
    ranked = configs(*(["ranks.method=uniform", f"clusters.method={m}"] for m in ("one", "kmeans")))
    assert solo_key(ranked[0]) != solo_key(ranked[1])


@pytest.mark.parametrize("donor", ["local", "atlas"])
def test_every_run_is_told_what_it_would_have_found_itself(donor, tmp_path):
    study = plan_study("demo", [*TINY, f"strategy={donor},fedavg", "seed=0"], ceiling=False)
    result = run_study(study, tmp_path / "study")
    own = start_run(configs(["strategy=fedavg"])[0], tmp_path / "own").summary
    gains = {c: own["score"]["clients"][c] - own["alone"]["clients"][c] for c in own["metrics"]}
    assert result["clients"]["strategy=fedavg"]["gain"] == pytest.approx(gains)
    assert any(gains.values())
    assert result["alone"]["mean"] == pytest.approx(own["alone"]["mean"])

"""A padded, stacked cohort trains as separate adapters under torch's own AdamW would."""

import copy
from dataclasses import replace

import pytest
import torch

from atlas.backbones.load import load_backbone
from atlas.config.training import EarlyStopSettings, TrainSettings
from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.adapters.cohort import initial_cohort
from atlas.federation.batching.forward import Model, stack_cohorts
from atlas.federation.batching.prefix_cache import PrefixCache
from atlas.federation.batching.store import ExampleStore
from atlas.federation.training.loop import Clock, Course, Lesson, fit, plan_batches
from tests.helpers import make_client, make_task, padding_is_zero

CLOCK = Clock(seed=5, round=2, rounds=4)


def make_model(holds="inputs"):
    backbone = load_backbone("tiny", dtype=torch.float64)
    first = backbone.depth - 2
    names, widths = [], []
    for block in range(first, backbone.depth):
        for name in backbone.select(block, ["query", "value", "down"]):
            linear = backbone.linears(block)[name]
            names.append(name)
            widths.append((linear.in_features, linear.out_features))
    layout = Layout("tiny", tuple(names), tuple(widths), backbone.head_layers, 16.0)
    return Model(backbone, layout, first, PrefixCache(backbone, first, 2**30, "exact", holds))


class Twin:
    """One client's adapter, trained with nothing stacked, padded or cached."""

    def __init__(self, model, adapter, member, client, weigh="examples"):
        self.model, self.client, self.member, self.weigh = model, client, member, weigh
        self.values = {k: v.clone().requires_grad_() for k, v in adapter.items()}
        self.scale = dict(
            zip(model.layout.modules, [16.0 / rank for rank in member.ranks], strict=True)
        )

    def loss(self, examples, part=None):
        backbone = self.model.backbone
        inputs = backbone.tokenize(self.client.task, examples, 64)
        handles = []
        for block in range(backbone.depth):
            for name, linear in backbone.linears(block).items():
                if name in self.scale:
                    handles.append(linear.register_forward_hook(self.hook(name)))
        hidden = backbone.embed(inputs)
        context = backbone.context(hidden, inputs.mask)
        for block in range(backbone.depth):
            hidden = backbone.block(block, hidden, context)
        for handle in handles:
            handle.remove()
        x = backbone.features(hidden, inputs.mask)
        for layer in self.model.layout.head:
            x = x @ self.values[f"head/{layer.name}.weight"].T
            x = x + self.values[f"head/{layer.name}.bias"]
        labels = torch.tensor([example.label for example in examples])
        losses = torch.nn.functional.cross_entropy(x, labels, reduction="none")
        return sum(
            loss * self.counts(int(label), part or self.client.train)
            for loss, label in zip(losses, labels, strict=True)
        ) / len(examples)

    def counts(self, label, part):
        """What an example of that label counts: each class of the part weighs as much in all."""
        if self.weigh == "examples" or self.client.task.metric == "accuracy":
            return 1.0
        have = [example.label for example in part]
        return len(have) / (len(set(have)) * have.count(label))

    def hook(self, name):
        def add(module, args, output):
            low = args[0] @ self.values[f"lora_a/{name}"].T
            return output + self.scale[name] * (low @ self.values[f"lora_b/{name}"].T)

        return add

    def train(self, settings, offset):
        heads = [value for name, value in self.values.items() if name.startswith("head/")]
        others = [value for name, value in self.values.items() if not name.startswith("head/")]
        optimiser = torch.optim.AdamW(
            [{"params": others}, {"params": heads}], weight_decay=settings.weight_decay
        )
        rows = torch.arange(len(self.client.train)).numpy() + offset
        lesson = Lesson(self.client.id, rows, rows[:0])
        plan = plan_batches(lesson, settings, CLOCK)
        total = sum(len(epoch) for epoch in plan)
        step, best, waited, kept, clipped = 0, float("inf"), 0, None, 0
        for epoch in plan:
            for batch in epoch:
                progress = (CLOCK.round - 1 + step / total) / CLOCK.rounds
                rate = settings.lr * settings.round_decay ** (CLOCK.round - 1) * (1 - progress)
                optimiser.param_groups[0]["lr"] = rate
                optimiser.param_groups[1]["lr"] = rate * settings.head_lr / settings.lr
                optimiser.zero_grad()
                self.loss([self.client.train[i - offset] for i in batch]).backward()
                norm = torch.nn.utils.clip_grad_norm_(self.values.values(), settings.clip)
                clipped += int(norm > settings.clip)
                optimiser.step()
                step += 1
            if settings.early_stop:
                with torch.no_grad():
                    loss = float(self.loss(self.client.validation, self.client.validation))
                if loss < best:
                    best, waited, kept = loss, 0, copy.deepcopy(self.values)
                else:
                    waited += 1
                    if waited >= settings.early_stop.patience:
                        break
        return (kept or self.values), step, clipped


def run_both(settings, sizes, holds="inputs"):
    model = make_model(holds)
    fair = {"metric": "balanced_accuracy"}
    tasks = [make_task(), replace(make_task("shape", ("a", "b", "c")), **fair)]
    tasks.append(replace(make_task(), metric="matthews"))
    clients = [make_client(f"c{i}", tasks[i], train=size, seed=i) for i, size in enumerate(sizes)]
    ranks = [(1, 2, 3, 4, 5, 6), (8,) * 6, (3,) * 6]
    members = [Member(c.id, r, c.task.label_set) for c, r in zip(clients, ranks, strict=True)]
    cohort = initial_cohort(model.layout, members, seed=7, dtype=torch.float64)
    parts = {}
    for client in clients:
        parts[f"{client.id}/train"] = (client.task, client.train)
        parts[f"{client.id}/validation"] = (client.task, client.validation)
    store = ExampleStore(model, parts, 64, weigh=settings.weigh)
    lessons = [
        Lesson(c.id, store.rows(f"{c.id}/train"), store.rows(f"{c.id}/validation")) for c in clients
    ]
    fitted = fit(store, Course(stack_cohorts([cohort]), lessons), settings, CLOCK)
    result = cohort.__class__(cohort.layout, cohort.members, fitted.stack.tensors)
    twins = []
    for client, member, lesson in zip(clients, members, lessons, strict=True):
        twin = Twin(model, cohort.take(client.id), member, client, settings.weigh)
        twins.append(twin.train(settings, int(lesson.train[0])))
    return cohort, result, fitted, twins


def check_equal(result, twins):
    for member, (values, _, _) in zip(result.members, twins, strict=True):
        stacked = result.take(member.id)
        assert set(stacked) == set(values)
        for name, value in values.items():
            assert torch.allclose(stacked[name], value, atol=1e-10, rtol=0), name


@pytest.mark.parametrize("holds", ["inputs", "projections"])
def test_stacked_cohort_equals_separate_adapters(holds):
    settings = TrainSettings(
        epochs=None, steps=10, batch=4, lr=0.02, head_lr=0.05, clip=0.05, weight_decay=0.1,
        schedule="linear", round_decay=0.9,
    )  # fmt: skip
    start, result, fitted, twins = run_both(settings, [10, 7, 13], holds)
    assert fitted.steps.tolist() == [10, 10, 10]
    assert all(clipped > 0 for _, _, clipped in twins), "clipping must be active"
    check_equal(result, twins)
    assert padding_is_zero(result)
    moved = result.take("c0")["lora_b/" + result.layout.modules[0]]
    assert moved.abs().max() > 1e-3, "training must change the adapters"
    assert not torch.equal(start.take("c0")["lora_a/" + result.layout.modules[0]],
                           result.take("c0")["lora_a/" + result.layout.modules[0]])  # fmt: skip


def test_unequal_step_counts_and_one_early_stop():
    settings = TrainSettings(
        epochs=4, batch=4, lr=0.05, head_lr=0.02, clip=0.05, weight_decay=0.1, schedule="linear",
        round_decay=0.9, early_stop=EarlyStopSettings(patience=1),
    )  # fmt: skip
    _, result, fitted, twins = run_both(settings, [6, 12, 9])
    assert fitted.steps.tolist() == [steps for _, steps, _ in twins]
    assert len(set(fitted.steps.tolist())) > 1, "clients must make unequal numbers of steps"
    planned = [8, 12, 12]
    assert any(made < full for made, full in zip(fitted.steps.tolist(), planned, strict=True)), (
        "one client must stop early"
    )
    check_equal(result, twins)


def test_classes_weigh_alike_where_the_metric_minds_rare_ones():
    """The first client's metric is accuracy, the others' are not."""
    settings = {
        "epochs": 4, "batch": 4, "lr": 0.05, "head_lr": 0.02, "clip": 0.05, "weight_decay": 0.1,
        "schedule": "linear", "round_decay": 0.9, "early_stop": EarlyStopSettings(patience=1),
    }  # fmt: skip
    _, plain, _, _ = run_both(TrainSettings(**settings), [10, 7, 13])
    _, fair, fitted, twins = run_both(TrainSettings(**settings, weigh="metric"), [10, 7, 13])
    assert fitted.steps.tolist() == [steps for _, steps, _ in twins]
    check_equal(fair, twins)
    apart = {
        client: max(float((value - fair.take(client)[name]).abs().max())
                    for name, value in plain.take(client).items())
        for client in ("c0", "c1", "c2")
    }  # fmt: skip
    assert apart["c0"] == 0
    assert min(apart["c1"], apart["c2"]) > 1e-3


@pytest.mark.parametrize("cached", [False, True])
def test_prefix_cache_changes_no_losses(cached):
    model = make_model()
    model = model if cached else replace(model, prefix=None)
    client = make_client("c0")
    parts = {"all": (client.task, client.train)}
    cohort = initial_cohort(
        model.layout, [Member("c0", (4,) * 6, client.task.label_set)], 7, dtype=torch.float64
    )
    store = ExampleStore(model, parts, 64)
    assert not cached or model.prefix.tokens == store.lengths.sum()
    twin = Twin(model, cohort.take("c0"), cohort.members[0], client)
    from atlas.federation.training.evaluate import mean_losses

    found = mean_losses(store, stack_cohorts([cohort]), [store.rows("all")])[0]
    assert found == pytest.approx(twin.loss(client.train).item(), abs=1e-12)

"""The memory layer: against plain twins, in pieces, with padding, and where gradients go."""

import pytest
import torch

from atlas.memory.layer.branch import CausalConvolution
from atlas.memory.layer.gates import BIASES, Floors, ReadMode
from tests.memory.layer.helpers import (
    LENGTH,
    MEMORIES,
    draw_tokens,
    largest,
    make_layer,
    read_in_pieces,
)
from tests.memory.layer.twins import by_context, by_gate, by_layer, dense_attention, plain_memory

PLACEMENTS = ["gate", "context", "layer", "none"]


@pytest.mark.parametrize("length", [1, 4, 5, 23])
@pytest.mark.parametrize("window", [1, 5, 64])
def test_window_attention_is_the_dense_one_with_absolute_places(length, window):
    layer = make_layer("none", window=window)
    x = draw_tokens(length=length)
    persistent = layer.persistent.expand(2, -1, -1)
    start = layer.attention.start(persistent, streams=1)
    found, _ = layer.attention(x, start, torch.ones(2, length, dtype=torch.bool))
    assert largest(found - dense_attention(layer, x, persistent)) < 1e-12


@pytest.mark.parametrize(
    ("placement", "formula"), [("gate", by_gate), ("layer", by_layer), ("context", by_context)]
)
@pytest.mark.parametrize("memory", ["exact", "omega", "constant-sum", "levels"])
def test_the_layer_is_its_formula(placement, formula, memory):
    layer, x = make_layer(placement, memory), draw_tokens()
    persistent = layer.persistent.expand(2, -1, -1)
    start = layer.memory.initial.expand(2, -1, -1, -1)
    _, begun = plain_memory(layer, persistent, start)
    wanted = formula(layer, x, persistent, begun) @ layer.o_proj.weight.T
    assert largest(layer(x)[0] - wanted) < 1e-11


def test_values_are_never_normalised():
    layer, x = make_layer("gate", persistent=0), draw_tokens()
    with torch.no_grad():
        layer.memory.initial.zero_()
    start = layer.start(2).branch
    real = torch.ones(2, LENGTH, dtype=torch.bool)

    def read(scale):
        with torch.no_grad():
            kernel = layer.memory.v_proj.weight
            kernel.mul_(scale)
            out = layer.memory(x, start, real, ReadMode())[0]
            kernel.div_(scale)
        return out

    assert largest(read(40.0)) > 20 * largest(read(1.0))


def test_the_convolution_sees_what_came_before_and_nothing_after():
    convolution = CausalConvolution(3, 4).double()
    x = draw_tokens(length=9)[..., :3]
    out, tail = convolution(x, convolution.start(2))
    assert torch.equal(tail, x[:, -3:])
    changed = x.clone()
    changed[:, 5] += 1
    moved = (convolution(changed, convolution.start(2))[0] - out).abs().sum((0, 2)) > 0
    assert moved.tolist() == [False] * 5 + [True] * 4


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_text_in_pieces_is_the_whole_text(placement, memory):
    layer, x = make_layer(placement, memory), draw_tokens()
    whole, state = read_in_pieces(layer, x)
    assert state.position == LENGTH
    for cuts in ([13], [1, 2, 20], list(range(1, LENGTH))):
        found, after = read_in_pieces(layer, x, cuts)
        assert largest(found - whole) < 1e-10
        for part, wanted in zip(_tensors(after), _tensors(state), strict=True):
            assert largest(part.double() - wanted.double()) < 1e-10


def _tensors(state):
    if torch.is_tensor(state):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from _tensors(part)


@pytest.mark.parametrize("memory", ["omega", "levels"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_gradients_of_a_text_in_pieces_are_those_of_the_whole(placement, memory):
    layer, x = make_layer(placement, memory, degree=2), draw_tokens()
    weights = draw_tokens(seed=5)
    found = []
    for cuts in ((), (3, 11, 12)):
        total = (read_in_pieces(layer, x, cuts)[0] * weights).sum()
        found.append(torch.autograd.grad(total, list(layer.parameters())))
    for one, other in zip(*found, strict=True):
        assert largest(one - other) < 1e-10 * max(1.0, largest(one))


@pytest.mark.parametrize("memory", ["exact", "projected", "levels"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_no_token_looks_ahead(placement, memory):
    layer, x = make_layer(placement, memory), draw_tokens()
    changed = x.clone()
    changed[:, 17] += 1
    moved = largest_by_token(layer(changed)[0] - layer(x)[0])
    assert moved[:17].max() < 1e-12
    assert moved[17] > 1e-3


def largest_by_token(x):
    return x.detach().abs().amax((0, 2))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_only_the_memory_reaches_beyond_the_window(placement):
    layer, x = make_layer(placement), draw_tokens()
    changed = x.clone()
    changed[:, 0] += 1
    beyond = largest_by_token(layer(changed)[0] - layer(x)[0])[layer.settings.window :]
    if placement == "none":
        assert beyond.max() < 1e-12
    else:
        assert beyond.max() > 1e-4


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_persistent_tokens_are_in_sight_of_every_token(placement):
    layer, x = make_layer(placement), draw_tokens()
    before = layer(x)[0]
    with torch.no_grad():
        layer.persistent.add_(1.0)
    assert largest_by_token(layer(x)[0] - before).min() > 1e-4


@pytest.mark.parametrize(("placement", "memory"), [(p, m) for p in PLACEMENTS for m in MEMORIES])
def test_padding_before_a_text_changes_nothing_or_is_declared_to(placement, memory):
    layer, x = make_layer(placement, memory, degree=2), draw_tokens()
    padded = torch.cat([draw_tokens(length=3, seed=9), x], 1)
    real = torch.arange(LENGTH + 3).expand(2, -1) >= 3
    moved = largest(layer(padded, None, real)[0][:, 3:] - layer(x)[0])
    assert (moved < 1e-10) == layer.settings.padding_before


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_gradients_reach_every_gate_and_projection(placement, memory):
    layer = make_layer(placement, memory, degree=2)
    (layer(draw_tokens())[0] * draw_tokens(seed=5)).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert largest(parameter.grad) > 1e-6, name


def test_a_detached_memory_learns_to_read_and_not_to_write():
    gradients = {}
    for gradient in ("full", "detached"):
        layer = make_layer("gate", "omega-levels", gradient=gradient)
        output, _ = layer(draw_tokens())
        (output * draw_tokens(seed=5)).sum().backward()
        gradients[gradient] = {name: p.grad for name, p in layer.named_parameters()}
    writing = ["memory.k_proj.weight", "memory.v_proj.weight"]
    writing += ["memory.initial", "memory.local_initial"]
    writing += [f"memory.gates.{gate}.weight" for gate in BIASES]
    for name in writing:
        assert gradients["detached"][name] is None or largest(gradients["detached"][name]) == 0
        assert largest(gradients["full"][name]) > 1e-6
    reading = "memory.q_proj.weight"
    assert largest(gradients["detached"][reading]) > 1e-6


def test_gates_start_where_they_should():
    layer = make_layer("gate", "omega")
    for gate in layer.memory.gates.children():
        gate.reset_parameters()
    found = layer.memory.gates(draw_tokens() * 0, Floors()).named()
    assert found.keys() == BIASES.keys()
    for name, values in found.items():
        assert torch.allclose(values, torch.tensor(BIASES[name]).double().sigmoid())


def test_shut_gates_stay_at_their_floors():
    layer, x = make_layer("gate", "omega"), draw_tokens()
    with torch.no_grad():
        for gate in layer.memory.gates.children():
            gate.bias.fill_(-60.0)
        layer.share_proj.weight.mul_(1000.0)
    floors = Floors(alpha=0.1, eta=0.2, theta=0.3, gamma=0.4, mix=0.5)
    views = []
    outputs = [layer(x, mode=ReadMode(f, views.append))[0] for f in (Floors(), floors)]
    assert largest(outputs[0] - outputs[1]) > 1e-3
    shut, held = views
    for name, floor in floors._asdict().items():
        assert largest(shut.gates[name].min()) < 1e-12
        assert largest(held.gates[name].min() - floor) < 1e-12
    assert held.floors == floors._asdict()
    assert largest(shut.memory[0] - shut.before[0]) < 1e-12, "nothing written, nothing forgotten"
    assert largest(held.memory[0] - held.before[0]) > 1e-3

"""Reading and writing with a saved model: pieces are the whole, and what is read counts."""

import math

import pytest
import torch
from torch.nn.functional import log_softmax

from atlas.backbones.memory_lm import text as reading
from atlas.backbones.memory_lm.text import GREEDY, Sampling, TextReader
from atlas.backbones.tokenizer import plain_bytes
from atlas.errors import InputError
from tests.backbones.memory_lm.helpers import make_model, off, save_backbone

TEXT = "Été: the memory learns while it reads, and reads what it learns. "
KINDS = ["gate", "omega", "context", "chunk-start", "continuum", "levels"]


def reader_of(kind="gate", dtype=torch.float64, **changes):
    """A model of bytes, without a tokenizer of its own."""
    return TextReader(make_model(kind, dtype, vocab_size=256, **changes), plain_bytes())


@pytest.mark.parametrize("kind", KINDS)
def test_reading_in_pieces_and_writing_token_by_token_is_the_whole_text(kind, monkeypatch):
    """The law of `generate --read`: its next token is that of the whole sequence at once."""
    monkeypatch.setattr(reading, "PIECE", 7)
    reader = reader_of(kind)
    reader.read(reader.encode(TEXT))
    reader.read(reader.encode("To be"))
    made = "".join(reader.write(9, GREEDY))
    tokens = list((TEXT + "To be").encode())
    with torch.no_grad():
        for _ in range(9):
            tokens.append(int(reader.model(torch.tensor([tokens])).logits[0, -1].argmax()))
        whole = reader.model(torch.tensor([tokens]))
    assert made == bytes(tokens[-9:]).decode(errors="replace")
    assert off(reader.logits, whole.logits[0, -1]) < 1e-10
    assert reader.cache.get_seq_length() == len(tokens)
    states = zip(reader.cache.states, whole.past_key_values.states, strict=True)
    assert all(
        off(a.layer.branch.memory.memory, b.layer.branch.memory.memory) < 1e-10 for a, b in states
    )


def test_what_was_read_far_back_counts_through_the_memory_alone():
    """Beyond the windows of all blocks only the memory can tell two documents apart."""
    ends = "x" * 40  # the windows of two blocks see 9 tokens
    told = {}
    for kind in ("gate", "none"):
        both = [reader_of(kind) for _ in range(2)]
        for reader, start in zip(both, ("the king is dead", "all is well here"), strict=True):
            reader.read(reader.encode(start + ends))
        told[kind] = off(both[0].logits, both[1].logits)
    assert told["none"] < 1e-12 < 1e-6 < told["gate"]


def test_the_same_seed_writes_the_same_and_another_something_else():
    def written(seed, **changes):
        reader = reader_of()
        reader.read(reader.encode(TEXT))
        return "".join(reader.write(24, Sampling(seed=seed, **changes)))

    assert written(3) == written(3) != written(4)
    assert written(3, top_k=1, top_p=None) == written(4, temperature=0.0)


def test_a_draw_depends_on_its_place_and_not_on_how_far_was_written_before():
    first, second = reader_of(), reader_of()
    for reader in (first, second):
        reader.read(reader.encode(TEXT))
    at_once = "".join(first.write(20, Sampling()))
    parts = "".join(second.write(7, Sampling())), "".join(second.write(13, Sampling()))
    tokens = [len(part) for part in (at_once, *parts)]
    assert min(tokens) > 0 and off(first.logits, second.logits) < 1e-12


def test_letters_of_several_bytes_are_told_whole(monkeypatch):
    reader = reader_of()
    reader.read([0])
    wanted = list("é東".encode())
    monkeypatch.setattr(reading, "pick", lambda shares, number: wanted[reader.place()])
    reader.place = lambda: reader.cache.get_seq_length() - 1
    assert list(reader.write(5, GREEDY)) == ["é", "東"]


def test_scores_are_those_of_the_whole_text(monkeypatch):
    monkeypatch.setattr(reading, "PIECE", 11)
    reader = reader_of()
    found = reader.score(TEXT)
    tokens = torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        logits = reader.model(tokens).logits[0, :-1]
    loss = float(-log_softmax(logits, -1).gather(1, tokens[0, 1:, None]).mean())
    assert found.loss == pytest.approx(loss, rel=1e-10)
    assert found.perplexity == pytest.approx(math.exp(loss))
    assert found.bits_per_byte == pytest.approx(loss / math.log(2)), "a token is a byte"
    assert found.accuracy == float((logits.argmax(-1) == tokens[0, 1:]).double().mean())
    assert found.tokens == found.bytes == len(TEXT.encode()) - 1
    with pytest.raises(InputError, match="1 tokens of text"):
        reader_of().score("a")


def test_a_tokenizer_of_the_folder_is_used_and_its_special_tokens_are_never_written(tmp_path):
    reader = TextReader.open(save_backbone(tmp_path / "model"))
    assert reader.encode("ab")[0] == 1, "its start token"
    reader.read(reader.encode("ab"))
    assert len(reader.encode("ab")) == 2, "later texts do not start again"
    reader.logits[:3] = 100.0
    shares = dict(reader.likeliest(len(reader.tokenizer)))
    assert len("".join(reader.write(5, GREEDY))) == 0, "it ends at once"
    assert "<s>" not in [text for text, share in shares.items() if share > 0]
    # Behind the start token all bytes are foreseen.
    assert TextReader.open(tmp_path / "model").score("abc").bytes == 3


def test_what_is_remembered_is_saved_and_taken_up_again(tmp_path):
    first, second = reader_of(dtype=torch.float32), reader_of(dtype=torch.float32)
    first.read(first.encode(TEXT))
    first.save(tmp_path / "state.safetensors")
    second.remember(tmp_path / "state.safetensors")
    for reader in (first, second):
        reader.read(reader.encode("To be"))
    assert torch.equal(first.logits, second.logits)
    (tmp_path / "bad").write_text("no state")
    with pytest.raises(InputError, match="not what this model remembered"):
        second.remember(tmp_path / "bad")


def test_nothing_read_is_nothing_to_go_on_from():
    with pytest.raises(InputError, match="nothing to go on from"):
        next(reader_of().write(1, GREEDY))


def test_a_vocabulary_below_the_bytes_is_no_text(tmp_path):
    make_model("gate", torch.float32).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="has no tokenizer"):
        TextReader.open(tmp_path)

"""From examples to token ids, and the fast tokenizers that make them.

Padding, truncation and the shift of causal targets are decided here. A tokenizer is also found
where a folder holds only a sentencepiece file, or a model of bytes and none at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece
import torch
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.tokenization_utils_base import generate_merges

from atlas.backbones.blocks import Config, Tokenizer
from atlas.backbones.families import ATLAS
from atlas.errors import InputError
from atlas.federation.batching.backbone import Inputs
from atlas.federation.clients import Example

IGNORE = -100


@dataclass(frozen=True)
class Specials:
    """The token ids that sequences are built with; None where the tokenizer has none."""

    pad: int
    bos: int | None
    eos: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, config: Config) -> Specials:
        """The tokenizer's own ids, those of the config where it has none."""
        eos = tokenizer.eos_token_id
        if eos is None and isinstance(config.eos_token_id, int):
            eos = config.eos_token_id
        pad = tokenizer.pad_token_id
        if pad is None:
            pad = eos if eos is not None else 0
        return cls(pad=pad, bos=tokenizer.bos_token_id, eos=eos)

    def start(self, prompt: Sequence[int]) -> list[int]:
        """What stands before a prompt; never nothing before nothing."""
        if self.bos is not None:
            return [self.bos]
        return [] if prompt else [self.eos if self.eos is not None else self.pad]


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text alone, without special tokens and of any length."""
    if not texts:
        return []
    batch = tokenizer(
        list(texts),
        add_special_tokens=False,
        truncation=False,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    ids: list[list[int]] = batch["input_ids"]
    return ids


def pad_rows(rows: Sequence[Sequence[int]], value: int, *, left: bool = False) -> Tensor:
    """Rows of unequal length as one matrix [N, T]."""
    mask = row_mask(rows, left=left)
    out = torch.full(mask.shape, value, dtype=torch.long)
    out[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return out


def row_mask(rows: Sequence[Sequence[int]], *, left: bool = False) -> Tensor:
    """True at the places of `pad_rows` that hold a row's own tokens [N, T]."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)[:, None]
    longest = int(lengths.max()) if len(rows) else 0
    places = torch.arange(longest)[None]
    return places >= longest - lengths if left else places < lengths


def classification_inputs(
    tokenizer: Tokenizer,
    examples: Sequence[Example],
    max_length: int,
    specials: Specials,
) -> Inputs:
    """One or two segments per example, cut from the longer one, padded to the longest."""
    segments = {len(example.texts) for example in examples}
    if not segments <= {1, 2} or len(segments) > 1:
        raise InputError(f"examples must all have one text or all have two, got {segments}")
    if not examples:
        empty = torch.zeros((0, 0), dtype=torch.long)
        return Inputs(empty, empty.bool(), empty)
    batch = tokenizer(
        [example.texts[0] for example in examples],
        [example.texts[1] for example in examples] if segments == {2} else None,
        truncation="longest_first",
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=True,
        verbose=False,
    )
    # A tokenizer without special tokens makes nothing of an empty text; attention needs one token.
    rows = [row or specials.start(row) for row in batch["input_ids"]]
    types = [row or [0] for row in batch["token_type_ids"]]
    return Inputs(pad_rows(rows, specials.pad), row_mask(rows), pad_rows(types, 0))


def causal_inputs(
    tokenizer: Tokenizer,
    examples: Sequence[Example],
    max_length: int,
    specials: Specials,
    *,
    ends: bool = True,
) -> Inputs:
    """Prompt and answer per example; only the answer and, with `ends`, its end carry loss."""
    wrong = next((e for e in examples if len(e.texts) != 1), None)
    if wrong is not None:
        raise InputError(f"causal examples have one text, the prompt, got {len(wrong.texts)}")
    prompts = encode(tokenizer, [example.texts[0] for example in examples])
    answers = encode(tokenizer, [example.answer for example in examples])
    rows, targets = [], []
    for prompt, answer in zip(prompts, answers, strict=True):
        row, target = causal_row(prompt, answer, max_length, specials, ends=ends)
        rows.append(row)
        targets.append(target)
    ids = pad_rows(rows, specials.pad)
    return Inputs(ids, row_mask(rows), torch.zeros_like(ids), pad_rows(targets, IGNORE))


def causal_row(
    prompt: list[int],
    answer: list[int],
    max_length: int,
    specials: Specials,
    *,
    ends: bool = True,
) -> tuple[list[int], list[int]]:
    """Input ids and targets of one example, the last of which is its end, if it has one.

    The last token is only ever expected, never read, so it is not among the ids. What does not
    fit is cut from the left of the prompt; an answer too long by itself loses its end.
    """
    start = specials.start(prompt)
    end = [specials.eos] if specials.eos is not None and (ends or not answer) else []
    tail = (answer + end)[:max_length]
    room = max_length + 1 - len(start) - len(tail)
    kept = prompt[max(0, len(prompt) - room) :]
    tokens = start + kept + tail
    unscored = len(start) + len(kept) - 1
    return tokens[:-1], [IGNORE] * unscored + tail


def prompt_row(prompt: list[int], room: int, specials: Specials) -> list[int]:
    """A prompt as it stands before an answer, cut from the left to `room` tokens."""
    start = specials.start(prompt)
    return (start + prompt[max(0, len(start) + len(prompt) - room) :])[:room]


def tokenizer_identity(tokenizer: Tokenizer) -> str:
    """A short name by which equal tokenizers are known: vocabulary size and content hash."""
    backend = Backend.from_str(tokenizer.backend_tokenizer.to_str())
    # Calls leave their truncation and padding behind in the backend; they are not its identity.
    backend.no_truncation()
    backend.no_padding()
    digest = hashlib.sha256(backend.to_str().encode()).hexdigest()
    return f"{len(tokenizer)}-{digest[:16]}"


KNOWN_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")


def load_tokenizer(where: Path | str) -> Tokenizer:
    """The fast tokenizer of a model folder or hub id.

    Args:
        where: Folder, or hub id.

    Raises:
        InputError: If there are no tokenizer files, or only slow ones.
    """
    if isinstance(where, Path) and not any((where / name).is_file() for name in KNOWN_FILES):
        files = sorted(where.glob("*.model"))
        if not files and reads_bytes(where):
            return plain_bytes()
        if len(files) != 1:
            raise InputError(
                f"backbone folder {where} has no tokenizer: it needs tokenizer.json or "
                f"exactly one sentencepiece file (*.model), found {len(files)}"
            )
        return read_sentencepiece(files[0])
    tokenizer = AutoTokenizer.from_pretrained(
        where, use_fast=True, local_files_only=isinstance(where, Path), trust_remote_code=False
    )
    if not tokenizer.is_fast:
        raise InputError(f"backbone {where} has no fast tokenizer (tokenizer.json)")
    return tokenizer


BYTES = 256


def reads_bytes(folder: Path) -> bool:
    """Whether a model of ours was saved without a tokenizer: its tokens then are bytes."""
    try:
        settings = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    known = isinstance(settings, dict) and settings.get("model_type") == ATLAS
    return known and int(settings.get("vocab_size", 0)) >= BYTES


def byte_tokenizer(vocabulary: Mapping[str, int]) -> Tokenizer:
    """One token per byte, by the letters that stand for them: any text survives a round trip."""
    backend = Backend(models.BPE(vocab=dict(vocabulary), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


def plain_bytes() -> Tokenizer:
    """The tokenizer of models that read bytes: a token's id is its byte."""
    return byte_tokenizer({piece: byte for byte, piece in bytes_to_unicode().items()})


def read_sentencepiece(path: Path) -> Tokenizer:
    """A Llama tokenizer from a sentencepiece BPE file.

    The library's own reader needs protobuf; the sentencepiece package can list the pieces itself.
    """
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} is not a sentencepiece model: {error}") from error
    pieces = [model.id_to_piece(index) for index in range(model.get_piece_size())]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    ids = (model.unk_id(), model.bos_id(), model.eos_id())
    if min(ids) < 0:
        raise InputError(f"{path} lacks an unknown, start or end token: their ids are {ids}")
    unk, bos, eos = (pieces[i] for i in ids)
    backend = LlamaTokenizer(
        vocab=vocabulary,
        merges=generate_merges(vocabulary),
        unk_token=unk,
        bos_token=bos,
        eos_token=eos,
        add_bos_token=True,
    ).backend_tokenizer
    if model.normalize("a  b") == model.normalize("a b"):  # trained on text without such runs
        backend.normalizer = normalizers.Sequence(
            [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A | \z"), "")]
        )
        # "first" would look at the place in the text before its leading space was dropped.
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    # The Llama class would rebuild itself without that normalizer when it is saved and loaded.
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=unk,
        bos_token=bos,
        eos_token=eos,
        clean_up_tokenization_spaces=False,
    )

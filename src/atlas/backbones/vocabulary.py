"""Loading a fast tokenizer, also where a folder holds only a sentencepiece file."""

from __future__ import annotations

from pathlib import Path

import sentencepiece
from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from atlas.backbones.blocks import Tokenizer
from atlas.errors import InputError

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

"""Tiny random models with a byte tokenizer, made in code: for tests and first steps.

Their weights come from generators addressed by parameter name, so they are the same everywhere
and no global random state is read or moved.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import BertConfig, PreTrainedTokenizerFast

from atlas.backbones.bert import Bert
from atlas.backbones.blocks import Config, Model, Tokenizer

SEED = 20260
MAX_POSITIONS = 512


def build_tiny(dtype: torch.dtype) -> tuple[Model, Tokenizer]:
    """A BERT of three blocks of width 32, and its tokenizer."""
    tokenizer = _byte_tokenizer(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(
        {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    )
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=MAX_POSITIONS,
    )
    return _fill(Bert, config, dtype), tokenizer


def build_tiny_causal(dtype: torch.dtype) -> tuple[Model, Tokenizer]:
    """A Llama of three blocks of width 32, and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _byte_tokenizer(("<pad>", "<s>", "</s>"))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens({"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"})
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _fill(LlamaForCausalLM, config, dtype), tokenizer


def _byte_tokenizer(specials: tuple[str, ...]) -> Tokenizer:
    """Special tokens first, then one token per byte: any text survives a round trip."""
    pieces = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def _fill(model_class: type[Model], config: Config, dtype: torch.dtype) -> nn.Module:
    """A model with weights of unit gain, norms of one and biases of zero."""
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are not used
        model: nn.Module = model_class(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        generator = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        values = generator.standard_normal(tuple(parameter.shape)) / parameter.shape[1] ** 0.5
        parameter.data.copy_(torch.from_numpy(values))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)  # buffers keep theirs: rotary angles need it
    return model

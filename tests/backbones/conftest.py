"""Tiny random checkpoints of every family, and adapters hung on by forward hooks."""

import contextlib

import pytest
import torch
from torch.nn.functional import linear
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MPNetConfig,
    MPNetModel,
    OlmoConfig,
    OlmoForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaModel,
)

from atlas.backbones.load import build_tiny, build_tiny_causal, load_backbone
from atlas.federation.batching.backbone import ACTIVATIONS
from atlas.federation.clients import Example, Task
from tests.backbones.memory_lm.helpers import make_model

ENCODER = {"vocab_size": 261, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER |= {"intermediate_size": 24, "max_position_embeddings": 64, "initializer_range": 0.3}
CAUSAL = ENCODER | {"num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1}
CAUSAL |= {"eos_token_id": 2, "vocab_size": 260, "head_dim": 8}
DISTIL = {"vocab_size": 261, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
ATLAS = {"vocab_size": 260, "max_position_embeddings": 64}
GPT2 = {"vocab_size": 260, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 24}
GPT2 |= {"n_positions": 64, "initializer_range": 0.3, "pad_token_id": 0, "eos_token_id": 2}
PLAIN = {
    name: value for name, value in CAUSAL.items() if name not in ("head_dim", "num_key_value_heads")
}
CAPPED = {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 8}
DISTANCES = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
DISTANCES |= {"type_vocab_size": 0, "position_biased_input": False, "pooler_hidden_size": 16}
DISTANCES |= {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "max_relative_positions": -1}
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}


KINDS = {
    "bert": lambda: BertModel(BertConfig(**ENCODER)),
    "bert-bare": lambda: BertModel(BertConfig(**ENCODER), add_pooling_layer=False),
    "roberta": lambda: RobertaModel(RobertaConfig(**ENCODER, type_vocab_size=1)),
    "distilbert": lambda: DistilBertModel(DistilBertConfig(**DISTIL, initializer_range=0.3)),
    "mpnet": lambda: MPNetModel(MPNetConfig(**ENCODER), add_pooling_layer=False),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**CAUSAL, attention_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**CAUSAL, tie_word_embeddings=True)),
    "qwen2-window": lambda: Qwen2ForCausalLM(Qwen2Config(**CAUSAL, **WINDOW)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**CAUSAL)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**CAUSAL, sliding_window=4)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**CAUSAL, hidden_act="gelu_pytorch_tanh")),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True)),
    "atlas": lambda: make_model(dtype=torch.float32, **ATLAS),
    # None of these is in the table of families.
    "electra": lambda: ElectraModel(ElectraConfig(**ENCODER, embedding_size=16)),
    "deberta": lambda: DebertaV2Model(DebertaV2Config(**ENCODER, **DISTANCES)),
    "albert": lambda: AlbertModel(AlbertConfig(**ENCODER, embedding_size=8)),
    "pythia": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**PLAIN)),
    "phi": lambda: PhiForCausalLM(PhiConfig(**PLAIN)),
    "olmo": lambda: OlmoForCausalLM(OlmoConfig(**PLAIN)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**CAUSAL, sliding_window=4, **CAPPED)),
}
ENCODERS = ["bert", "bert-bare", "roberta", "distilbert", "mpnet"]
CAUSALS = ["llama", "qwen2", "qwen2-window", "qwen3", "mistral", "gemma", "gpt2"]
OTHER_ENCODERS = ["electra", "deberta", "albert"]
OTHER_CAUSALS = ["pythia", "phi", "olmo", "gemma2"]
CLASSIFY = Task("mood", "classification", ("text",), "label", labels=("bad", "so-so", "good"))
ANSWER = Task("ask", "causal", ("question",), "answer", metric="exact_match")
TEXTS = ("a longer text, to be padded to", "short", "naïve café 日本", "")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A function from a kind of model to its folder."""
    folders = {}

    def folder_of(kind):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("models") / kind
            with torch.random.fork_rng():
                torch.manual_seed(len(kind))
                model = KINDS[kind]()
                for name, parameter in model.named_parameters():
                    still = parameter.dim() == 1 and kind.startswith("gemma")
                    if still or name.endswith(
                        "bias"
                    ):  # zero from the start: errors there would not show
                        parameter.data.normal_(std=0.1)
            model.save_pretrained(folders[kind])
            tiny = build_tiny if kind in ENCODERS + OTHER_ENCODERS else build_tiny_causal
            tiny(torch.float32)[1].save_pretrained(folders[kind])
        return folders[kind]

    return folder_of


@pytest.fixture(scope="session")
def backbone_of(checkpoint):
    """A function from a kind of model to its backbone."""
    return lambda kind, dtype=torch.float32: load_backbone(str(checkpoint(kind)), dtype=dtype)


@pytest.fixture(scope="session")
def tools():
    """Plain functions that several test files share."""
    return Tools


class Tools:
    classify = CLASSIFY
    answer = ANSWER
    singles = tuple(Example((text,), 0) for text in TEXTS)
    pairs = tuple(Example((text, "and more"), 0) for text in TEXTS)
    questions = (Example(("how many legs?",), -1, "four"), Example(("why",), -1, "no one knows"))

    @staticmethod
    def head(backbone, labels, seed=0):
        """A random head for `labels` labels, by full tensor name."""
        generator = torch.Generator().manual_seed(seed)
        tensors = {}
        for layer in backbone.head_layers:
            rows = layer.d_out or labels
            tensors[f"{layer.name}.weight"] = torch.randn(rows, layer.d_in, generator=generator)
            if layer.bias:
                tensors[f"{layer.name}.bias"] = torch.randn(rows, generator=generator)
        return tensors

    @staticmethod
    def layers(backbone, seed=1):
        """Random factors for every linear module, of ranks 1 to 4."""
        generator = torch.Generator().manual_seed(seed)
        found = {}
        for index in range(backbone.depth):
            for name, module in backbone.linears(index).items():
                rank = 1 + len(found) % 4
                a = torch.randn(rank, module.in_features, generator=generator) * 0.2
                b = torch.randn(module.out_features, rank, generator=generator) * 0.2
                found[name] = (a, b)
        return found

    @staticmethod
    @contextlib.contextmanager
    def adapted(backbone, layers, alpha):
        """Adds alpha / r * B A to the modules while it is open."""
        handles = []
        for index in range(backbone.depth):
            for name, module in backbone.linears(index).items():
                if name not in layers:
                    continue

                def add(module, inputs, output, pair=layers[name]):
                    a, b = pair
                    return output + linear(linear(inputs[0], a), b) * (alpha / a.shape[0])

                handles.append(module.register_forward_hook(add))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @staticmethod
    def hidden(backbone, inputs):
        """The last block's output."""
        hidden = backbone.embed(inputs)
        context = backbone.context(hidden, inputs.mask)
        for index in range(backbone.depth):
            hidden = backbone.block(index, hidden, context)
        return hidden

    @staticmethod
    def logits(backbone, inputs, head):
        """Classification logits block by block."""
        return Tools.head_on(
            backbone, backbone.features(Tools.hidden(backbone, inputs), inputs.mask), head
        )

    @staticmethod
    def head_on(backbone, out, head):
        """A head's logits on features."""
        for layer in backbone.head_layers:
            out = linear(out, head[f"{layer.name}.weight"], head.get(f"{layer.name}.bias"))
            out = ACTIVATIONS[layer.activation](out)
        return out

    @staticmethod
    def whole(model, backbone, inputs):
        """The logits of transformers' own model."""
        segments = backbone.family.segments or getattr(backbone, "_segments", False)
        extra = {"token_type_ids": inputs.types} if segments else {}
        with torch.no_grad():
            return model(input_ids=inputs.ids, attention_mask=inputs.mask.long(), **extra).logits

    @staticmethod
    def put(model, tensors):
        """Copies tensors into a model's own ones of the same names."""
        own = dict(model.named_parameters())
        for name, tensor in tensors.items():
            own[name].data.copy_(tensor)

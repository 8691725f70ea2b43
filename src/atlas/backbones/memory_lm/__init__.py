"""The Atlas language model as ordinary transformers classes; importing this registers them."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

from atlas.backbones.memory_lm.cache import AtlasCache
from atlas.backbones.memory_lm.config import AtlasConfig
from atlas.backbones.memory_lm.heads import AtlasForCausalLM, AtlasForSequenceClassification
from atlas.backbones.memory_lm.model import AtlasModel

__all__ = [
    "AtlasCache",
    "AtlasConfig",
    "AtlasForCausalLM",
    "AtlasForSequenceClassification",
    "AtlasModel",
]

AutoConfig.register(AtlasConfig.model_type, AtlasConfig)
AutoModel.register(AtlasConfig, AtlasModel)
AutoModelForCausalLM.register(AtlasConfig, AtlasForCausalLM)
AutoModelForSequenceClassification.register(AtlasConfig, AtlasForSequenceClassification)

"""The sizes of the demo's checkpoint, which are as small as speech allows, in the official format."""

from __future__ import annotations

from tools.demo_voice.qwen3_tts.analysis import BOOKS, CODES, COMPONENTS
from tools.families.qwen3_tts.checkpoint_config import GENERATION as RELEASED
from tools.families.qwen3_tts.checkpoint_config import Shape, codec_config
from voice_clone.checkpoint_folder import parse
from voice_clone.families.qwen3_tts.config import CodecConfig

HIDDEN = 256  # of the talker; also the speaker embedding's size
CONTROL = 1024  # ids of the talker's vocabulary after the codes, as released
EOS, PAD, BOS, THINK, NO_THINK, THINK_BOS, THINK_EOS = range(CODES, CODES + 7)
ENGLISH = CODES + 16

_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
_ROPE = {"interleaved": True, "mrope_section": [12, 10, 10], "rope_type": "default", "type": "default"}

SHAPE = Shape(
    "demo",
    base_vocabulary=None,
    talker={
        **_ATTENTION,
        "hidden_size": HIDDEN,
        "intermediate_size": 704,
        "num_hidden_layers": 5,
        "text_hidden_size": HIDDEN,
        "rope_scaling": _ROPE,
        "rope_theta": 10000,
        "vocab_size": CODES + CONTROL,
        "num_code_groups": BOOKS,
        "max_position_embeddings": 4096,
        "codec_eos_token_id": EOS,
        "codec_pad_id": PAD,
        "pad_token_id": PAD,
        "codec_bos_id": BOS,
        "codec_think_id": THINK,
        "codec_nothink_id": NO_THINK,
        "codec_think_bos_id": THINK_BOS,
        "codec_think_eos_id": THINK_EOS,
        "codec_language_id": {"english": ENGLISH},
    },
    predictor={
        **_ATTENTION,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "vocab_size": CODES,
        "rope_theta": 10000,
    },
    speaker={
        "enc_dim": HIDDEN,
        "enc_channels": [64, 64, 64, 64, 192],
        "enc_attention_channels": 32,
        "enc_res2net_scale": 4,
        "enc_se_channels": 32,
    },
    encoder={
        "hidden_size": 128,
        "upsample_groups": 128,
        "num_filters": 10,
        "codebook_dim": COMPONENTS,
        "codebook_size": CODES,
        "vector_quantization_hidden_dimension": COMPONENTS,
        "num_quantizers": BOOKS,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 256,
    },
    decoder={
        "latent_dim": 128,
        "codebook_dim": 2 * COMPONENTS,
        "codebook_size": CODES,
        "semantic_codebook_size": CODES,
        "vector_quantization_hidden_dimension": 2 * COMPONENTS,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "num_hidden_layers": 2,
        "sliding_window": 36,
        "decoder_dim": 128,
    },
)

# The temperatures are lower than those of the released model: a small network's unlikely codes are mistakes more often
# than lively speech. Repeated codes have no penalty, because there are 256 codes and not 2048.
GENERATION = RELEASED | {
    "temperature": 0.3,
    "subtalker_temperature": 0.3,
    "repetition_penalty": 1.0,
    "max_new_tokens": 1024,
    "part_characters": 180,  # it has learned texts of two sentences
}


def codec_shape() -> CodecConfig:
    """The codec's configuration as the package reads it."""
    return parse(CodecConfig, codec_config(SHAPE), "config.json")

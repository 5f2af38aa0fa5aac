"""Sizes of random checkpoints, and their params.json as released."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from voice_clone.families.voxtral.config import CodecConfig

RELEASED_VOCABULARY = 131072
SPECIAL_TOKENS = 1000
LANGUAGES = ("pt", "nl", "it", "fr", "es", "de")
VOICES = (
    *("casual_female", "casual_male", "cheerful_female", "neutral_female", "neutral_male"),
    *(f"{language}_{kind}" for language in LANGUAGES for kind in ("male", "female")),
    *("ar_male", "hi_male", "hi_female"),
)


@dataclass(frozen=True)
class Shape:
    """Sizes of one kind of checkpoint.

    Attributes:
        vocabulary: of the backbone, with the special tokens; None: as many as the small tokenizer has.
        flow_layers: of the acoustic transformer.
        encoder: whether the codec's encoder is among the weights; the released checkpoint lacks it.
        voice_rows: positions of the preset voices, one behind the other; the last repeats.
    """

    vocabulary: int | None
    dim: int
    hidden_dim: int
    layers: int
    flow_layers: int
    heads: int
    kv_heads: int
    head_dim: int
    codec: CodecConfig
    encoder: bool = False
    voice_rows: tuple[int, ...] = (90, 147, 120)


_TINY = Shape(
    vocabulary=None,
    dim=64,
    hidden_dim=128,
    layers=2,
    flow_layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    codec=CodecConfig(
        dim=32,
        hidden_dim=64,
        head_dim=8,
        n_heads=4,
        n_kv_heads=4,
        encoder_transformer_lengths_str="1,1,1,1",
        decoder_transformer_lengths_str="1,1,1,1",
    ),
    voice_rows=(9, 6),
)
_RELEASED = Shape(RELEASED_VOCABULARY, 3072, 9216, 26, 3, 32, 8, 128, CodecConfig())
_FEW_LAYERS = replace(_RELEASED, layers=2, flow_layers=1)

SHAPES = {
    "tiny": replace(_TINY, encoder=True),  # it clones, as the demo does
    "tiny-presets": _TINY,
    "4b": _RELEASED,
    "4b-encoder": replace(_RELEASED, encoder=True),
    "4b-2": _FEW_LAYERS,  # the released widths, few layers
    "4b-2-encoder": replace(_FEW_LAYERS, encoder=True),
}


def model_params(shape: Shape, vocabulary: int) -> dict[str, Any]:
    """params.json. `vocabulary`: of the backbone."""
    codec = shape.codec
    widths = {
        "dim": shape.dim,
        "head_dim": shape.head_dim,
        "hidden_dim": shape.hidden_dim,
        "n_heads": shape.heads,
        "n_kv_heads": shape.kv_heads,
    }
    decoder = ("decoder_transformer_lengths_str", "decoder_convs_kernels_str", "decoder_convs_strides_str")
    given = {name: getattr(codec, name) for name in decoder}
    if codec.encoder_transformer_lengths_str != CodecConfig().encoder_transformer_lengths_str:
        given["encoder_transformer_lengths_str"] = codec.encoder_transformer_lengths_str  # the released file has none
    return {
        **widths,
        "causal": True,
        "model_type": "voxtral_tts",
        "multimodal": {
            "audio_model_args": {
                "acoustic_codebook_size": codec.acoustic_codebook_size,
                "acoustic_transformer_args": {
                    **widths,
                    "input_dim": shape.dim,
                    "n_layers": shape.flow_layers,
                    "norm_eps": 1e-05,
                    "sigma": 1e-05,
                    "use_biases": False,
                },
                "audio_encoding_args": {
                    "frame_rate": 12.5,
                    "num_codebooks": 1 + codec.acoustic_dim,
                    "sampling_rate": 24000,
                },
                "audio_token_id": 24,
                "begin_audio_token_id": 25,
                "n_acoustic_codebook": codec.acoustic_dim,
                "semantic_codebook_size": codec.semantic_codebook_size,
            },
            "audio_tokenizer_args": {
                **given,
                "acoustic_codebook_size": codec.acoustic_codebook_size,
                "acoustic_dim": codec.acoustic_dim,
                "attn_sliding_window_size": codec.attn_sliding_window_size,
                "causal": True,
                "channels": 1,
                "conv_weight_norm": True,
                "dim": codec.dim,
                "half_attn_window_upon_downsampling": True,
                "head_dim": codec.head_dim,
                "hidden_dim": codec.hidden_dim,
                "layer_scale": True,
                "n_heads": codec.n_heads,
                "n_kv_heads": codec.n_kv_heads,
                "norm_eps": codec.norm_eps,
                "patch_proj_kernel_size": codec.patch_proj_kernel_size,
                "pretransform_patch_size": codec.pretransform_patch_size,
                "qk_norm": True,
                "qk_norm_eps": codec.qk_norm_eps,
                "sampling_rate": codec.sampling_rate,
                "semantic_codebook_size": codec.semantic_codebook_size,
                "semantic_dim": codec.semantic_dim,
                "use_biases": False,
                "voice": {name: index for index, name in enumerate(VOICES)},
            },
        },
        "n_layers": shape.layers,
        "norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "use_biases": False,
        "vocab_size": vocabulary,
    }

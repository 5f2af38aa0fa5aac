"""Makes checkpoints with random weights in the official format of `kyutai/pocket-tts`: they speak noise.

Sizes: `tiny`, `tiny-drifting` and `tiny-pointwise` for tests and the demo, and those of the released files. The same
arguments give the same bytes. Under these weights signals neither vanish nor explode, and a speech ends about once in
some hundred frames.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.families.gains import Gains, Sizes, around, spread
from tools.families.pocket_tts.tokenizer import small_pieces
from tools.families.weight_files import DTYPES, Shapes, maker, with_changed, write_json, write_weights
from voice_clone.families.pocket_tts.checkpoint import CODEC, TALKER, Checkpoint
from voice_clone.families.pocket_tts.codec_networks import Decoder, Encoder
from voice_clone.families.pocket_tts.config import CONFIG_FILE, FIRST_CONVOLUTION, MODEL, config_of
from voice_clone.families.pocket_tts.talker import FREQUENCIES, PocketTalker
from voice_clone.families.pocket_tts.talker_network import TalkerNetwork
from voice_clone_server.diagnosis.workload import Released
from voice_clone_server.families.pocket_tts.sentencepiece import write_unigram

__all__ = ["DTYPES", "SHAPES", "make_checkpoint", "make_endless", "make_mute", "released", "write_checkpoint"]

_SEANET = {
    "dimension": 512,
    "channels": 1,
    "n_filters": 64,
    "n_residual_layers": 1,
    "ratios": [6, 5, 4],
    "kernel_size": 7,
    "residual_kernel_size": 3,
    "last_kernel_size": 3,
    "dilation_base": 2,
    "pad_mode": "constant",
    "compress": 2,
}
_WINDOW = {"d_model": 512, "num_heads": 8, "num_layers": 2, "context": 250, "dim_feedforward": 2048}


def _json(
    backbone: dict[str, int],
    head: dict[str, Any],
    *,
    bins: int = 4000,
    rank: int | None = None,
    z_dim: int | None = None,
    inner: int = 32,
    seanet: dict[str, Any] = _SEANET,
    window: dict[str, int] = _WINDOW,
    decoder: tuple[dict[str, Any], dict[str, int]] | None = None,
    **rules: Any,
) -> dict[str, Any]:
    """Return the pocket_tts.json of these sizes."""
    width = (decoder[0] if decoder else seanet)["dimension"]
    lm = {
        "insert_bos_before_voice": inner != seanet["dimension"],
        "flow": head,
        "transformer": {"hidden_scale": 1, "max_period": 10000, **backbone},
        "lookup_table": {"dim": backbone["d_model"], "n_bins": bins, "rank": rank},
        "z_dim": z_dim,
    }
    mimi = {
        "sample_rate": 24000,
        "frame_rate": 12.5,
        "channels": 1,
        "inner_dim": inner,
        "outer_dim": width,
        "seanet": seanet,
        "transformer": window,
        "quantizer": {"dimension": 32, "output_dimension": width},
    }
    if decoder:
        mimi |= {"decoder_seanet": decoder[0], "decoder_transformer": decoder[1]}
    characters = {"\u2019": "'", "\u2018": "'"}
    return {"model_type": "pocket_tts", "replace_characters": characters, **rules, "flow_lm": lm, "mimi": mimi}


_BACKBONE = {"d_model": 1024, "hidden_scale": 4, "num_heads": 16, "num_layers": 6}
_LSD = {"dim": 512, "depth": 6}


def _small(filters: int, layers: int) -> tuple[dict[str, Any], dict[str, int]]:
    seanet = {**_SEANET, "dimension": 128, "n_filters": filters, "kernel_size": 3}
    return seanet, {"d_model": 128, "num_heads": 4, "num_layers": layers, "context": 50, "dim_feedforward": 384}


def _tiny(kind: str, backbone: dict[str, int], **more: Any) -> dict[str, Any]:
    seanet = {**_SEANET, "dimension": 32, "n_filters": 4}
    window = {"d_model": 32, "num_heads": 2, "num_layers": 1, "context": 20, "dim_feedforward": 48}
    head = {"dim": 32, "depth": 2, "type": kind}
    return _json(backbone, head, bins=700, seanet=seanet, window=window, **more)


_TINY_DECODER = (
    {**_SEANET, "dimension": 24, "n_filters": 3, "kernel_size": 3},
    {"d_model": 24, "num_heads": 2, "num_layers": 2, "context": 12, "dim_feedforward": 40},
)
_GROUPED = {"d_model": 56, "num_heads": 4, "num_kv_heads": 2, "attn_dim": 64, "dim_feedforward": 48, "num_layers": 2}
_NARROW: dict[str, Any] = {"z_dim": 64, "default_eos_threshold": -1.0}
SHAPES = {
    "tiny": _tiny("lsd", {"d_model": 64, "hidden_scale": 2, "num_heads": 2, "num_layers": 2}),
    "tiny-drifting": _tiny("drifting", _GROUPED, rank=16, z_dim=24, decoder=_TINY_DECODER, default_eos_threshold=-1.0),
    "tiny-pointwise": _tiny(
        "pointwise", _GROUPED, rank=8, inner=32, pad_with_spaces_for_short_inputs=True, remove_semicolons=True
    ),
    "100m": _json(_BACKBONE, _LSD),
    "100m-2026-01": _json(_BACKBONE, _LSD, inner=512, pad_with_spaces_for_short_inputs=True),
    "336m": _json({**_BACKBONE, "num_layers": 24}, _LSD),
    "18m": _json(
        {"d_model": 512, "num_heads": 8, "num_layers": 8},
        {"dim": 192, "depth": 4, "type": "drifting"},
        decoder=_small(32, 12),
        **_NARROW,
    ),
    "7m": _json(
        {"d_model": 224, "num_heads": 8, "num_layers": 8, "attn_dim": 512, "num_kv_heads": 2},
        {"dim": 192, "depth": 4, "type": "drifting"},
        rank=64,
        decoder=_small(32, 12),
        **_NARROW,
    ),
    "2m": _json(
        {"d_model": 112, "num_heads": 3, "num_layers": 8, "dim_feedforward": 96, "attn_dim": 192, "num_kv_heads": 1},
        {"dim": 64, "depth": 4, "type": "pointwise"},
        rank=32,
        decoder=_small(24, 4),
        **_NARROW,
    ),
}
ENDS = 0.01  # share of frames that may end a speech
_RARE = 2.33  # standard deviations; the share `ENDS` of normal numbers lies above it
_END = "flow_lm.out_eos.weight", "flow_lm.out_eos.bias"


def write_checkpoint(shape: str, seed: int, folder: Path, dtype: str, shards: int) -> None:
    """Fill an empty folder; arguments as of `make_checkpoint`."""
    values = SHAPES[shape]
    write_json(folder / CONFIG_FILE, values)
    checkpoint = Checkpoint(folder)
    write_unigram(folder / "tokenizer.json", small_pieces(values["flow_lm"]["lookup_table"]["n_bins"]), unknown=0)
    threshold = checkpoint.config.default_eos_threshold

    def tensor(name: str, size: tuple[int, ...]) -> Tensor:
        return torch.full(size, threshold - _RARE) if name == _END[1] else _TABLE(name, size, seed)

    write_weights(folder, shapes(checkpoint), tensor, dtype, shards, MODEL)


make_checkpoint = maker(write_checkpoint)


def shapes(checkpoint: Checkpoint) -> Shapes:
    """Return the names and shapes of all tensors."""
    found: Shapes = {}
    for module, prefix in _networks(checkpoint.config):
        found |= checkpoint.sources(module, prefix)
    return found


def _networks(config: Any) -> list[tuple[Any, str]]:
    with torch.device("meta"):
        return [(TalkerNetwork(config), TALKER), (Encoder(config.mimi), CODEC), (Decoder(config.mimi), CODEC)]


def make_endless(checkpoint: Path, folder: Path) -> Path:
    """Make a checkpoint like `checkpoint`, in the new folder `folder`, whose speech never ends, not even by chance.

    It links to the files of `checkpoint`, and needs them.
    """

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[_END[0]].zero_()
        tensors[_END[1]].fill_(-100)

    return with_changed(checkpoint, folder, MODEL, _END, change)


def make_mute(checkpoint: Path, folder: Path) -> Path:
    """Make a checkpoint with an encoder of zeros, as in the released file without voice cloning; see `make_endless`."""

    def change(tensors: dict[str, Tensor]) -> None:
        for name in tensors:
            if name.startswith(("mimi.encoder", "mimi.downsample")):
                tensors[name].zero_()

    return with_changed(checkpoint, folder, MODEL, [FIRST_CONVOLUTION], change)


def released() -> dict[str, Released]:
    """Return the released models by their sizes."""
    found = {}
    for shape, values in SHAPES.items():
        if not shape.startswith("tiny"):
            (talker, _), (encoder, _), (decoder, _) = _networks(config_of(values))
            found[shape] = Released(
                f"Pocket TTS {shape}",
                talker,
                PocketTalker.places,
                [encoder],
                decoder,
                positions=950,
                layers=(talker.backbone.config,),
            )
    return found


def _fan_in(name: str, sizes: Sizes) -> float:
    """Return how many inputs an output has. One of a transposed convolution meets two taps of each channel."""
    if not name.endswith("convtr.weight"):
        return math.prod(sizes[1:])
    return 2 if sizes[1] == 1 else 2 * sizes[0]


_TABLE = Gains(
    kinds=(
        (r"\.freqs$", lambda noise, _: torch.exp(-math.log(10_000) * torch.arange(len(noise)) * 2 / FREQUENCIES)),
        (r"(\.alpha|emb_std)$|(norm\d?|in_ln)\.weight$", around(1, 0.1)),
        (r"\.scale$", around(0.3, 0.1)),
        (r"(\.bias|emb_mean)$", spread(0.1)),
        (r"(conditioner\.embed\.weight|bos_emb|bos_before_voice)$", spread()),
    ),
    gains=(
        (r"\.(out_proj|linear2)\.|adaLN", 0.3),
        (r"final_layer\.linear|input_linear|cond_embed", 0.4),  # with more, rounding grows from frame to frame
        (r"^mimi\.decoder\.model\.\d\d\.conv\.weight$", 0.1),
    ),
    fan_in=_fan_in,
)

"""Makes checkpoints with random weights in the exact official on-disk format.

The official package and this project load them as they load a released one; what they say is noise. Same arguments,
same bytes. Sizes: `tiny` for tests and the demo (17 MB), `0.6b` and `1.7b` with the released shapes (2.5 and 4.5 GB).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tools.families.qwen3_tts.checkpoint_config import (
    CODEC_PREPROCESSOR,
    GENERATION,
    SHAPES,
    SPECIAL_TOKENS,
    TEXT_PREPROCESSOR,
    Shape,
    codec_config,
    model_config,
    write_tokenizer,
)
from tools.families.qwen3_tts.checkpoint_weights import codec_shapes, model_shapes, random_tensor
from tools.families.weight_files import DTYPES, maker, with_zero_row, write_json, write_weights
from voice_clone.families.qwen3_tts.config import CODEC_FOLDER, Qwen3TTSConfig, load_config
from voice_clone.families.qwen3_tts.networks.codec_decoder import CodecDecoder
from voice_clone.families.qwen3_tts.networks.codec_decoder_parts import CodecDecoderWeights
from voice_clone.families.qwen3_tts.networks.codec_encoder import CodecEncoder
from voice_clone.families.qwen3_tts.networks.native_codec_decoder import NativeCodecDecoder
from voice_clone.families.qwen3_tts.networks.native_talker import TEXT_TABLE
from voice_clone.families.qwen3_tts.networks.speaker_encoder import SpeakerEncoder
from voice_clone.families.qwen3_tts.networks.talker import Talker
from voice_clone.stages.loading import TalkerPart
from voice_clone_server.diagnosis.speed import arbitrary
from voice_clone_server.diagnosis.workload import FrameLoad, Released

__all__ = ["DTYPES", "SHAPES", "make_checkpoint", "make_endless", "released", "write_configuration"]

RELEASED_TEXT_VOCABULARY = 151936  # padded: the tokenizer has fewer


def _write(shape: str, seed: int, folder: Path, dtype: str, shards: int) -> None:
    """Fill an empty folder; the codec is fp32 as released."""
    config = write_configuration(SHAPES[shape], folder)

    tensor = partial(random_tensor, seed=seed)
    write_weights(folder, model_shapes(config), tensor, dtype, shards)
    write_weights(folder / CODEC_FOLDER, codec_shapes(config), tensor, "fp32", 1)


make_checkpoint = maker(_write)


def make_endless(checkpoint: Path, folder: Path) -> Path:
    """A checkpoint like `checkpoint`, in the new folder `folder`, whose speech never ends, not even by chance.

    It links to the files of `checkpoint`, and needs them.
    """
    end = load_config(checkpoint).talker.codec_eos_token_id
    return with_zero_row(checkpoint, folder, "model", "talker.codec_head.weight", end)  # far from the largest logit


def write_configuration(
    sizes: Shape,
    folder: Path,
    merges: Sequence[tuple[str, str]] | None = None,
    generation: Mapping[str, Any] = GENERATION,
) -> Qwen3TTSConfig:
    """Write all but the weights to the existing `folder`, and read it back; `merges`: of the tokenizer."""
    ids = write_tokenizer(folder, sizes.base_vocabulary, merges)
    vocabulary = RELEASED_TEXT_VOCABULARY
    if sizes.base_vocabulary is None:
        vocabulary = ids[SPECIAL_TOKENS[-1]] + 1
    codec = folder / CODEC_FOLDER
    codec.mkdir()
    for path, content in (
        (folder / "config.json", model_config(sizes, ids, vocabulary)),
        (folder / "generation_config.json", generation),
        (folder / "preprocessor_config.json", TEXT_PREPROCESSOR),
        (codec / "config.json", codec_config(sizes)),
        (codec / "preprocessor_config.json", CODEC_PREPROCESSOR),
    ):
        write_json(path, content)
    return load_config(folder)


def released() -> dict[str, Released]:
    """The models of 0.6B and 1.7B."""
    return {shape: _released(shape) for shape in ("0.6b", "1.7b")}


def _released(shape: str) -> Released:
    with tempfile.TemporaryDirectory() as folder:
        config = write_configuration(SHAPES[shape], Path(folder))
    codec = config.codec
    with torch.device("meta"):
        talker, decoder = Talker(config), CodecDecoder(codec.decoder_config)
        codes = CodecEncoder(codec.encoder_config, codec.encoder_valid_num_quantizers)
        encoders = SpeakerEncoder(config.speaker_encoder), codes
    pace = FrameLoad(
        passes=config.talker.num_code_groups - 1,
        codebooks=codec.decoder_config.num_quantizers,
        decoder_name="qwen3_tts",
        decoder=lambda: NativeCodecDecoder(lambda: CodecDecoderWeights(codec.decoder_config, arbitrary)),
        frame_seconds=codec.decode_upsample_rate / codec.output_sample_rate,
    )
    parts = [TalkerPart("", "talker.", layers=(), in_file=(TEXT_TABLE,))]
    return Released(f"Qwen3-TTS {shape.upper()}", talker, parts, encoders, decoder, positions=1000, pace=pace)

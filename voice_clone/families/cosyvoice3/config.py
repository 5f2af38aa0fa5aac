"""CosyVoice3's configuration: what all checkpoints share, the voice encoder's files and limits, and the talker's sizes.
Needs no torch.

A checkpoint folder has the mark `cosyvoice3.yaml`, which is never read: what it says is code here. The sizes of the
talker's layers are in `CosyVoice-BlankEN/config.json`, the Qwen2 that it was trained from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voice_clone.checkpoint_folder import check_file, check_fixed, check_folder, multiple_of, parse, read_json
from voice_clone.families.cosyvoice3.family import CARD

MARK = CARD.recognised_by
BLANK = "CosyVoice-BlankEN"  # folder of the Qwen2 whose tokenizer and sizes the talker has
CONFIG_FILE = f"{BLANK}/config.json"
LLM, FLOW, HIFT = (each.name for each in CARD.weights)

SAMPLE_RATE = 24000  # Hz
FRAME_SAMPLES = 960  # of a speech token
FRAME_RATE = SAMPLE_RATE / FRAME_SAMPLES  # 25 speech tokens a second
CODES = 6561  # speech tokens: 3 to the power of 8
SPEECH_IDS = CODES + 200  # ids that the talker embeds and predicts; those from `CODES` on are no sound
START, TASK = CODES, CODES + 2  # ids before the text, and between text and speech
BLOCK = 25  # speech tokens that see each other in the flow
MEL_FRAMES = 2  # a speech token
MEL_STEPS = 2048  # of the artifact, in a unit of the log-mel spectrogram

MEL, SPEAKER, TOKENS = (each.name for each in CARD.artifacts)
MEL_BANDS, SPEAKER_SIZE = CARD.artifacts[0].shape[1], CARD.artifacts[1].shape[0]
ZERO_SHOT, CROSS_LINGUAL = CARD.modes
INSTRUCT, ALIGN = (each.name for each in CARD.options)
ALIGNED_REST = 13  # tokens of a first block behind a reference that is cut for `ALIGN`: 0.44 s of sound

TOKENIZER, SPEAKER_ENCODER = (each.removesuffix(".onnx") for each in CARD.graphs)
TOKENIZER_INPUTS = (("tensor(float)", 3), ("tensor(int32)", 1))  # frames [1, 128, n], their number [1]
SPEAKER_INPUTS = (("tensor(float)", 3),)  # frames [1, n, 80]

FRAMES_PER_TOKEN = 4  # of the tokenizer's, 100 a second
MOST_SECONDS = 30  # of a clip: the tokenizer was trained on no longer one
MOST_TOKENS = 25 * MOST_SECONDS
MOST_MEL_FRAMES = 50 * MOST_SECONDS
LEAST_SECONDS = 0.1  # of a clip: all windows are shorter

# What the released checkpoint has, and the only thing that the network computes.
_FIXED: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "use_sliding_window": False,
    "rope_scaling": None,
}


@dataclass(frozen=True)
class TalkerConfig:
    """Sizes of the talker's layers, a Qwen2, and of the table of text tokens."""

    hidden_size: int = field(metadata=multiple_of("num_attention_heads"))
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int = field(metadata=multiple_of("num_key_value_heads"))
    num_key_value_heads: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


def check_mark(folder: Path) -> None:
    """Check that this is a checkpoint folder of the family.

    Raises:
        CheckpointError: it does not exist, or has no mark.
    """
    check_folder(folder)
    check_file(folder, MARK)


def load_config(folder: Path) -> TalkerConfig:
    """Read and check the talker's sizes in the checkpoint in `folder`.

    Raises:
        CheckpointError: a file is missing or malformed, or this is no checkpoint of CosyVoice3.
    """
    check_mark(folder)
    values = read_json(folder, CONFIG_FILE)
    check_fixed(values, _FIXED, f"{CONFIG_FILE}: ")
    return parse(TalkerConfig, values, CONFIG_FILE, positive=True)


def stream_chunks(reference: int) -> tuple[int, ...]:
    """Frames of a stream's chunks; the last repeats.

    The flow works in blocks of `BLOCK` tokens that are counted from the reference's first one, and its first layer sees
    3 tokens ahead. So the first chunk fills the block that the reference began, and half a block would give nothing.
    The vocoder holds back 2 tokens: a rest below 7 tokens gives hardly any sound, and takes the next block along.

    Args:
        reference: speech tokens of the voice.
    """
    rest = BLOCK - reference % BLOCK
    return (rest if rest >= 7 else rest + BLOCK) + 3, BLOCK, 2 * BLOCK


def tokens_before_alignment(reference: int) -> int:
    """How many of a reference's first tokens the flow does without, so that a stream's first block has `ALIGNED_REST`.

    Then every stream is first heard after as many tokens. A reference of less than 4 s keeps all: it can spare none.
    """
    return 0 if reference < 4 * BLOCK else (reference + ALIGNED_REST) % BLOCK

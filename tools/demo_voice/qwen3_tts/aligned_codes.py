"""The codes that the talker says where it has read the true ones up to the frame before.

They are as imperfect as those of its own speech, and yet they belong to a known waveform. A decoder that learns from
them, too, does not trust what the talker cannot know. Shen et al. 2018 train a vocoder so ("ground truth-aligned").
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tools.demo_voice.files import save_arrays
from tools.demo_voice.qwen3_tts.shape import GENERATION
from tools.demo_voice.qwen3_tts.speaker_training import LENGTHS, mel_of
from tools.demo_voice.qwen3_tts.talker_batch import NOTHING, collate, lay_out
from tools.demo_voice.qwen3_tts.talker_data import TalkerCorpus
from tools.demo_voice.qwen3_tts.talker_forward import complete, draw, embed, run
from tools.demo_voice.qwen3_tts.talker_training import HEAD, TalkerModel
from tools.demo_voice.training import generator_of
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig

BATCH = 20  # clips


def make_aligned_codes(
    target: Path,
    model: TalkerModel,
    corpus: TalkerCorpus,
    config: Qwen3TTSConfig,
    role: NDArray[np.int32],
    seed: int,
    utterances: range,
) -> None:
    """Write what the talker says for all variations of some utterances, in a file like that of their codes."""
    clips = [(index, copy) for index in utterances for copy in range(corpus.corpus.copies)]
    lengths = np.array([corpus.frames[clip] for clip in clips])
    order = np.argsort(lengths, kind="stable")
    found: dict[int, NDArray[np.uint8]] = {}
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH].tolist()
        chance = generator_of(seed, utterances.start * corpus.corpus.copies + start)
        said = _say(model, corpus, config, role, [clips[place] for place in places], chance)
        found.update(zip(places, said, strict=True))
    codes = np.concatenate([found[place] for place in range(len(clips))])
    save_arrays(target, codes=codes, lengths=lengths.reshape(-1, corpus.corpus.copies))


@torch.no_grad()
def _say(
    model: TalkerModel,
    corpus: TalkerCorpus,
    config: Qwen3TTSConfig,
    role: NDArray[np.int32],
    clips: list[tuple[int, int]],
    chance: torch.Generator,
) -> list[NDArray[np.uint8]]:
    """The codes of each clip, in the voice of another clip of its speaker: uint8 [frames, 16]."""
    source = np.random.default_rng(int(torch.randint(2**62, (), generator=chance)))
    device = next(model.parameters()).device
    length = int(source.integers(*LENGTHS))
    layouts, mels = [], []
    for index, copy in clips:
        other = int(source.choice(corpus.corpus.of_speaker(corpus.corpus.speakers[index])))
        layouts.append(lay_out([corpus.spoken(index, copy)], config, role, None))
        mels.append(mel_of(corpus.corpus.clip(other, copy), length, config.speaker_encoder, source))
    batch = collate(layouts, device)
    speakers = model.speaker_encoder(torch.stack(mels).to(device))
    hidden, _ = run(model.talker.model, embed(model.talker, batch.positions, speakers))
    framed = batch.next[..., 1] != NOTHING
    states = hidden[framed]
    head = model.talker.get_parameter(HEAD)[: config.talker.code_predictor_config.vocab_size]
    first = draw(states @ head.T, GENERATION["temperature"], chance)
    codes = complete(model.talker, states, first, GENERATION["subtalker_temperature"], chance)
    cuts = framed.sum(dim=1).cumsum(dim=0)[:-1].cpu().numpy()
    return np.split(codes.cpu().numpy().astype(np.uint8), cuts)

"""Trains talker, code predictor and speaker encoder together.

One head of a layer is taught where to look: at the text token that the next frame speaks, which the synthesiser's phone
times show. Without it the alignment takes far longer to learn than all else (Tachibana et al. 2018 guide theirs, too).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tools.demo_voice.qwen3_tts.corpus import Clip
from tools.demo_voice.qwen3_tts.shape import ENGLISH
from tools.demo_voice.qwen3_tts.speaker_training import LENGTHS, SpeakerModel, makings, mel_of
from tools.demo_voice.qwen3_tts.talker_batch import NOTHING, Batch, Layout, collate, lay_out
from tools.demo_voice.qwen3_tts.talker_data import TalkerCorpus
from tools.demo_voice.qwen3_tts.talker_forward import Positions, embed, predict, run
from tools.demo_voice.training import Plan, generator_of, halves_pay
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.networks.talker import Talker

PLAN = Plan(steps=12000, rate=2e-3, warm_up=200, cool_down=0.3)
POSITIONS = 1200  # of a batch, about
IN_CONTEXT = 0.3  # share of the batches
NON_STREAMING = 0.15  # likewise
TWO_SENTENCES = 0.25  # likewise; in the text or in the reference
NOISE = 0.15  # share of the frames that are read with wrong codes, as a talker reads its own
PREDICTED = 0.2  # share of the frames whose codes 1..15 are learned in a step
GUIDED = (1, 0)  # layer and head
GUIDANCE, SPEAKER = 0.5, 1.0  # weights of these losses
HEAD = "codec_head.weight"
_POOL = 4  # a batch is cut from so many times as many clips, sorted by length: little padding


class TalkerModel(SpeakerModel):
    """What is trained: talker and speaker encoder."""

    def __init__(self, config: Qwen3TTSConfig) -> None:
        super().__init__(config.speaker_encoder)
        self.talker = Talker(config)
        _initialise(self.talker)

    def hidden(self) -> list[str]:
        """Names of the matrices between hidden layers."""
        return [name for name, parameter in self.named_parameters() if ".layers." in name and parameter.ndim == 2]


def _initialise(talker: Talker) -> None:
    """Small residual branches and heads; tables that add up to about unit size."""
    tables = {talker.model.text_embedding: 1.0, talker.model.codec_embedding: 0.3}
    tables[talker.code_predictor.model.codec_embedding] = 0.1
    with torch.no_grad():
        for table, size in tables.items():
            table.weight.requires_grad_(True)
            nn.init.normal_(table.weight, std=size)
        for stack in (talker.model, talker.code_predictor.model):
            for name, weight in stack.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weight.mul_((2 * len(stack.layers)) ** -0.5)
        for name, weight in talker.named_parameters():
            if name == HEAD or "lm_head" in name:
                weight.mul_(0.3)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A batch and whose voice it speaks in: mels [B, frames, 128] of the references, and what they are made of."""

    batch: Batch
    mels: Tensor
    made_of: tuple[Tensor, Tensor]


class TalkerTask:
    """The loss of a step."""

    def __init__(
        self,
        model: TalkerModel,
        corpus: TalkerCorpus,
        config: Qwen3TTSConfig,
        role: NDArray[np.int32],
        seed: int,
        device: torch.device,
    ) -> None:
        self._model, self._corpus, self._config, self._role = model, corpus, config, role
        self._seed, self._device = seed, device
        others = config.talker.num_code_groups - 1
        # The first books carry most of the sound, so most of the effort goes there.
        weights = torch.linspace(2.0, 0.3, others)
        self._weights = (weights / weights.sum()).to(device)
        self._makings = makings()

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """The loss of step `step`, and its parts."""
        chance = generator_of(self._seed, step)
        drawn = self.draw(chance)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=halves_pay(self._device)):
            return self.loss_of(drawn, chance)

    def draw(self, chance: torch.Generator) -> Drawn:
        """A batch of one of the layouts."""
        source = np.random.default_rng(int(torch.randint(2**62, (), generator=chance)))
        joined, non_streaming = source.random() < IN_CONTEXT, source.random() < NON_STREAMING
        longer = source.random() < TWO_SENTENCES
        frames, corpus = self._corpus.frames, self._corpus.corpus
        count = max(1, int(POSITIONS / (frames.mean() * (1 + joined + longer) + 10)))
        pool = source.integers((len(frames), frames.shape[1]), size=(_POOL * count, 2))
        pool = pool[np.argsort(frames[pool[:, 0], pool[:, 1]], kind="stable")]
        start = int(source.integers(len(pool) - count + 1))
        layouts: list[Layout] = []
        references: list[Clip] = []
        numbers = []
        for index, copy in pool[start : start + count].tolist():
            speaker = corpus.speakers[index]
            other, third = source.choice(corpus.of_speaker(speaker), size=2).tolist()
            said = self._corpus.spoken(index, copy)
            reference = self._corpus.spoken(other, copy)
            language = ENGLISH if source.random() < 0.5 else None
            parts = [reference, said] if joined else [said]
            if longer:
                parts.insert(int(source.integers(1, len(parts) + 1)), self._corpus.spoken(third, copy, follows=True))
            layouts.append(lay_out(parts, self._config, self._role, language, non_streaming))
            references.append(reference.clip)
            numbers.append(speaker * corpus.copies + copy)
        length = int(source.integers(*LENGTHS))
        mels = torch.stack([mel_of(clip, length, self._config.speaker_encoder, source) for clip in references])
        voices, traits = (each[numbers].to(self._device) for each in self._makings)
        return Drawn(collate(layouts, self._device), mels.to(self._device), (voices, traits))

    def loss_of(self, drawn: Drawn, chance: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch; `chance` decides which codes are read wrong and which frames the predictor learns."""
        model, batch = self._model, drawn.batch
        speaker, who = model.read(drawn.mels, drawn.made_of)
        x = embed(model.talker, _noisy(batch.positions, chance), speaker)
        hidden, seen = run(model.talker.model, x, GUIDED)
        assert seen is not None
        first = batch.next[..., 0]
        said = first != NOTHING
        head = model.talker.get_parameter(HEAD)
        logits = (
            hidden[said] @ head[: self._config.talker.codec_eos_token_id + 1].T
        )  # the codes and, behind them, the end
        code0 = F.cross_entropy(logits, first[said])
        guide = guidance(seen, batch.spoken)
        others = self._predictor_loss(hidden, batch.next, chance)
        total = code0 + others + GUIDANCE * guide + SPEAKER * who
        figures = {"code0": code0.item(), "others": others.item(), "guide": guide.item(), "speaker": who.item()}
        return total, figures

    def _predictor_loss(self, hidden: Tensor, following: Tensor, chance: torch.Generator) -> Tensor:
        framed = torch.nonzero((following[..., 1] != NOTHING).flatten())[:, 0]
        order = torch.randperm(len(framed), generator=chance)[: max(1, int(PREDICTED * len(framed)))]
        chosen = framed[order.to(framed.device)]
        codes = following.flatten(0, 1)[chosen]
        logits = predict(self._model.talker, hidden.flatten(0, 1)[chosen], codes)
        losses = F.cross_entropy(logits.transpose(1, 2), codes[:, 1:], reduction="none").mean(dim=0)
        return (losses * self._weights).sum()


def guidance(seen: Tensor, spoken: Tensor) -> Tensor:
    """How little of a head's attention falls on the spoken token and its neighbours.

    Args:
        seen: logarithms of the attention [B, T, T].
        spoken: int64 [B, T], where the token stands; or NOTHING.
    """
    near = spoken[..., None] + torch.arange(-1, 2, device=spoken.device)
    places = torch.arange(seen.shape[1], device=spoken.device)[:, None]
    found = seen.gather(2, near.clamp(min=0).minimum(places.expand_as(near)))
    # A neighbour beyond the present position is the present one: it must not count twice.
    found = found.masked_fill(near > places, -torch.inf)
    return -found.logsumexp(dim=2)[spoken != NOTHING].mean()


def _noisy(positions: Positions, chance: torch.Generator) -> Positions:
    """The same, but in some frames all codes from a random book on are those of another frame."""
    codes, device = positions.codes, positions.codes.device
    batch, size, books = codes.shape
    wrong = torch.rand(batch, size, generator=chance) < NOISE
    start = torch.randint(books, (batch, size), generator=chance)
    others = codes.flatten(0, 1)[torch.randint(batch * size, (batch, size), generator=chance).to(device)]
    replaced = wrong[..., None] & (torch.arange(books) >= start[..., None])
    mixed = torch.where(replaced.to(device), others, codes)
    return Positions(positions.text, positions.control, positions.speaker, mixed, positions.framed)

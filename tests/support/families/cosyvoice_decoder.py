"""Small CosyVoice3 checkpoints with a decoder alone, converted, and streams of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from tools.families.cosyvoice3.decoder import make_decoder
from voice_clone.codec.chunk import Reference
from voice_clone.families.cosyvoice3.codec import FORM
from voice_clone.families.cosyvoice3.config import CODES, FLOW, HIFT, MARK, MEL, MEL_BANDS, MEL_FRAMES, SPEAKER
from voice_clone.families.cosyvoice3.decoder_config import NOISE_FRAMES, SOURCE_NOISE
from voice_clone.families.cosyvoice3.flow_streams import FlowStreams
from voice_clone.families.cosyvoice3.networks.flow import FlowNetwork
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder
from voice_clone.layers.graphs import GraphRunner
from voice_clone.lru_cache import Origin
from voice_clone_server.families.cosyvoice3.released_shapes import GENERATOR


def make_cosyvoice_decoder(folder: Path, shape: str = "tiny", seed: int = 0) -> Path:
    """A new folder with random weights of flow and vocoder, as the server reads them."""
    folder.mkdir(parents=True)
    make_decoder(shape, seed, folder)
    flow, vocoder = (torch.load(folder / f"{name}.pt", weights_only=True) for name in (FLOW, HIFT))
    generator = torch.Generator().manual_seed(seed)
    del flow["decoder.estimator.rotary_embed.inv_freq"]
    flow["decoder.rand_noise"] = torch.randn(1, MEL_BANDS, NOISE_FRAMES, generator=generator)
    vocoder = {name.removeprefix(GENERATOR): tensor for name, tensor in vocoder.items()}
    vocoder["m_source.l_sin_gen.sine_waves"] = torch.rand(1, SOURCE_NOISE, 9, generator=generator)
    save_file(flow, folder / f"{FLOW}.safetensors")
    save_file(vocoder, folder / f"{HIFT}.safetensors")
    (folder / MARK).touch()
    return folder


def some_tokens(count: int, seed: int = 0) -> NDArray[np.uint16]:
    """Random speech tokens [count, 1]."""
    return np.random.default_rng(seed).integers(0, CODES, (count, 1)).astype(np.uint16)


def some_reference(tokens: int, seed: int = 0, voice: str = "") -> Reference:
    """A voice's tokens and what else of it the decoder needs."""
    random = np.random.default_rng(seed + 100)
    mel = (2048 * random.standard_normal((MEL_FRAMES * tokens, MEL_BANDS))).astype(np.int16)
    speaker = random.standard_normal(192).astype(np.float32)
    return Reference(some_tokens(tokens, seed), {MEL: mel, SPEAKER: speaker}, Origin(voice, Origin.unknown().found))


class CountedFlow:
    """Counts the blocks that a flow solves, and keeps the last ones.

    Attributes:
        blocks: their number.
        solved: of the last call, for each stream: the mel frames of its blocks.
    """

    def __init__(self, flow: FlowNetwork) -> None:
        self.blocks = 0
        self.solved: list[list[Tensor]] = []
        self._flow = flow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flow, name)

    def solve(self, spans: Any, together: bool) -> list[list[Tensor]]:
        self.blocks += sum(len(span.blocks) for span in spans)
        self.solved = self._flow.solve(spans, together)
        return self.solved


def flow_streams(
    flow: Any, vocoder: Vocoder, pages: float = 1000, together: bool = False, graphs: GraphRunner | None = None
) -> FlowStreams:
    """All streams of a decoder with memory for so many pages."""
    size = int(pages * flow.page_bytes)
    return FlowStreams(flow, vocoder, FORM, page_bytes=size, primed_seconds=600, together=together, graphs=graphs)


def in_chunks(
    streams: FlowStreams, reference: Reference, tokens: NDArray[np.uint16], sizes: list[int]
) -> list[NDArray[np.float32]]:
    """The samples of each chunk of a stream, those of its end last."""
    stream, _ = streams.open(reference)
    heard, done = [], 0
    for size in sizes:
        heard += streams.decode([stream], [tokens[done : done + size]])
        done += size
    assert done >= len(tokens)
    heard.append(streams.flush(stream))
    streams.close(stream)
    return heard

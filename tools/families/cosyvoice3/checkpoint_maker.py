"""Makes checkpoints with random weights in the official format of `FunAudioLLM/Fun-CosyVoice3-0.5B-2512`.

They speak noise.

Sizes: `tiny` for tests and the demo, `0.5b` with the released shapes (2 GB, 1.3 GB and 1 GB), `0.5b-2` with the
released widths and two layers. The same arguments give the same bytes. llm.pt, flow.pt and hift.pt are written as
released, and converted.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import torch
from torch import Tensor

from tools.families.cosyvoice3.decoder import FLOWS, VOCODERS, make_decoder
from tools.families.cosyvoice3.encoders import ENCODERS, SpeakerNetwork, make_encoders
from tools.families.cosyvoice3.talker import HEAD, TALKERS, make_talker
from tools.families.weight_files import DTYPES, maker, with_changed
from voice_clone.families.cosyvoice3.codec import CPU_PAGE_BYTES
from voice_clone.families.cosyvoice3.config import CODES, FLOW, HIFT, LLM, MARK
from voice_clone.families.cosyvoice3.networks.speech_tokenizer import SpeechTokenizer
from voice_clone.families.cosyvoice3.networks.talker import TalkerNetwork
from voice_clone.families.cosyvoice3.talker import PARTS
from voice_clone_server.diagnosis.workload import Released
from voice_clone_server.families.cosyvoice3.pickle_converter import convert
from voice_clone_server.families.cosyvoice3.released_shapes import flow_shapes, vocoder_shapes

SHAPES = ENCODERS
__all__ = ["DTYPES", "SHAPES", "make_checkpoint", "make_endless", "released", "write_checkpoint"]


def write_checkpoint(shape: str, seed: int, folder: Path, dtype: str) -> None:
    """Fill an empty folder; arguments as of `make_checkpoint`."""
    (folder / MARK).touch()
    make_talker(shape, seed, folder)
    make_decoder(shape, seed, folder)
    make_encoders(shape, seed, folder)
    kind = DTYPES[dtype][0]
    for name in (LLM, FLOW, HIFT):
        if kind != torch.float32:
            file = folder / f"{name}.pt"
            tensors = torch.load(file, weights_only=True)
            torch.save({each: tensor.to(kind) for each, tensor in tensors.items()}, file)
    convert(folder)


make_checkpoint = maker(lambda shape, seed, folder, dtype, shards: write_checkpoint(shape, seed, folder, dtype))


def make_endless(checkpoint: Path, folder: Path) -> Path:
    """Make a checkpoint like `checkpoint`, in the new folder `folder`, whose speech never ends, not even by chance.

    It links to the files of `checkpoint`, and needs them. The ids that end a speech get a logit of zero. The
    logits of all others are so far apart that one above zero always wins.
    """

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[HEAD][CODES:] = 0
        tensors[HEAD][:CODES] *= 10

    return with_changed(checkpoint, folder, LLM, [HEAD], change)


def released() -> dict[str, Released]:
    """The model of 0.5B. Its streams share pages, so a minute of speech takes no more memory than all pages."""
    shape = "0.5b"
    encoder, decoder = ENCODERS[shape], {**flow_shapes(FLOWS[shape]), **vocoder_shapes(VOCODERS[shape])}
    with torch.device("meta"):
        talker = TalkerNetwork(TALKERS[shape])
        encoders = SpeechTokenizer(encoder.width, encoder.layers), SpeakerNetwork(encoder.channels)
    numbers = sum(map(prod, decoder.values()))
    found = Released(
        "CosyVoice3 0.5B", talker, PARTS, encoders, numbers, positions=1800, other_stream_bytes=CPU_PAGE_BYTES
    )
    return {shape: found}

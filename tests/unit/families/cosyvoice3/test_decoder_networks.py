"""CosyVoice3's vocoder in pieces, its fixed noise, and which weights of flow and vocoder are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.families.cosyvoice_decoder import make_cosyvoice_decoder, some_reference, some_tokens
from tools.families.cosyvoice3.decoder import FLOWS, VOCODERS
from voice_clone.errors import CheckpointError
from voice_clone.families.cosyvoice3.config import FLOW, HIFT, MARK, SPEAKER
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint
from voice_clone.families.cosyvoice3.decoder_config import flow_config, primed_blocks, vocoder_config
from voice_clone.families.cosyvoice3.networks.flow import Block, FlowNetwork, Span
from voice_clone.families.cosyvoice3.networks.vocoder import Vocoder, VocoderState
from voice_clone_server.families.cosyvoice3.released_shapes import flow_shapes, vocoder_shapes

pytestmark = pytest.mark.thorough

CPU = torch.device("cpu")
STREAMED = 1e-5  # of the waveform's RMS
FRAMES = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cosyvoice_decoder(tmp_path_factory.mktemp("cosyvoice") / "checkpoint")


@pytest.fixture(scope="module")
def vocoder(folder: Path) -> Vocoder:
    return DecoderCheckpoint(folder).load_vocoder(CPU)


@pytest.fixture(scope="module")
def flow(folder: Path) -> FlowNetwork:
    return DecoderCheckpoint(folder).load_flow(torch.float32, CPU)


def some_mel(frames: int) -> Tensor:
    return torch.randn(80, frames, generator=torch.Generator().manual_seed(5))


def spoken(vocoder: Vocoder, mel: Tensor, sizes: list[int]) -> tuple[Tensor, list[VocoderState]]:
    states, heard = [vocoder.new_state()], []
    for piece in torch.split(mel, sizes, dim=1):
        samples, state = vocoder.move_on(piece, states[-1])
        heard.append(samples)
        states.append(state)
    rest, _ = vocoder.move_on(mel[:, :0], states[-1], last=True)
    return torch.cat([*heard, rest]), states


@pytest.mark.parametrize("sizes", [[2] * 60, [1, 3, 4, 112], [50, 50, 20], [4, 1, 115]])
def test_pieces_make_the_waveform_of_the_whole(vocoder: Vocoder, sizes: list[int]) -> None:
    whole, _ = spoken(vocoder, some_mel(FRAMES), [FRAMES])
    pieces, states = spoken(vocoder, some_mel(FRAMES), sizes)
    assert len(whole) == len(pieces) == 480 * FRAMES
    assert float((pieces - whole).abs().max()) < STREAMED * float(whole.std())
    assert max(state.nbytes for state in states) < 1.5 * states[1].nbytes  # it grows with no stream


def test_a_state_can_be_continued_twice(vocoder: Vocoder) -> None:
    """Nothing writes into it."""
    _, state = vocoder.move_on(some_mel(20), vocoder.new_state())
    first, second = (vocoder.move_on(some_mel(30), state)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_voiced_frames_have_a_pitch_and_others_noise(vocoder: Vocoder) -> None:
    """Both kinds are in what the tests compare."""
    state = vocoder.new_state()
    source, _ = vocoder._source(torch.tensor([5.0, 200.0]), state)
    unvoiced, voiced = source[8:488], source[488:]
    assert float(unvoiced.std()) > 5 * float(voiced.std()) > 0  # of noise, and around a sine that is constant
    weights = vocoder.f0_predictor.classifier.weight
    assert weights.dtype == torch.float64


def test_the_noise_of_the_source_begins_anew_after_a_minute(vocoder: Vocoder) -> None:
    pitch = torch.full((3,), 5.0)
    _, early = vocoder.move_on(some_mel(10), vocoder.new_state())
    frames = [vocoder._source(pitch, VocoderState(early.buffers, early.phase, early.source, early.overlap, 0, place))[0]
              for place in (1, 3001, 2)]  # fmt: skip
    assert torch.equal(frames[0], frames[1]) and not torch.equal(frames[0], frames[2])


def test_the_noise_of_the_flow_begins_anew_after_five_minutes(flow: FlowNetwork) -> None:
    """Longer speeches go on, where the official code ends."""
    pages = [flow.new_page(0)] * 301
    for page in pages[:1]:
        page.keys.zero_()
        page.inputs.zero_()
    block = Block(torch.zeros(2, 80), torch.zeros(2, 80))
    [[mel]] = flow.solve([Span(torch.zeros(80), pages, [block], [None])], False)
    assert mel.shape == (2, 80) and torch.isfinite(mel).all()


def test_guidance_counts(flow: FlowNetwork) -> None:
    """Tokens, reference and speaker change the mel, each by itself."""
    voice = some_reference(10)
    tokens = torch.from_numpy(some_tokens(10).astype("int64")).flatten()
    rows = flow.embed_tokens(tokens, 0)
    speaker = flow.embed_speaker(torch.from_numpy(voice.voice[SPEAKER]))
    nothing, none = torch.zeros_like(rows), torch.zeros(80)
    given = [(none, nothing, nothing), (speaker, nothing, nothing), (none, rows, nothing), (none, nothing, rows)]
    made = [flow.solve([Span(who, [], [Block(*what)], [None])], False)[0][0] for who, *what in given]
    for other in made[1:]:
        assert float((other - made[0]).abs().max()) > 0.01


def test_blocks_of_the_voice_alone() -> None:
    assert [primed_blocks(tokens, 25) for tokens in (0, 27, 28, 52, 53, 250)] == [0, 0, 1, 1, 2, 9]


def test_sizes_are_those_of_the_weights() -> None:
    for shape in FLOWS:
        assert flow_config(flow_shapes(FLOWS[shape])) == FLOWS[shape]
        assert vocoder_config(vocoder_shapes(VOCODERS[shape])) == VOCODERS[shape]


def _drop(name: str) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        for each in [each for each in tensors if name in each]:
            del tensors[each]

    return change


def _cut(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({name: tensors[name][:-1].clone()})


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (FLOW, _drop("transformer_blocks.0."), r"flow: .*transformer_blocks\.0\..* is missing"),
        (FLOW, _drop("transformer_blocks"), r"flow: .*transformer_blocks\..* is missing"),
        (FLOW, _drop("rand_noise"), "tensor decoder.rand_noise is missing"),
        (FLOW, _drop("to_q"), r"to_q\.weight is missing"),
        (FLOW, _cut("decoder.estimator.input_embed.proj.weight"), "its first matrix is 127 x 320"),
        (FLOW, _cut("input_embedding.weight"), r"shape \(6560, 80\), expected \(6561, 80\)"),
        (HIFT, _drop("conv_pre"), "hift: .*conv_pre.*is missing"),
        (HIFT, _drop("sine_waves"), "sine_waves is missing"),
        (HIFT, _cut("ups.1.parametrizations.weight.original0"), r"shape \(7, 1, 1\), expected \(8, 1, 1\)"),
    ],
)
def test_weights_that_are_refused(
    folder: Path, tmp_path: Path, file: str, change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    for each in (MARK, f"{FLOW}.safetensors", f"{HIFT}.safetensors"):
        (tmp_path / each).symlink_to(folder / each)
    tensors = load_file(folder / f"{file}.safetensors")
    change(tensors)
    (tmp_path / f"{file}.safetensors").unlink()
    save_file(tensors, tmp_path / f"{file}.safetensors")
    with pytest.raises(CheckpointError, match=message):
        checkpoint = DecoderCheckpoint(tmp_path)
        checkpoint.load_flow(torch.float32, CPU)
        checkpoint.load_vocoder(CPU)


def test_weights_that_are_not_converted_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / MARK).touch()
    (tmp_path / "flow.pt").symlink_to(folder / "flow.pt")
    with pytest.raises(CheckpointError, match="convert-pickles"):
        DecoderCheckpoint(tmp_path)

"""The stages of chirp, the made-up second family, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families import trials
from tests.support.families.bare import Bare
from tests.support.families.graph_safety import Recorder
from tests.support.families.small_codec import make_code2wav
from tools.example_family.checkpoint_maker import CONFIG, make_checkpoint
from tools.example_family.config import load_config
from tools.example_family.talker import load_network
from tools.models import write
from voice_clone.batching.stream import FrameChunk, Timing
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.graphed_streams import Graphs
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.speech import ResolvedVoice
from voice_clone.stages.protocols import StreamPlan
from voice_clone.triton.stages.streams import LastChunks
from voice_clone.triton.stages.talker_call import TalkerStream
from voice_clone.triton.stages.talker_sink import TalkerSink
from voice_clone.triton.tensors import pack, unpack
from voice_clone_server.families.recognition import FamilyError, families_of, models_of
from voice_clone_server.triton_server import MODELS

SIZES = CONFIG["codebook_sizes"]
TIMING = Timing(queue=1.0, prefill=1.0, generate=1.0, first_frame=1.0, first_chunk=1.0, gap=1.0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(3, tmp_path_factory.mktemp("chirp") / "checkpoint")


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> Bare:
    return trials.bare("chirp", checkpoint)


def timbre(seed: int, rows: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float16)


def random_codes(frames: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, frames) for size in SIZES], axis=1).astype(np.uint16)


def plan(bare: Bare, seed: int, text: str = "Hello there.", **more: Any) -> StreamPlan[Any]:
    voice = ResolvedVoice({"timbre": timbre(seed)}, "Some words.", "clone")
    return bare.plan(text, voice, seed=seed, **more)


def test_a_voice_goes_into_fixed_shapes(bare: Bare) -> None:
    """The decoder in steps that CUDA graphs can hold: the voice is in its stream's row of the table, too."""
    form, asked = bare.decoder.form, [plan(bare, seed) for seed in range(3)]
    codes = [random_codes(9, seed) for seed in range(3)]
    heard = []
    for graphs in (None, Graphs(GraphRunner(Recorder()), 3, (1, 4))):
        code2wav, parts = make_code2wav(bare.decoder.decoder, form, graphs=graphs), []
        for index, (begin, end) in enumerate([(0, 2), (2, 9)]):
            chunks = [
                CodecChunk(str(n), index, codes[n][begin:end], codes[n][:0], False, voice={} if index else each.voice)
                for n, each in enumerate(asked)
            ]
            parts.append(np.stack([each.waveform for each in code2wav.decode(chunks) if isinstance(each, Decoded)]))
        heard.append(np.concatenate(parts, axis=1))
    assert heard[0].shape[0] == 3 and heard[0].std() > 0.01
    np.testing.assert_allclose(*heard, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("voice", "message"),
    [
        ({}, "this decoder needs the voice with chunk 0"),
        ({"colour": timbre(0)}, "voice lacks timbre"),
        ({"timbre": timbre(0).astype(np.float32)}, "must be FP16"),
        ({"timbre": timbre(0)[:, :5]}, r"\[rows, 8\]"),
        ({"timbre": timbre(0, rows=0)}, "at least one row"),
        ({"timbre": np.full((2, 8), np.nan, np.float16)}, "must be finite"),
    ],
)
def test_a_wrong_voice_opens_no_stream(bare: Bare, voice: Mapping[str, np.ndarray], message: str) -> None:
    code2wav, codes = make_code2wav(bare.decoder.decoder, bare.decoder.form), random_codes(2)
    [refused] = code2wav.decode([CodecChunk("s", 0, codes, codes[:0], False, voice=voice)])
    with pytest.raises(InvalidArgument, match=message):
        raise refused if isinstance(refused, Exception) else AssertionError(refused)
    assert code2wav.streams == 0


@pytest.mark.parametrize("book", range(3))
def test_each_codebook_has_its_own_limit(bare: Bare, book: int) -> None:
    codes = random_codes(2)
    codes[1, book] = SIZES[book]
    with pytest.raises(InvalidArgument, match="codes must lie in"):
        bare.decoder.form.check(codes, "codes", 512)


class Sent:
    """The responses to a talker's request."""

    def __init__(self) -> None:
        self.outputs: list[Mapping[str, Any]] = []

    def send(self, outputs: Mapping[str, Any], final: bool = False) -> None:
        self.outputs.append(outputs)

    def fail(self, error: BaseException) -> None:
        raise error

    def cancelled(self) -> bool:
        return False


@pytest.mark.parametrize("lengths", [[0], [2, 0], [2, 3]])
def test_the_voice_goes_with_the_first_heartbeat_and_chunk_0(bare: Bare, lengths: list[int]) -> None:
    """With a last chunk without frames, too, if that is the first one."""
    asked, sent, now = plan(bare, 1), Sent(), [0.0]
    stream = TalkerStream("s", "s.secret", asked, {}, pack(asked.voice))
    sink = TalkerSink(stream, sent, LastChunks(), lambda: now[0])
    for index, frames in enumerate(lengths):
        now[0] += 1.0
        assert not sink.cancelled()  # a heartbeat
        finish = "stop" if index == len(lengths) - 1 else None
        sink.chunk(FrameChunk(index, random_codes(frames), sum(lengths[: index + 1]), finish, 9, TIMING))
    beats, chunks = sent.outputs[::2], sent.outputs[1::2]
    assert [bool(each["voice"]) for each in beats] == [True] + [False] * (len(beats) - 1)
    assert [bool(each["voice"]) for each in chunks] == [True] + [False] * (len(chunks) - 1)
    code2wav = make_code2wav(bare.decoder.decoder, bare.decoder.form)
    for each in chunks:
        voice = unpack("voice", each["voice"])
        chunk = CodecChunk("s", each["chunk_index"], each["codes"], each["context_codes"], each["final"], voice=voice)
        [decoded] = code2wav.decode([chunk])
        assert isinstance(decoded, Decoded) and decoded.waveform.size == 441 * len(each["codes"])


def test_a_prompt_is_as_long_as_its_embedding(bare: Bare) -> None:
    for options in ({}, {"breath": True}):
        prompt = plan(bare, 1, options=options).request.prompt
        talker = bare.talker.source.talker
        embeds = talker.embed_prompt(prompt).embeds
        assert embeds.shape == (talker.prompt_length(prompt), 32)
        prefix = talker.prefix(prompt)
        assert prefix.length < talker.prompt_length(prompt)
        other = plan(bare, 1, "Another text.").request.prompt
        assert talker.prefix(other) == prefix
        torch.testing.assert_close(talker.embed_prompt(other).embeds[: prefix.length], embeds[: prefix.length])


def test_repositories_distinguish_the_families(checkpoint: Path, tmp_path: Path) -> None:
    write(["tools.example_family"], tmp_path)
    repositories = [MODELS, tmp_path]
    assert families_of([checkpoint], repositories) == {"chirp": checkpoint}
    names = ("", "_code2wav", "_prompt", "_talker", "_voice_encoder")
    of_no_family = {"speaker_cache", "speech_whole"}
    assert set(models_of(["chirp"], repositories)) == of_no_family | {f"chirp{name}" for name in names}
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FamilyError, match=r"chirp has chirp\.json with model_type = chirp"):
        families_of([tmp_path], repositories)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "crow"}, "model_type is 'crow', not 'chirp'"),
        ({"sample_rate": "high"}, "sample_rate: unexpected value 'high'"),
        ({"talker": {}}, "talker: the key 'hidden_size' is missing"),
        ({"timbre_samples": 11025}, "timbre_samples must be a multiple"),
        ({"codebook_sizes": [40, 24, 25]}, r"chirp\.safetensors: talker\.codes\.weight: shape"),
    ],
)
def test_a_wrong_checkpoint_is_refused(checkpoint: Path, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    (tmp_path / "chirp.json").write_text(json.dumps({**CONFIG, **changed}), encoding="utf-8")
    (tmp_path / "chirp.safetensors").symlink_to(checkpoint / "chirp.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_network(Settings({}, {"VOICE_CLONE_CHIRP_CHECKPOINT_DIR": str(tmp_path)}, "chirp"))


def test_settings_of_the_family(checkpoint: Path, tmp_path: Path) -> None:
    environment = {"VOICE_CLONE_CHECKPOINT_DIR": str(tmp_path), "VOICE_CLONE_CHIRP_CHECKPOINT_DIR": str(checkpoint)}
    settings = Settings({}, {**environment, "VOICE_CLONE_PRECISION": "int4", "VOICE_CLONE_DEVICE": "cpu"}, "chirp")
    with pytest.raises(Unsupported, match="fp32 or bf16 alone"):
        load_network(settings)
    assert load_config(TalkerSettings.of(settings).checkpoint_dir).codebook_sizes == tuple(SIZES)


def test_the_checkpoint_has_the_defaults(bare: Bare) -> None:
    request = plan(bare, 1).request
    assert request.max_frames == CONFIG["sampling"]["max_frames"]
    assert request.sampling.first == request.sampling.others == (1.0, CONFIG["sampling"]["temperature"], 0, 1.0)
    assert request.sampling.columns[0] == 1.0, "no repetition penalty"

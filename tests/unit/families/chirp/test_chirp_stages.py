"""The stages of chirp, the made-up second family, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.families.chirp_bare import BareChirp
from tests.support.families.graph_safety import Recorder
from tests.support.families.small_codec import make_code2wav
from tools.example_family.checkpoint_maker import CONFIG, make_checkpoint
from tools.example_family.config import load_config
from tools.example_family.encoder_stage import load_encoder
from tools.example_family.talker_stage import load_network
from tools.families.recognition import FamilyError, families_of, models_of
from tools.models import write
from tools.triton_server import MODELS
from voice_clone.batching.stream import FrameChunk, Timing
from voice_clone.codec.chunk import CodecChunk, Decoded
from voice_clone.codec.graphed_streams import Graphs
from voice_clone.errors import CheckpointError, InvalidArgument, Unsupported
from voice_clone.layers.graphs import GraphRunner
from voice_clone.settings import Settings, TalkerSettings
from voice_clone.stages.protocols import StreamPlan
from voice_clone.triton.stages.streams import LastChunks
from voice_clone.triton.stages.talker_call import TalkerStream
from voice_clone.triton.stages.talker_sink import TalkerSink
from voice_clone.triton.tensors import pack, unpack

SIZES = CONFIG["codebook_sizes"]
TIMING = Timing(queue=1.0, prefill=1.0, generate=1.0, first_frame=1.0, first_chunk=1.0, gap=1.0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(3, tmp_path_factory.mktemp("chirp") / "checkpoint")


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> BareChirp:
    return BareChirp(checkpoint)


def timbre(seed: int, rows: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float16)


def random_codes(frames: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, size, frames) for size in SIZES], axis=1).astype(np.uint16)


def plan(bare: BareChirp, seed: int, **more: Any) -> StreamPlan[Any]:
    return bare.plan("Hello there.", timbre(seed), "Some words.", seed=seed, **more)


@pytest.mark.parametrize("lengths", [[30], [1] * 30, [2, 4, 8, 8, 8], [29, 1], [3, 11, 16]])
def test_chunks_joined_equal_the_whole(bare: BareChirp, lengths: list[int]) -> None:
    asked = plan(bare, 1)
    whole = bare.decode(random_codes(30), asked)
    assert whole.shape == (30 * 441,) and np.sqrt((whole**2).mean()) > 0.01
    code2wav = make_code2wav(bare.decoder, bare.form)
    parts = []
    for index, codes in enumerate(np.split(random_codes(30), np.cumsum(lengths)[:-1])):
        final = index == len(lengths) - 1
        voice = asked.voice if index == 0 else {}
        [decoded] = code2wav.decode([CodecChunk("s", index, codes, codes[:0], final, voice=voice)])
        assert isinstance(decoded, Decoded), decoded
        parts.append(decoded.waveform)
    assert np.abs(np.concatenate(parts) - whole).max() <= 1e-6
    assert code2wav.streams == 0


def test_a_voice_goes_into_fixed_shapes(bare: BareChirp) -> None:
    """The decoder in steps that CUDA graphs can hold: the voice is in its stream's row of the table, too."""
    form, asked = bare.form, [plan(bare, seed) for seed in range(3)]
    codes = [random_codes(9, seed) for seed in range(3)]
    heard = []
    for graphs in (None, Graphs(GraphRunner(Recorder()), 3, (1, 4))):
        code2wav, parts = make_code2wav(bare.decoder, form, graphs=graphs), []
        for index, (begin, end) in enumerate([(0, 2), (2, 9)]):
            chunks = [
                CodecChunk(str(n), index, codes[n][begin:end], codes[n][:0], False, voice={} if index else each.voice)
                for n, each in enumerate(asked)
            ]
            parts.append(np.stack([each.waveform for each in code2wav.decode(chunks) if isinstance(each, Decoded)]))
        heard.append(np.concatenate(parts, axis=1))
    assert heard[0].shape[0] == 3 and heard[0].std() > 0.01
    np.testing.assert_allclose(*heard, rtol=0, atol=1e-6)


def test_streams_in_one_batch_keep_their_own_voices(bare: BareChirp) -> None:
    plans = [plan(bare, seed) for seed in range(4)]
    code2wav, codes = make_code2wav(bare.decoder, bare.form), random_codes(8)
    chunks = [CodecChunk(str(n), 0, codes, codes[:0], True, voice=each.voice) for n, each in enumerate(plans)]
    for each, decoded in zip(plans, code2wav.decode(chunks), strict=True):
        assert isinstance(decoded, Decoded)
        assert np.abs(decoded.waveform - bare.decode(codes, each)).max() <= 1e-6
    assert np.abs(bare.decode(codes, plans[0]) - bare.decode(codes, plans[1])).max() > 0.01


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
def test_a_wrong_voice_opens_no_stream(bare: BareChirp, voice: Mapping[str, np.ndarray], message: str) -> None:
    code2wav, codes = make_code2wav(bare.decoder, bare.form), random_codes(2)
    [refused] = code2wav.decode([CodecChunk("s", 0, codes, codes[:0], False, voice=voice)])
    with pytest.raises(InvalidArgument, match=message):
        raise refused if isinstance(refused, Exception) else AssertionError(refused)
    assert code2wav.streams == 0


@pytest.mark.parametrize("book", range(3))
def test_each_codebook_has_its_own_limit(bare: BareChirp, book: int) -> None:
    codes = random_codes(2)
    codes[1, book] = SIZES[book]
    with pytest.raises(InvalidArgument, match="codes must lie in"):
        bare.form.check(codes, "codes", 512)


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
def test_the_voice_goes_with_the_first_heartbeat_and_chunk_0(bare: BareChirp, lengths: list[int]) -> None:
    """With a last chunk without frames, too, if that is the first one."""
    asked, sent, now = plan(bare, 1), Sent(), [0.0]
    stream = TalkerStream("s", "s.secret", asked.context, {}, pack(asked.voice))
    sink = TalkerSink(stream, sent, LastChunks(), lambda: now[0])
    for index, frames in enumerate(lengths):
        now[0] += 1.0
        assert not sink.cancelled()  # a heartbeat
        finish = "stop" if index == len(lengths) - 1 else None
        sink.chunk(FrameChunk(index, random_codes(frames), sum(lengths[: index + 1]), finish, 9, TIMING))
    beats, chunks = sent.outputs[::2], sent.outputs[1::2]
    assert [bool(each["voice"]) for each in beats] == [True] + [False] * (len(beats) - 1)
    assert [bool(each["voice"]) for each in chunks] == [True] + [False] * (len(chunks) - 1)
    code2wav = make_code2wav(bare.decoder, bare.form)
    for each in chunks:
        voice = unpack("voice", each["voice"])
        chunk = CodecChunk("s", each["chunk_index"], each["codes"], each["context_codes"], each["final"], voice=voice)
        [decoded] = code2wav.decode([chunk])
        assert isinstance(decoded, Decoded) and decoded.waveform.size == 441 * len(each["codes"])


def test_a_prompt_is_as_long_as_its_embedding(bare: BareChirp) -> None:
    for options in ({}, {"breath": True}):
        prompt = plan(bare, 1, options=options).request.prompt
        talker = bare.talker.source.talker
        embeds = talker.embed_prompt(prompt).embeds
        assert embeds.shape == (talker.prompt_length(prompt), 32)
        prefix = talker.prefix(prompt)
        assert prefix.length < talker.prompt_length(prompt)
        other = bare.plan("Another text.", timbre(1), "Some words.", seed=9).request.prompt
        assert talker.prefix(other) == prefix
        torch.testing.assert_close(talker.embed_prompt(other).embeds[: prefix.length], embeds[: prefix.length])


def test_streams_at_once_equal_those_alone(bare: BareChirp) -> None:
    generator = bare.talker.source
    wanted = [
        bare.speak("Hello there.", timbre(seed), "Some words.", seed=seed, max_frames=30, top_k=5) for seed in range(4)
    ]
    for slot in range(4):
        generator.start(slot, plan(bare, slot, max_frames=30, top_k=5).request)
    frames = [generator.step(range(4)) for _ in range(30)]
    for slot in range(4):
        codes = generator.payload.join([step[slot].payload for step in frames if step[slot].payload is not None])
        np.testing.assert_array_equal(codes, wanted[slot].codes)
        generator.free(slot)


def test_the_warm_up_leaves_the_generator_empty(bare: BareChirp) -> None:
    bare.talker.source.warm_up(bare.talker.example, 32, 1.0)
    assert not bare.talker.source.live


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


def test_the_fingerprint_is_of_the_encoder(checkpoint: Path, tmp_path: Path) -> None:
    def fingerprint(folder: Path) -> str:
        return load_encoder(Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(folder)})).fingerprints["fingerprint"]

    same, other = make_checkpoint(3, tmp_path / "same"), make_checkpoint(4, tmp_path / "other")
    assert fingerprint(checkpoint) == fingerprint(same) != fingerprint(other)
    encoder = load_encoder(Settings({}, {"VOICE_CLONE_CHECKPOINT_DIR": str(checkpoint)}))
    assert encoder.encode(np.zeros(0, np.float32), None)["timbre"].shape == (0, 8)
    made = encoder.encode(np.random.default_rng(0).normal(size=44100).astype(np.float32), "clone")["timbre"]
    assert made.shape == (4, 8) and made.dtype == np.float16


def test_the_checkpoint_has_the_defaults(bare: BareChirp) -> None:
    request = plan(bare, 1).request
    assert request.max_frames == CONFIG["sampling"]["max_frames"]
    assert request.sampling.first == request.sampling.others == (1.0, CONFIG["sampling"]["temperature"], 0, 1.0)
    assert request.sampling.repetition_penalty == 1.0
    with pytest.raises(Unsupported, match="no repetition_penalty"):
        plan(bare, 1, repetition_penalty=1.0)

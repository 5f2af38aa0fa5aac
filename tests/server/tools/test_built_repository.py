"""What tools/build_repository writes, loaded by the real server, which completes no configuration by itself.

The server of these tests has no ONNX Runtime backend. So the native networks run here in a Python model that does what
that backend does with the same graph, under the configuration that was written, but for the backend's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException
from voice_clone_client import Client

from tests.support.families.factories import CheckpointFactory
from tests.support.families.qwen3_encoders import TOLERANCE, Loaded, speech
from tests.support.families.voxtral import make_voxtral
from voice_clone_server.build_repository import main
from voice_clone_server.config_file import ConfigFile
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.thorough

ENCODER = "qwen3_tts_voice_encoder"
NETWORKS = ("qwen3_tts_speaker_encoder_network", "qwen3_tts_codec_encoder_network")
GRAPHS = ("qwen3_tts_speaker_encoder_graph", "qwen3_tts_codec_encoder_graph")  # behind them, on Triton's own backend
ROUNDS = 8  # on a busy machine clips of a round may come too far apart to share a batch
STAND_IN = '''"""Stands for the ONNX Runtime backend: one run of the graph for all clips of a batch."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        [graph] = Path(args["model_repository"], args["model_version"]).glob("*.onnx")
        self.session = onnxruntime.InferenceSession(str(graph))

    def execute(self, requests):
        time.sleep(1.0)  # longer than the clips of the other callers need to arrive
        [name] = [each.name for each in self.session.get_outputs()]
        waveforms = [pb_utils.get_input_tensor_by_name(request, "waveform").as_numpy() for request in requests]
        [outputs] = self.session.run([name], {"waveform": np.concatenate(waveforms)})
        ends = np.cumsum([len(each) for each in waveforms])[:-1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor(name, each)]) for each in np.split(outputs, ends)]
'''


def use_stand_ins(repository: Path) -> None:
    for network in GRAPHS:
        file = ConfigFile.read(repository / network)
        assert file.message.platform == "onnxruntime_onnx" and file.message.HasField("optimization")
        for field in ("platform", "default_model_filename", "optimization"):
            file.message.ClearField(field)
        file.message.backend = "python"
        file.write(repository / network)
        (repository / network / "1" / "model.py").write_text(STAND_IN, encoding="utf-8")


def warmed_up(log: Path) -> set[str]:
    text = log.read_text(errors="replace")
    assert "Skipping batch 0 warmup" not in text
    return set(re.findall(r"model '(\w+)' instance \w+ is running warmup sample '3 s of silence'", text))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built") / "log"


@pytest.fixture(scope="module")
def server(checkpoint_folder: CheckpointFactory, log: Path) -> Iterator[TritonServer]:
    """On a built repository with native encoders, without a setting of the checkpoint."""
    models = log.parent / "models"
    options = ["--checkpoint", str(checkpoint_folder("tiny", 0)), "--output", str(models), "--provider", "cpu"]
    assert main([*options, "--native-encoders", "onnx"]) == 0
    use_stand_ins(models)
    with TritonServer(voices=log.parent / "voices", log=log, models=models, options=["--log-verbose=1"]) as server:
        yield server
        server.kill()


def tensor(name: str, array: Any, kind: str) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def encode(server: TritonServer, clip: torch.Tensor, rate: int = 24000) -> triton.InferResult:
    inputs = [tensor("waveform", clip.numpy(), "FP32"), tensor("sample_rate", np.array([rate], np.int32), "INT32")]
    with triton.InferenceServerClient(server.url) as client:
        return client.infer(ENCODER, inputs)


def alone(server: TritonServer, network: str, clips: torch.Tensor) -> triton.InferResult:
    """The answer of a network to a batch [B, T] that comes without its encoder."""
    with triton.InferenceServerClient(server.url) as client:
        return client.infer(network, [tensor("waveform", clips.numpy(), "FP32")])


def test_it_speaks(server: TritonServer, log: Path, reference_clip: bytes, reference_text: str) -> None:
    assert "--disable-auto-complete-config" in server.command
    with Client(server.url) as client:
        client.upload("Harbour", reference_clip, reference_text=reference_text, wait=True)
        chunks = list(client.speak("Built to be deployed.", voice="Harbour", language="English", max_frames=3))
    assert sum(len(chunk.samples) for chunk in chunks) == 3 * 1920
    assert warmed_up(log) == set(GRAPHS)


def test_the_encoder_keeps_its_contract(server: TritonServer, checkpoint_folder: CheckpointFactory) -> None:
    loaded = Loaded.of(checkpoint_folder("tiny", 0))
    clip = speech(1.7, 24000)
    made = encode(server, clip)
    np.testing.assert_array_equal(made.as_numpy("codec_codes"), loaded.codec_encoder.encode(clip))
    assert made.as_numpy("codec_encoder_fingerprint")[0].decode() == loaded.codec_fingerprint
    expected = loaded.speaker_encoder.embed(clip).numpy()
    error = np.abs(made.as_numpy("speaker_embedding") - expected).max()
    assert error <= TOLERANCE * np.sqrt(np.mean(expected**2))
    assert made.as_numpy("speaker_encoder_fingerprint")[0].decode() == loaded.speaker_fingerprint
    assert encode(server, torch.zeros(0)).as_numpy("codec_codes").shape == (0, 16)
    with pytest.raises(InferenceServerException, match="invalid_argument: the `audio` holds NaN"):
        encode(server, torch.full((24000,), torch.nan))
    with pytest.raises(InferenceServerException, match=r"invalid_argument: the `audio` is 0\.50 s long"):
        encode(server, clip[:12000])


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_called_alone_refuses_what_its_encoder_refuses(server: TritonServer, network: str) -> None:
    """With the same code and words, before it computes; it answers the others as its encoder does, also as a batch."""
    good = speech(1.2, 24000)
    for wrong in (good[:1], good[:100], good[:23999], good.repeat(50), good * torch.nan, good * 1e6):
        with pytest.raises(InferenceServerException) as expected:
            encode(server, wrong)
        for clips in (wrong[None], torch.stack([wrong, wrong])):
            with pytest.raises(InferenceServerException) as refused:
                alone(server, network, clips)
            assert refused.value.status() == expected.value.status() == "StatusCode.INVALID_ARGUMENT"
            assert str(expected.value.message()) in str(refused.value.message())
    with pytest.raises(InferenceServerException, match="invalid_argument: the `audio` holds NaN"):
        alone(server, network, torch.stack([good, good * torch.nan]))
    clips = torch.stack([good, good.flip(0)])
    answers = alone(server, network, clips)
    for index, clip in enumerate(clips):
        made = encode(server, clip)
        [name] = {"codec_codes", "speaker_embedding"} & {each.name for each in answers.get_response().outputs}
        np.testing.assert_allclose(answers.as_numpy(name)[index], made.as_numpy(name), rtol=1e-4, atol=1e-5)


def test_clips_of_equal_length_share_a_batch(server: TritonServer, checkpoint_folder: CheckpointFactory) -> None:
    loaded = Loaded.of(checkpoint_folder("tiny", 0))
    clips = [torch.roll(speech(1.3, 24000), 1000 * index) for index in range(4)] + [speech(1.9, 24000)]
    expected = [loaded.codec_encoder.encode(clip) for clip in clips]
    largest = 1
    with ThreadPoolExecutor(len(clips)) as pool, triton.InferenceServerClient(server.url) as client:
        for _ in range(ROUNDS):
            for codes, result in zip(expected, pool.map(lambda clip: encode(server, clip), clips), strict=True):
                np.testing.assert_array_equal(result.as_numpy("codec_codes"), codes)
            [statistics] = client.get_inference_statistics(GRAPHS[1]).model_stats
            largest = max(each.batch_size for each in statistics.batch_stats)
            if largest > 1:
                break
    assert largest > 1


def test_encoders_in_python_are_warmed_up_too(checkpoint_folder: CheckpointFactory, tmp_path: Path) -> None:
    """By two instances."""
    models = tmp_path / "models"
    assert main(["--checkpoint", str(checkpoint_folder("tiny", 0)), "--output", str(models), "--instances", "2"]) == 0
    options = ["--log-verbose=1", "--model-control-mode=explicit", f"--load-model={ENCODER}"]
    with TritonServer(log=tmp_path / "log", models=models, options=options) as server:
        assert encode(server, speech(1.0, 24000)).as_numpy("codec_codes").shape == (13, 16)
        server.kill()
    assert warmed_up(tmp_path / "log") == {ENCODER}


def test_presets_speak_from_a_built_repository(tmp_path: Path) -> None:
    """Voxtral TTS without encoder weights; its talker in int8."""
    models, built = tmp_path / "models", ["--checkpoint", str(make_voxtral(tmp_path / "voxtral"))]
    built += ["--output", str(models), "--provider", "cpu"]
    assert main([*built, "--native-encoders", "onnx"]) == 1 and not models.exists()
    assert main([*built, "--precision", "talker=int8"]) == 0
    with TritonServer(voices=tmp_path / "voices", log=tmp_path / "log", models=models) as server:
        with Client(server.url) as client:
            assert len(client.presets()) == 20
            chunks = list(client.speak("Good morning.", voice="casual_male", max_frames=3))
        server.kill()
    assert sum(len(chunk.samples) for chunk in chunks) == 3 * 1920
    assert "int8" in (tmp_path / "log").read_text(errors="replace")

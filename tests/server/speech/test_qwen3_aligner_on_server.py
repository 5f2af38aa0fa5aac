"""The model aligner with a checkpoint of Qwen3-ForcedAligner, on a server of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

from tests.support.families.speech_like import speech_like
from tools.qwen3_aligner import make_checkpoint
from voice_clone.aligner.speech import AlignedSpeech
from voice_clone.qwen3_aligner.engine import load
from voice_clone.settings import PrecisionSettings
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS, TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

CHECKPOINT = "VOICE_CLONE_ALIGNER_CHECKPOINT_DIR"
RATE, TEXT = 24_000, "Die Stimme eines Freundes, 12 Worte; 朋友 🙂 well-known!"
Samples = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aligner") / "checkpoint"
    make_checkpoint("tiny", 0, folder)
    return folder


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("aligning")
    options = ["--model-control-mode=explicit", "--load-model=aligner"]
    given = {CHECKPOINT: str(checkpoint), "VOICE_CLONE_CHECKPOINT_DIR": "/nowhere"}  # that of a talker does not count
    with TritonServer(
        None, folder / "voices", models=[MODELS, OPTIONAL], log=folder / "log", options=options, environment=given
    ) as server:
        yield server
        server.kill()


def ask(server: TritonServer, samples: Samples, **others: Any) -> dict[str, Any]:
    """An answer of the model."""
    kinds = {"text": "BYTES", "language": "BYTES", "alignment": "BYTES", "sample_rate": "INT32"}
    inputs = [grpc.InferInput("audio", [len(samples)], "FP32")]
    inputs[0].set_data_from_numpy(samples)
    for name, value in others.items():
        kind = kinds.get(name, "BOOL")
        array = np.array([value], {"BYTES": np.object_, "INT32": np.int32, "BOOL": np.bool_}[kind])
        inputs.append(grpc.InferInput(name, [1], kind))
        inputs[-1].set_data_from_numpy(array)
    with grpc.InferenceServerClient(server.url) as client:
        found: dict[str, Any] = json.loads(client.infer("aligner", inputs).as_numpy("result")[0])
    return found


def expected(checkpoint: Path, samples: Samples) -> list[dict[str, Any]]:
    """What the engine finds in this process."""
    engine = load(checkpoint, PrecisionSettings(device="cpu", packed_bytes=0.0))
    speech = AlignedSpeech(engine, TEXT, RATE, "de")
    speech.feed(samples)
    return speech.end()


def test_words_are_those_of_the_engine_whole_and_in_pieces(server: TritonServer, checkpoint: Path) -> None:
    samples = speech_like(25 * RATE, RATE).numpy()
    whole = ask(server, samples, sample_rate=RATE, text=TEXT, language="German")
    right = expected(checkpoint, samples)
    assert whole["reason"] is None and [each["text"] for each in whole["words"]] == [each["text"] for each in right]
    for ours, theirs in zip(whole["words"], right, strict=True):
        assert (ours["start"], ours["end"], ours["span"]) == (theirs["start"], theirs["end"], theirs["span"])
        assert not ours["estimated"] and ours.get("confidence") == pytest.approx(theirs.get("confidence"), rel=1e-3)
    first = {"sample_rate": RATE, "text": TEXT, "language": "German"}
    for begin in range(0, len(samples), 100_000):
        piece, last = samples[begin : begin + 100_000], begin + 100_000 >= len(samples)
        found = ask(server, piece, alignment="one", final=last, **(first if begin == 0 else {}))
        assert last or found["words"] == []
    assert found["words"] == whole["words"]


@pytest.mark.parametrize(
    ("seconds", "level", "language", "right"),
    [(3.0, 1.0, "Turkish", "de, en, es"), (3.0, 0.0, "English", "silent"), (0.01, 1.0, "English", "25 are needed")],
)
def test_what_the_engine_refuses_is_estimated(
    server: TritonServer, seconds: float, level: float, language: str, right: str
) -> None:
    samples = np.float32(level) * speech_like(round(seconds * RATE), RATE).numpy()
    found = ask(server, samples, sample_rate=RATE, text=TEXT, language=language)
    assert right in found["reason"] and found["words"] and all(each["estimated"] for each in found["words"])


def test_a_checkpoint_of_another_kind_is_refused_at_load(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["thinker_config"]["model_type"] = "qwen3_asr_thinker"
    (tmp_path / "config.json").write_text(json.dumps(config))
    parameters = {"parameters": {"aligner_checkpoint_dir": {"string_value": str(tmp_path)}}}
    log, options = tmp_path / "log", ["--model-control-mode=explicit"]
    with TritonServer(None, tmp_path / "voices", models=[MODELS, OPTIONAL], log=log, options=options) as other:
        with grpc.InferenceServerClient(other.url) as client:
            given = {"backend": "python", **client_config(), **parameters}
            with pytest.raises(InferenceServerException, match="this is Qwen3-ASR"):
                client.load_model("aligner", config=json.dumps(given))
        other.kill()


def client_config() -> dict[str, Any]:
    """Inputs and outputs of the model, as its own config.pbtxt has them."""
    config = model_config_pb2.ModelConfig()
    text_format.Parse((OPTIONAL / "aligner" / "config.pbtxt").read_text(), config)
    found: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return found

"""Bad requests of every kind: the right error, no path of the server in it, and the server goes on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import soundfile
from voice_clone_client import Client, InvalidArgument, VoiceCloneError, VoiceNotFound

from tests.support.servers.talker_calls import Call
from tests.support.waiting import WAIT
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("servers")

TEXT = "Good morning."
HERE = str(Path(__file__).resolve().parents[3])


def clip(seconds: float, rate: int = 16000, value: float | None = None, channels: int = 1) -> bytes:
    """A WAV file of noise, or of one value."""
    samples = np.random.default_rng(0).uniform(-0.3, 0.3, (int(seconds * rate), channels))
    if value is not None:
        samples[:] = value
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format="WAV", subtype="FLOAT")
    return out.getvalue()


BAD_SPEECH: dict[str, tuple[dict[str, Any], type[VoiceCloneError], str]] = {
    "blank text": ({"text": "  \n"}, InvalidArgument, "blank"),
    "empty text": ({"text": ""}, InvalidArgument, "blank"),
    "text without words": ({"text": "... ?!"}, InvalidArgument, "no letter or digit"),
    "over-long text": ({"text": "word " * 3000}, InvalidArgument, "tokens"),
    "unknown voice": ({"voice": "Nobody"}, VoiceNotFound, "Nobody"),
    "unknown language": ({"language": "Klingon"}, InvalidArgument, "English"),
    "dialect as language": ({"language": "sichuan_dialect"}, InvalidArgument, "language"),
    "no voice at all": ({"voice": None}, InvalidArgument, "exactly one"),
    "two voices": ({"reference_audio": clip(2)}, InvalidArgument, "exactly one"),
    "voice and embedding": ({"speaker_embedding": np.ones(8, np.float32)}, InvalidArgument, "exactly one"),
    "no transcript": (
        {"voice": None, "reference_audio": clip(2), "x_vector_only": False},
        InvalidArgument,
        "transcript",
    ),
    "blank transcript": ({"voice": None, "reference_audio": clip(2), "reference_text": " "}, InvalidArgument, "blank"),
    "transcript of a voice": ({"reference_text": "hello"}, InvalidArgument, "reference_text"),
    "transcript unused": (
        {"voice": None, "reference_audio": clip(2), "reference_text": "hello", "x_vector_only": True},
        InvalidArgument,
        "x_vector_only",
    ),
    "embedding size": ({"voice": None, "speaker_embedding": np.ones(3, np.float32)}, InvalidArgument, "needs"),
    "embedding NaN": ({"voice": None, "speaker_embedding": np.full(64, np.nan, np.float32)}, InvalidArgument, "NaN"),
    "embedding in context": (
        {"voice": None, "speaker_embedding": np.ones(64, np.float32), "x_vector_only": False},
        InvalidArgument,
        "x-vector",
    ),
    "not audio": ({"voice": None, "reference_audio": b"these bytes are no audio"}, InvalidArgument, "audio"),
    "empty audio": ({"voice": None, "reference_audio": b""}, InvalidArgument, "empty"),
    "audio without samples": ({"voice": None, "reference_audio": clip(0)}, InvalidArgument, ""),
    "too short": ({"voice": None, "reference_audio": clip(0.5)}, InvalidArgument, "1 to 30 s"),
    "too long": ({"voice": None, "reference_audio": clip(31)}, InvalidArgument, "1 to 30 s"),
    "audio NaN": ({"voice": None, "reference_audio": clip(2, value=float("nan"))}, InvalidArgument, ""),
    "a path as audio": ({"voice": None, "reference_audio": b"/etc/passwd"}, InvalidArgument, "audio"),
    "a bad data URL": ({"voice": None, "reference_audio": b"data:audio/wav;base64,@@@@"}, InvalidArgument, ""),
    "temperature 0": ({"temperature": 0.0}, InvalidArgument, "temperature"),
    "temperature NaN": ({"temperature": float("nan")}, InvalidArgument, "temperature"),
    "top_p 2": ({"top_p": 2.0}, InvalidArgument, "top_p"),
    "top_k -1": ({"top_k": -1}, InvalidArgument, "top_k"),
    "penalty 0": ({"repetition_penalty": 0.0}, InvalidArgument, "repetition_penalty"),
    "no frames": ({"max_frames": 0}, InvalidArgument, "max_frames"),
    "template token": ({"text": "hello <|im_end|> there"}, InvalidArgument, "<|im_end|>"),
}


def check_text(message: str) -> None:
    """No internals in what a client reads."""
    for leak in (HERE, "/tmp/", "/usr/", "site-packages", "Traceback", ".py", "voice_clone/"):
        assert leak not in message, message


@pytest.mark.parametrize("case", BAD_SPEECH)
def test_bad_speech(client: Client, server: TritonServer, voice: str, case: str) -> None:
    given, error, text = BAD_SPEECH[case]
    arguments = {"text": TEXT, "voice": voice, "max_frames": 4, **given}
    with pytest.raises(error) as failure:
        list(client.speak(**arguments))
    assert text in str(failure.value)
    check_text(str(failure.value))
    assert server.ready()
    assert list(client.speak(TEXT, voice=voice, max_frames=2, seed=0))[-1].final


BAD_UPLOAD: dict[str, tuple[dict[str, Any], str]] = {
    "a slash": ({"name": "a/b"}, "name"),
    "dots": ({"name": ".."}, "name"),
    "NUL": ({"name": "a\0b"}, "name"),
    "no name": ({"name": ""}, "name"),
    "long name": ({"name": "x" * 65}, "64"),
    "not audio": ({"audio": b"no audio"}, "audio"),
    "empty": ({"audio": b""}, ""),
    "too short": ({"audio": clip(0.9)}, "1 to 30 s"),
    "too long": ({"audio": clip(30.5)}, "1 to 30 s"),
    "too big": ({"audio": clip(29, rate=48000, channels=2)}, "bytes"),
    "nothing": ({"audio": None}, ""),
    "both": ({"speaker_embedding": np.ones(64, np.float32)}, ""),
    "embedding size": ({"audio": None, "speaker_embedding": np.ones(3, np.float32)}, ""),
    "embedding NaN": ({"audio": None, "speaker_embedding": np.full(64, np.nan, np.float32)}, "NaN"),
}


@pytest.mark.parametrize("case", BAD_UPLOAD)
def test_bad_upload(client: Client, server: TritonServer, case: str) -> None:
    given, text = BAD_UPLOAD[case]
    before = {voice.name for voice in client.list()}
    with pytest.raises(InvalidArgument) as failure:
        client.upload(**{"name": "Bad", "audio": clip(2), **given})
    assert text in str(failure.value)
    check_text(str(failure.value))
    assert {voice.name for voice in client.list()} == before
    assert server.ready()


@pytest.mark.parametrize("operation", ["get", "delete", "prepare"])
def test_unknown_voice(client: Client, operation: str) -> None:
    with pytest.raises(VoiceNotFound, match="Nobody"):
        getattr(client, operation)("Nobody")


def test_codes_on_the_wire(server: TritonServer, voice: str) -> None:
    """A caller without our client sees the gRPC code and the slug."""
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(server.url)
    expected = {
        "get": (grpc.StatusCode.NOT_FOUND, "speaker_not_found: "),
        "juggle": (grpc.StatusCode.INVALID_ARGUMENT, "invalid_argument: "),
    }
    for operation, (code, slug) in expected.items():
        inputs = []
        for name, value in {"operation": operation, "name": "Nobody"}.items():
            inputs.append(triton.InferInput(name, [1], "BYTES"))
            inputs[-1].set_data_from_numpy(np.array([value.encode()], np.object_))
        with pytest.raises(triton.InferenceServerException) as failure:
            client.infer("speaker_cache", inputs)
        assert failure.value.status() == str(code)
        assert failure.value.message().startswith(slug)
        check_text(failure.value.message())
    client.close()


def test_a_request_without_text(server: TritonServer) -> None:
    """Triton itself would end such a stream without a word."""
    import queue

    import tritonclient.grpc as triton

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = triton.InferenceServerClient(server.url)
    client.start_stream(lambda result, error: answers.put((result, error)))
    voice = triton.InferInput("voice", [1], "BYTES")
    voice.set_data_from_numpy(np.array([b"Ada"], np.object_))
    client.async_stream_infer("qwen3_tts", [voice])
    _, error = answers.get(timeout=WAIT)
    assert "invalid_argument: `text` is blank" in str(error)
    client.stop_stream(cancel_requests=True)
    client.close()


def test_inner_models_called_wrongly(server: TritonServer, client: Client, voice: str) -> None:
    """The stages are reachable too; wrong requests there do no harm."""
    import tritonclient.grpc as triton

    inner = triton.InferenceServerClient(server.url)

    def ask(model: str, **tensors: Any) -> str:
        inputs = []
        for name, value in tensors.items():
            array = np.array([value], np.object_) if isinstance(value, (bytes, str)) else np.asarray(value)
            kind = {"O": "BYTES", "f": "FP32", "i": "INT32", "b": "BOOL"}[array.dtype.kind]
            inputs.append(triton.InferInput(name, list(array.shape), kind))
            inputs[-1].set_data_from_numpy(array)
        with pytest.raises(triton.InferenceServerException) as failure:
            inner.infer(model, inputs)
        check_text(failure.value.message())
        return str(failure.value.message())

    i32, f32 = np.int32, np.float32
    code2wav = {
        "stream_id": "foreign",
        "codes": np.zeros((2, 16), i32),
        "context_codes": np.zeros((0, 16), i32),
        "chunk_index": np.array([0], i32),
        "final": np.array([True]),
        "info": "",
    }
    bad = [
        {"codes": np.full((2, 16), 10**6, i32)},
        {"codes": np.full((2, 16), -1, i32)},
        {"codes": np.zeros((2, 3), i32)},
        {"context_codes": np.full((2, 16), 10**6, i32)},
        {"chunk_index": np.array([5], i32)},
        {"info": "no json"},
        {"stream_id": b"\xff\xfe"},
    ]
    for change in bad:
        call = Call(server, {**code2wav, **change}, model="qwen3_tts_code2wav")
        error = call.next()
        assert isinstance(error, str) and error.startswith("invalid_argument"), change
        check_text(error)
        call.close()
    rate = np.array([16000], i32)
    for waveform, hertz in (
        (np.full(16000, np.nan, f32), rate),
        (np.zeros(10, f32), rate),
        (np.zeros(16000, f32), np.array([0], i32)),
        (np.zeros(16000, f32), np.array([-5], i32)),
        (np.zeros(16000, f32), np.array([2**31 - 1], i32)),
    ):
        assert "invalid_argument" in ask("qwen3_tts_voice_encoder", waveform=waveform, sample_rate=hertz)
    inner.close()
    assert list(client.speak(TEXT, voice=voice, max_frames=2, seed=0))[-1].final

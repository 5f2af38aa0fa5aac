"""Speech that is marked or signed says in its tags and in a header that it is synthetic; other speech says nothing."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from voice_clone_gateway.audio import FORMATS, Encoder
from voice_clone_provenance.manifests import read
from voice_clone_provenance.statements import Statement, find
from websockets.sync.client import connect

from tests.support.doubles.gateway_thread import Serve, Shared
from tests.support.doubles.triton_double import Server, chunk
from tests.support.official.certificates import signing_files
from tests.support.official.encoded_sound import RATE, SOUND, WAVS, decode, encode
from tests.support.waiting import WAIT

MARKED = Statement("qwen3_tts", "marked")
START = "digital_source_type=trainedAlgorithmicMedia, family=qwen3_tts"
TAGGED = ("wav", "flac", "mp3", "opus", *WAVS)
SPEECH = {"input": "Hello there.", "voice": "ada"}


def tag_of(data: bytes) -> str | None:
    """The comment that FFmpeg finds in a file."""
    with av.open(io.BytesIO(data)) as file:
        return {**file.metadata, **file.streams[0].metadata}.get("comment")


def mark(triton: Server, **info: Any) -> None:
    """Let the server speak so."""
    triton.play = lambda context: iter([chunk(0, info={"cache": "hit", **info}), chunk(1, final=True, info=info)])


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_a_comment_in_a_file(name: str, streaming: bool) -> None:
    plain = encode(Encoder(name, RATE, streaming=streaming), SOUND)
    said = encode(Encoder(name, RATE, streaming=streaming, comment=str(MARKED)), SOUND)
    whole = b"".join(said)
    assert (tag_of(whole) if name in TAGGED else None) == (str(MARKED) if name in TAGGED else None)
    assert find(whole) == (MARKED if name in TAGGED else None) and find(b"".join(plain)) is None
    np.testing.assert_array_equal(decode(name, whole, RATE).samples, decode(name, b"".join(plain), RATE).samples)
    if streaming:  # nothing comes later than without, and nothing else
        assert said[1:] == plain[1:] and said[0].endswith(plain[0][-100:])
        if plain[0]:
            first, before = (decode(name, each[0], RATE).samples for each in (said, plain))
            np.testing.assert_array_equal(first, before)


@pytest.mark.parametrize("name", TAGGED)
def test_libsndfile_reads_such_files(name: str) -> None:
    data = b"".join(encode(Encoder(name, RATE, RATE, streaming=False, comment=str(MARKED)), SOUND))
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        assert file.samplerate == RATE and len(file.read()) == len(SOUND)
        assert file.comment == (str(MARKED) if name.startswith("wav") else "")  # it knows other fields of the others


@pytest.mark.parametrize("name", FORMATS)
def test_a_marked_speech(name: str, shared: Shared) -> None:
    triton, http = shared
    mark(triton, mark="marked")
    for more in ({}, {"stream": False}):
        answer = http.post("/v1/audio/speech", json={**SPEECH, "response_format": name, **more})
        assert answer.status_code == 200 and answer.headers["x-speech-provenance"] == str(MARKED)
        assert find(answer.content) == (MARKED if name in TAGGED else None)
    mark(triton)
    answer = http.post("/v1/audio/speech", json={**SPEECH, "response_format": name})
    assert "x-speech-provenance" not in answer.headers and find(answer.content) is None


def test_a_mark_that_failed_is_not_claimed(shared: Shared) -> None:
    triton, http = shared
    mark(triton, mark="failed")
    answer = http.post("/v1/audio/speech", json=SPEECH)
    assert answer.headers["x-speech-provenance"].startswith(f"{START}, mark=failed, ")
    assert find(answer.content) == Statement("qwen3_tts", "failed")


def test_events_and_batches(shared: Shared) -> None:
    triton, http = shared
    mark(triton, mark="marked")
    events = http.post("/v1/audio/speech", json={**SPEECH, "response_format": "mp3", "stream_format": "sse"})
    assert events.headers["x-speech-provenance"] == str(MARKED)
    deltas = [json.loads(line[6:]) for line in events.text.splitlines() if line.startswith("data: ")]
    assert find(b"".join(base64.b64decode(each["audio"]) for each in deltas if "audio" in each)) == MARKED
    body = {"items": [{"input": "One."}], "voice": "ada", "response_format": "opus"}
    [result] = http.post("/v1/audio/speech/batch", json=body).json()["results"]
    assert find(base64.b64decode(result["audio_data"])) == MARKED


@pytest.mark.parametrize("whole", [True, False])
def test_a_websocket(whole: bool, shared: Shared) -> None:
    triton, http = shared
    url = str(http.base_url).replace("http", "ws", 1)
    mark(triton, mark="marked")
    config = {"type": "session.config", "voice": "ada", "response_format": "flac", "stream_audio": not whole}
    frames: list[bytes] = []
    with connect(f"{url}/v1/audio/speech/stream", proxy=None) as session:
        for message in (config, {"type": "input.text", "text": "One sentence. And two."}, {"type": "input.done"}):
            session.send(json.dumps(message))
        while isinstance(got := session.recv(WAIT), bytes) or json.loads(got)["type"] != "session.done":
            frames += [got] if isinstance(got, bytes) else []
    files = frames if whole else [b"".join(frames)]
    assert len(files) == (2 if whole else 1)
    for file in files:
        assert tag_of(file) == str(MARKED)


def test_a_gateway_that_signs(triton: Server, serve: Serve, tmp_path: Path) -> None:
    files = signing_files(tmp_path)
    http = serve(triton.url, signing_certificates=str(files.certificates), signing_key=str(files.key))
    for said in ("marked", None):
        mark(triton, **({} if said is None else {"mark": said}))
        expected = Statement("qwen3_tts", said)
        for name in TAGGED:
            body = {**SPEECH, "response_format": name}
            streamed, whole = (http.post("/v1/audio/speech", json={**body, "stream_format": "audio", **more})
                               for more in ({}, {"stream": False}))  # fmt: skip
            assert streamed.headers["x-speech-provenance"] == whole.headers["x-speech-provenance"] == str(expected)
            assert find(streamed.content) == find(whole.content) == expected
            manifest = read(whole.content)
            assert (manifest is not None and manifest.valid) == (name != "opus"), name

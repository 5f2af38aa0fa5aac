"""A gateway with a certificate signs whole files, those of a batch, too; streams and other formats stay as they are."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from voice_clone_client import InvalidArgument
from voice_clone_client.manifests import read
from voice_clone_gateway import Settings, create_app

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Server
from tests.support.official.certificates import signing_files

SPEECH = {"input": "Hello there.", "voice": "ada"}


def settings(folder: Path) -> dict[str, str]:
    files = signing_files(folder)
    return {"signing_certificates": str(files.certificates), "signing_key": str(files.key)}


def test_whole_files_are_signed(triton: Server, serve: Serve, tmp_path: Path) -> None:
    http, plain = serve(triton.url, **settings(tmp_path)), serve(triton.url)
    for form in ("wav", "mp3", "flac"):
        body = {**SPEECH, "response_format": form, "stream": False}
        answer = http.post("/v1/audio/speech", json=body)
        assert answer.status_code == 200 and int(answer.headers["content-length"]) == len(answer.content)
        found = read(answer.content)
        assert found is not None and found.valid and found.synthetic and found.family == "qwen3_tts", form
        assert read(plain.post("/v1/audio/speech", json=body).content) is None
        assert read(http.post("/v1/audio/speech", json={**body, "stream": True}).content) is None
    for form in ("opus", "pcm"):
        body = {**SPEECH, "response_format": form, "stream": False}
        answers = [each.post("/v1/audio/speech", json=body).content for each in (http, plain)]
        assert len(answers[0]) == len(answers[1]) > 0


def test_the_files_of_a_batch_are_signed(triton: Server, serve: Serve, tmp_path: Path) -> None:
    http = serve(triton.url, **settings(tmp_path))
    body = {"items": [{"input": "One."}, {"input": "Two."}], "voice": "ada", "response_format": "wav"}
    results = http.post("/v1/audio/speech/batch", json=body).json()["results"]
    assert len(results) == 2
    for result in results:
        found = read(base64.b64decode(result["audio_data"]))
        assert found is not None and found.valid


def test_what_cannot_sign_is_found_at_the_start(tmp_path: Path) -> None:
    given = settings(tmp_path)
    with pytest.raises(InvalidArgument, match="belong together"):
        create_app(Settings(signing_key=given["signing_key"]))
    with pytest.raises(InvalidArgument, match="cannot sign files"):
        create_app(Settings(signing_key=given["signing_key"], signing_certificates=given["signing_key"]))
    with pytest.raises(FileNotFoundError):
        create_app(Settings(signing_key=str(tmp_path / "absent"), signing_certificates=given["signing_certificates"]))

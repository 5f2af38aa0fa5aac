"""A gateway with a certificate signs whole files, those of a batch, too; streams and other formats stay as they are."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from voice_clone_client import Internal, InvalidArgument
from voice_clone_gateway import Settings, create_app
from voice_clone_provenance.manifests import FileSigner, read

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import Failure, Server, chunk
from tests.support.official.certificates import signing_files

DIGESTS = (32 * "c5", 32 * "00")
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
    for form in ("aac", "pcm"):
        body = {**SPEECH, "response_format": form, "stream": False}
        answers = [each.post("/v1/audio/speech", json=body).content for each in (http, plain)]
        assert answers[0] == answers[1] != b""


def test_the_files_of_a_batch_are_signed(triton: Server, serve: Serve, tmp_path: Path) -> None:
    http = serve(triton.url, **settings(tmp_path))
    body = {"items": [{"input": "One."}, {"input": "Two."}], "voice": "ada", "response_format": "wav"}
    results = http.post("/v1/audio/speech/batch", json=body).json()["results"]
    assert len(results) == 2
    for result in results:
        found = read(base64.b64decode(result["audio_data"]))
        assert found is not None and found.valid


@pytest.mark.parametrize(("wanted", "now", "consent"), [(False, 0, None), (True, 0, "form 12"), (True, 1, None)])
def test_the_record_of_a_voice(
    wanted: bool, now: int, consent: str | None, triton: Server, serve: Serve, tmp_path: Path
) -> None:
    voice = {"name": "Ada", "digest": DIGESTS[now], "consent": "form 12"}
    info = {"voice": "Ada", "generation": 4, "voice_digest": DIGESTS[0]}
    triton.play = lambda context: iter([chunk(0, info=info), chunk(1, final=True, info=info)])
    triton.answer = lambda inputs: {"result": json.dumps(voice).encode()}
    http = serve(triton.url, signing_consent=wanted, audit_log=str(tmp_path / "audit"), **settings(tmp_path))
    whole = http.post("/v1/audio/speech", json={**SPEECH, "response_format": "wav", "stream": False}).content
    body = {"items": [{"input": "One."}], "voice": "ada", "response_format": "wav"}
    item = http.post("/v1/audio/speech/batch", json=body).json()["results"][0]["audio_data"]
    for data in (whole, base64.b64decode(item)):
        found = read(data)
        assert found is not None and found.valid and (found.voice_digest, found.consent) == (DIGESTS[0], consent)
        assert b"Ada" not in data
    asked = [inputs for _, inputs in triton.calls if inputs.get("operation") == b"get"]
    assert asked == 2 * wanted * [{"operation": b"get", "name": b"Ada"}]
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [line["voice_digest"] for line in lines] == 2 * [DIGESTS[0]]


def test_a_voice_that_was_deleted_meanwhile(triton: Server, serve: Serve, tmp_path: Path) -> None:
    def gone(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"get":
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice")
        return {"result": b"{}"}

    triton.play = lambda context: iter([chunk(0, final=True, info={"voice": "Ada", "voice_digest": DIGESTS[0]})])
    triton.answer = gone
    http = serve(triton.url, signing_consent=True, **settings(tmp_path))
    found = read(http.post("/v1/audio/speech", json={**SPEECH, "response_format": "wav", "stream": False}).content)
    assert found is not None and found.valid and (found.voice_digest, found.consent) == (DIGESTS[0], None)


def test_a_certificate_that_has_expired_meanwhile(
    triton: Server, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole files are refused, by an error that is not the caller's, and streams go on."""

    def expired(*_: Any) -> bytes:
        raise Internal("files cannot be signed any more: the certificate was not valid at time of signing")

    http = serve(triton.url, audit_log=str(tmp_path / "audit"), **settings(tmp_path))
    monkeypatch.setattr(FileSigner, "sign", expired)
    refused = http.post("/v1/audio/speech", json={**SPEECH, "response_format": "wav", "stream": False})
    assert refused.status_code == 500 and "certificate" not in refused.text
    assert "files cannot be signed any more" in caplog.text
    batch = {"items": [{**SPEECH, "response_format": "wav"}]}
    [item] = http.post("/v1/audio/speech/batch", json=batch).json()["results"]
    assert item["error"]["code"] == "internal"
    recorded = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [entry["outcome"] for entry in recorded] == ["internal", "internal"]
    assert http.post("/v1/audio/speech", json={**SPEECH, "response_format": "wav"}).status_code == 200


def test_what_cannot_sign_is_found_at_the_start(tmp_path: Path) -> None:
    given = settings(tmp_path)
    with pytest.raises(InvalidArgument, match="belong together"):
        create_app(Settings(signing_key=given["signing_key"]))
    with pytest.raises(InvalidArgument, match="set signing_key, too"):
        create_app(Settings(signing_consent=True))
    with pytest.raises(InvalidArgument, match="cannot sign files"):
        create_app(Settings(signing_key=given["signing_key"], signing_certificates=given["signing_key"]))
    with pytest.raises(FileNotFoundError):
        create_app(Settings(signing_key=str(tmp_path / "absent"), signing_certificates=given["signing_certificates"]))

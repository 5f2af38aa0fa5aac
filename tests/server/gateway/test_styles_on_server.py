"""Styles of a voice on the real server, in the demo's voice: by each interface, a style is the voice of its own clip.

What each speech should be is that of another voice, which has this clip alone.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from openai import OpenAI
from voice_clone_client import Client, InvalidArgument, VoiceExists, VoiceNotFound
from voice_clone_command.cli import main

from perf.bench.gateway_process import Gateway
from tests.support.servers.jobs import content as file_of
from tests.support.servers.jobs import made
from tests.support.servers.running import SETTINGS, running
from tests.support.waiting import WAIT
from voice_clone_server.demo import CLIP, SHIPPED
from voice_clone_server.families.recognition import OPTIONAL
from voice_clone_server.triton_server import MODELS, TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("styles")]
TEXT = "The old captain sold his boat."
KNOBS: dict[str, Any] = {"seed": 7}
STYLES = ("neutral", "happy")
Sound = NDArray[np.float32]


def faster(clip: bytes) -> bytes:
    """The clip at a higher pitch and pace: another style of the same speaker."""
    samples, rate = soundfile.read(io.BytesIO(clip), dtype="float32")
    places = np.arange(0, len(samples) - 1, 1.2)
    out = io.BytesIO()
    soundfile.write(out, np.interp(places, np.arange(len(samples)), samples), rate, format="WAV", subtype="PCM_16")
    return out.getvalue()


@pytest.fixture(scope="module")
def clips() -> dict[str, bytes]:
    first = Path(CLIP).read_bytes()
    return {"neutral": first, "happy": faster(first)}


@pytest.fixture(scope="module")
def styled(tmp_path_factory: pytest.TempPathFactory, clips: dict[str, bytes]) -> Iterator[TritonServer]:
    """A server with a voice of two styles, and with a voice of each of its clips."""
    folder, models = tmp_path_factory.mktemp("styles"), [MODELS, OPTIONAL / "text_front_end"]
    with running(SHIPPED, folder, models, **SETTINGS) as server:
        with Client(server.url) as client:
            for style, clip in clips.items():
                client.upload(f"Only {style}", clip, wait=True)
            client.upload("Ada", clips["neutral"], consent="first", wait=True)
            client.upload("Ada", clips["happy"], style="happy", consent="second", wait=True)
        yield server


@pytest.fixture(scope="module")
def client(styled: TritonServer) -> Iterator[Client]:
    with Client(styled.url) as client:
        yield client


@pytest.fixture(scope="module")
def http(styled: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("styles-gateway")
    with (
        Gateway(styled.url, folder / "log", "--jobs-dir", str(folder / "jobs"), "--allow-partial", "true") as gateway,
        httpx2.Client(base_url=gateway.url, timeout=WAIT, trust_env=False, verify=False) as http,
    ):
        yield http
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def wanted(client: Client) -> dict[str, Sound]:
    """The text with each clip."""
    found = {style: speech(client, voice=f"Only {style}") for style in STYLES}
    assert not np.array_equal(*(each[:20_000] for each in found.values()))
    return found


@pytest.fixture(scope="module")
def answered(http: httpx2.Client) -> dict[str, Sound]:
    """The text with each clip, as the gateway rounds it."""
    return {style: over_http(http, input=TEXT, voice=f"Only {style}") for style in STYLES}


def speech(client: Client, text: str = TEXT, **options: Any) -> Sound:
    with client.speak(text, **{**KNOBS, **options}) as speech:
        return speech.read()[0]


def over_http(http: httpx2.Client, **body: Any) -> Sound:
    answer = http.post("/v1/audio/speech", json={"response_format": "pcm_f32", **KNOBS, **body})
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, np.float32)


def test_the_client_and_http_speak_in_each_style(
    client: Client, http: httpx2.Client, wanted: dict[str, Sound], answered: dict[str, Sound]
) -> None:
    for style in STYLES:
        for asked in (style, f"sad,{style},neutral"):
            assert np.array_equal(speech(client, voice="Ada", style=asked), wanted[style]), asked
            assert np.array_equal(over_http(http, input=TEXT, voice="Ada", style=asked), answered[style]), asked
    assert np.array_equal(speech(client, voice="Ada"), wanted["neutral"])
    with client.speak_stream([TEXT], voice="Ada", style="happy", **KNOBS) as stream:
        read = stream.read()[0]
    with client.speak_stream([TEXT], voice="Only happy", **KNOBS) as stream:
        same = np.array_equal(read, stream.read()[0])
    assert same
    with client.speak(TEXT, voice="Ada", style="happy", **KNOBS) as spoken:
        spoken.read()
        assert (spoken.info or {})["style"] == "happy" and (spoken.info or {})["cache"] == "hit"


def test_the_official_client_speaks_in_a_style(http: httpx2.Client, answered: dict[str, Sound]) -> None:
    with closing(OpenAI(base_url=f"{str(http.base_url).rstrip('/')}/v1", api_key="unused", max_retries=0)) as openai:
        answer = openai.audio.speech.create(
            model="tts-1", input=TEXT, voice="Ada", extra_body={"style": "happy", **KNOBS, "response_format": "pcm_f32"}
        )
    assert np.array_equal(np.frombuffer(answer.content, np.float32), answered["happy"])


def test_segments_and_ssml_have_styles_of_their_own(
    styled: TritonServer, http: httpx2.Client, wanted: dict[str, Sound], answered: dict[str, Sound]
) -> None:
    segments = [{"text": TEXT, "voice": "Ada", "style": "happy"}, {"text": TEXT}]
    ssml = f"<speak><voice name='Ada' style='happy'>{TEXT}</voice> <voice name='Ada'>{TEXT}</voice></speak>"
    apart = [{"text": TEXT, "voice": f"Only {style}"} for style in ("happy", "neutral")]
    expected = over_http(http, segments=apart)
    assert len(expected) == sum(map(len, answered.values()))
    assert np.array_equal(over_http(http, segments=segments, voice="Ada"), expected)
    assert np.array_equal(over_http(http, input=ssml, voice="Only neutral", style="neutral"), expected)
    of_request = f"<speak><voice style='happy'>{TEXT}</voice> <voice style='neutral'>{TEXT}</voice></speak>"
    assert np.array_equal(over_http(http, input=of_request, voice="Ada"), expected)
    for settings in ({"segments": segments}, {}):
        given = {"settings": json.dumps(settings), **({} if settings else {"text": ssml})}
        heard = _front_end(styled, given)
        assert np.array_equal(heard, np.concatenate([wanted["happy"], wanted["neutral"]]))
    mixed = f"<speak><voice name='Only neutral'>{TEXT}</voice></speak>"
    assert np.array_equal(over_http(http, input=mixed, voice="Ada", style="happy"), answered["neutral"]), (
        "the style of the request is not that of another voice"
    )


def _front_end(server: TritonServer, given: dict[str, str]) -> Sound:
    """What the model `text_front_end` answers, asked by Triton's own client."""
    import queue

    import tritonclient.grpc as triton

    inputs = []
    for name, value in {**given, "voice": "Ada"}.items():
        inputs.append(triton.InferInput(name, [1], "BYTES"))
        inputs[-1].set_data_from_numpy(np.array([value.encode()], np.object_))
    inputs.append(triton.InferInput("seed", [1], "UINT64"))
    inputs[-1].set_data_from_numpy(np.array([KNOBS["seed"]], np.uint64))
    answers: queue.Queue[Any] = queue.Queue()
    found: list[Sound] = []
    with triton.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("text_front_end", inputs)
        while True:
            result, error = answers.get(timeout=WAIT)
            if error is not None:
                raise error
            found.append(result.as_numpy("audio"))
            if result.as_numpy("final")[0]:
                client.stop_stream()
                return np.concatenate(found)


def content(http: httpx2.Client, job: dict[str, Any]) -> str:
    """The digest of the samples; the file also says whose voice it is."""
    return hashlib.sha256(soundfile.read(io.BytesIO(file_of(http, job)), dtype="int16")[0].tobytes()).hexdigest()


def test_jobs_keep_each_style_apart(http: httpx2.Client, client: Client, clips: dict[str, bytes]) -> None:
    body = {"input": TEXT, "response_format": "wav", "voice": "Jo", **KNOBS}
    client.upload("Jo", clips["neutral"])
    client.upload("Jo", clips["happy"], style="happy")
    heard = {style: content(http, made(http, {**body, "style": f"{style},neutral"})) for style in STYLES}
    assert heard["happy"] != heard["neutral"]
    client.upload("Jo", clips["happy"], style="sad")
    for style in STYLES:
        again = made(http, {**body, "style": f"{style},neutral"})
        assert again["sentences"]["made"] == 0, "another style of the voice leaves the speech in this one"
    refused = http.post("/v1/audio/jobs", json={**body, "style": "angry"})
    assert refused.status_code == 400 and "happy, sad" in refused.json()["error"]["message"]
    assert http.delete("/v1/audio/voices/Jo/styles/happy").status_code == 200
    other = made(http, {**body, "style": "happy,neutral"})
    assert other["sentences"]["made"] == 0 and content(http, other) == heard["neutral"], "a deleted clip is not heard"
    client.upload("Jo", clips["neutral"], replace=True)
    alone = made(http, {**body, "style": "happy,neutral"})
    assert content(http, alone) == heard["neutral"], "the clip that is there sounds as a voice of it"
    client.delete("Jo")


def test_voices_over_http(
    http: httpx2.Client, client: Client, clips: dict[str, bytes], answered: dict[str, Sound]
) -> None:
    def upload(clip: bytes, **form: Any) -> httpx2.Response:
        given = {"name": "Bea", "consent": "yes", **form}
        return http.post("/v1/audio/voices", data=given, files={"audio_sample": ("a.wav", clip)})

    assert upload(clips["happy"], style="happy").status_code == 404, "a voice begins with its neutral clip"
    assert upload(clips["neutral"]).status_code == 200
    assert upload(clips["happy"], style="happy", reference_text="So glad.").status_code == 200
    assert upload(clips["neutral"], style="happy").status_code == 409
    shown = http.get("/v1/audio/voices/Bea").json()["styles"]["happy"]
    assert shown["reference_text"] == "So glad." and shown["report"] and shown["artifacts"]
    assert shown["digest"] == client.get("Bea").styles["happy"].digest and shown["duration"] and shown["sample_rate"]
    for style, clip in clips.items():
        assert http.get(f"/v1/audio/voices/Bea/audio?style={style}").content == clip
    listed = http.get("/v1/audio/voices").json()["uploaded_voices"]
    assert {each["name"]: [*each.get("styles", {})] for each in listed}["Bea"] == ["happy"]
    missing = http.post("/v1/audio/speech", json={"input": TEXT, "voice": "Bea", "style": "sad"})
    assert missing.status_code == 400 and missing.json()["error"]["param"] == "style"
    assert "neutral, happy" in missing.json()["error"]["message"]
    assert upload(clips["happy"], style="happy", replace="true").status_code == 200
    assert np.array_equal(over_http(http, input=TEXT, voice="Bea", style="happy"), answered["happy"])
    assert http.post("/v1/audio/voices/Bea/cache?style=happy").status_code == 200
    assert http.delete("/v1/audio/voices/Bea/styles/sad").status_code == 400
    gone = http.delete("/v1/audio/voices/Bea/styles/happy").json()
    assert (gone["object"], gone["style"]) == ("audio.voice.style.deleted", "happy")
    assert "styles" not in http.get("/v1/audio/voices/Bea").json()
    client.delete("Bea")


def test_the_command(
    styled: TritonServer,
    clips: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wanted: dict[str, Sound],
) -> None:
    def run(*arguments: str) -> int:
        return main([*arguments, "--url", styled.url])

    for style, clip in clips.items():
        (tmp_path / f"{style}.wav").write_bytes(clip)
    assert run("upload", "Cleo", str(tmp_path / "neutral.wav")) == 0
    assert run("upload", "Cleo", str(tmp_path / "happy.wav"), "--style", "happy") == 0
    assert run("show", "Cleo") == 0 and "happy clip\t" in capsys.readouterr().out
    out = tmp_path / "out.wav"
    assert (
        run("speak", "--voice", "Cleo", "--style", "happy", "--seed", "7", "-o", str(out), "--allow-partial", TEXT) == 0
    )
    heard, _ = soundfile.read(out, dtype="int16")
    assert np.array_equal(heard, np.clip(np.rint(wanted["happy"] * 32767), -32768, 32767).astype(np.int16))
    assert run("speak", "--voice", "Cleo", "--style", "sad", "-o", str(out), TEXT) != 0
    assert "neutral, happy" in capsys.readouterr().err
    assert run("delete", "Cleo", "--style", "happy") == 0
    assert run("delete", "Cleo") == 0


def test_export_import_and_erasure(client: Client, clips: dict[str, bytes], wanted: dict[str, Sound]) -> None:
    bundle = client.export("Ada", include_audio=False)
    assert np.array_equal(speech(client, voice_prompt=bundle, style="happy"), wanted["happy"])
    whole = client.export("Ada")
    digest = client.get("Ada").styles["happy"].digest
    client.delete("Ada")
    with pytest.raises(VoiceNotFound):
        speech(client, voice="Ada", style="happy")
    [back] = client.import_(whole)
    assert [*back.styles] == ["happy"] and back.styles["happy"].digest != digest, "no bundle brings a digest"
    assert (back.consent, back.styles["happy"].consent) == ("first", "second")
    assert np.array_equal(speech(client, voice="Ada", style="happy"), wanted["happy"])
    with pytest.raises(VoiceExists):
        client.upload("Ada", clips["neutral"], style="happy")
    client.upload("Ada", clips["neutral"], style="happy", replace=True)
    assert np.array_equal(speech(client, voice="Ada", style="happy"), wanted["neutral"])
    client.delete("Ada", style="happy")
    with pytest.raises(InvalidArgument, match="its styles are neutral"):
        speech(client, voice="Ada", style="happy")
    client.upload("Ada", clips["happy"], style="happy")

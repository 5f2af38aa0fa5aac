"""A voice that is deleted, or is not to be kept, leaves nothing that a process of the real server would use."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from voice_clone_client import Client, InvalidArgument, VoiceNotFound

from tests.support.same_audio import is_same_audio
from tests.support.servers.both_families import FAMILIES, Next
from tests.support.servers.process_memory import OVERWRITTEN, found_in_server
from tests.support.servers.running import SETTINGS, running
from tests.support.waiting import WAIT
from voice_clone_server.triton_server import TritonServer

pytestmark = pytest.mark.share("families")

TEXT = "The harbour was quiet."


@pytest.fixture(scope="module")
def server(next_of_both: Next) -> TritonServer:
    """A server of both families that has no voice any more, and has met no clip of other tests."""
    with Client(next_of_both.server.url) as client:
        for voice in client.list():
            client.delete(voice.name)
    return next_of_both.server


@pytest.fixture(scope="module")
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def speak(client: Client, family: str, voice: str, **given: Any) -> dict[str, Any]:
    """The info of a short speech."""
    speech = client.speak("Good morning.", voice=voice, model=family, seed=1, max_frames=6, **given)
    speech.read()
    return dict(speech.info or {})


def kept(client: Client) -> dict[str, int]:
    """Of how many voices each model keeps something."""
    return {model: reported["voices"] for model, reported in client.stats()["kept"].items()}


NOTHING = {"fish_speech_code2wav": 0, "fish_speech_talker": 0, "qwen3_tts_code2wav": 0, "qwen3_tts_talker": 0}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["delete", "replace", "rebuild"])
def test_the_first_speech_afterwards_is_cold_everywhere(
    client: Client, reference_clip: bytes, family: str, way: str
) -> None:
    assert kept(client) == NOTHING
    client.upload("Ada", reference_clip, reference_text=TEXT, wait=True)
    first, second = speak(client, family, "Ada"), speak(client, family, "Ada")
    assert second["prompt_positions"] < first["prompt_positions"]
    assert first["primed"] == ("miss" if family == "qwen3_tts" else "none")
    assert second["primed"] == ("hit" if family == "qwen3_tts" else "none")
    holders = {f"{family}_talker"} | ({f"{family}_code2wav"} if family == "qwen3_tts" else set())
    assert kept(client) == {model: int(model in holders) for model in NOTHING}
    before = client.stats()["extractions"]
    if way == "delete":
        client.delete("Ada")
    elif way == "replace":
        client.upload("Ada", speaker_embedding=np.zeros(64, np.float32) + 1.0, model="qwen3_tts", replace=True)
    else:
        client.prepare("Ada", force=True)
        before += 1
    assert kept(client) == NOTHING
    client.upload("Bea", reference_clip, reference_text=TEXT, wait=True)
    assert client.stats()["extractions"] == before + len(FAMILIES)
    again = speak(client, family, "Bea")
    assert (again["prompt_positions"], again["primed"]) == (first["prompt_positions"], first["primed"])
    for voice in client.list():
        client.delete(voice.name)
    assert kept(client) == NOTHING


def sound(client: Client, family: str, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Samples and info of the same short speech."""
    speech = client.speak("Good morning.", model=family, seed=1, max_frames=6, **given)
    samples, _ = speech.read()
    return samples, dict(speech.info or {})


@pytest.mark.parametrize("family", FAMILIES)
def test_cache_false_leaves_nothing_in_any_process(client: Client, reference_clip: bytes, family: str) -> None:
    assert kept(client) == NOTHING
    client.upload("Ada", reference_clip, reference_text=TEXT, wait=True)
    cold = client.stats()
    clip: dict[str, Any] = {"reference_audio": reference_clip, "reference_text": TEXT}
    first, reported = sound(client, family, voice="Ada", cache=False)
    assert reported["cache"] == "restored", "from the store, for the memory is not asked"
    again, more = sound(client, family, voice="Ada", cache=False)
    assert more["prompt_positions"] == reported["prompt_positions"] and more["primed"] == reported["primed"] != "hit"
    inline, of_clip = sound(client, family, cache=False, **clip)
    assert of_clip["cache"] == "miss" and "origin" not in of_clip
    now = client.stats()
    assert kept(client) == NOTHING and all(each["entries"] == 0 for each in now["kept"].values())
    assert (now["entries"], now["bytes"]) == (cold["entries"], cold["bytes"])
    for _ in range(2):
        cached, warm = sound(client, family, voice="Ada")
    assert warm["prompt_positions"] < reported["prompt_positions"]
    for samples in (first, again, inline):
        assert is_same_audio(samples, cached)
    aside, info = sound(client, family, voice="Ada", cache=False)  # nothing that is kept is used
    assert is_same_audio(aside, cached) and info["prompt_positions"] == reported["prompt_positions"]
    client.delete("Ada")
    assert kept(client) == NOTHING


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("include_audio", [True, False])
def test_a_ready_prompt_speaks_as_the_registered_voice(
    client: Client, reference_clip: bytes, family: str, include_audio: bool
) -> None:
    client.upload("Ada", reference_clip, reference_text=TEXT, consent="by mail", wait=True)
    named, reported = sound(client, family, voice="Ada")
    prompt = client.export("Ada", include_audio=include_audio)
    client.delete("Ada")
    before = client.stats()
    for _ in range(2):
        samples, info = sound(client, family, voice_prompt=prompt)
        assert is_same_audio(samples, named)
        same = ("mode", "prompt_positions", "reference_frames")
        assert {name: info.get(name) for name in same} == {name: reported.get(name) for name in same}
        assert info["cache"] == "none" and "voice" not in info
    after = client.stats()
    assert (after["extractions"], after["entries"]) == (before["extractions"], before["entries"])
    assert kept(client) == NOTHING and all(each["entries"] == 0 for each in after["kept"].values())
    assert client.list() == []


def test_prompts_that_are_refused(client: Client, reference_clip: bytes) -> None:
    for name in ("Ada", "Bea"):
        client.upload(name, reference_clip, reference_text=TEXT, wait=True)
    one, two = client.export("Ada"), client.export()
    for name in ("Ada", "Bea"):
        client.delete(name)
    middle = len(one) // 2
    for prompt, words in [
        (b"", "damaged"),
        (reference_clip, "damaged"),
        (one[:-1], "damaged"),
        (one[:middle] + bytes([one[middle] ^ 1]) + one[middle + 1 :], "damaged"),
        (two, "holds 2 voices"),
    ]:
        with pytest.raises(InvalidArgument, match=words) as raised:
            sound(client, "qwen3_tts", voice_prompt=prompt)
        assert "\n" not in str(raised.value)
    with pytest.raises(InvalidArgument, match="exactly one of"):
        sound(client, "qwen3_tts", voice_prompt=one, voice="Ada")
    assert kept(client) == NOTHING


def test_a_clip_that_was_spoken_with_before_it_was_registered(client: Client, reference_clip: bytes) -> None:
    """What was computed of it goes with the voice."""
    given: dict[str, Any] = {"reference_audio": reference_clip, "reference_text": TEXT, "seed": 1, "max_frames": 4}
    client.speak("Good morning.", **given).read()
    client.upload("Ada", reference_clip, reference_text=TEXT, wait=True)
    assert speak(client, "qwen3_tts", "Ada")["primed"] == "hit"
    client.delete("Ada")
    assert kept(client) == NOTHING


@pytest.mark.parametrize("family", FAMILIES)
def test_deleted_while_it_speaks(client: Client, reference_clip: bytes, family: str) -> None:
    """The speech goes on to its end; nothing that it computed stays."""
    for _ in range(3):
        client.upload("Ada", reference_clip, reference_text=TEXT, wait=True)
        speech = client.speak("Good morning.", voice="Ada", model=family, seed=1, max_frames=40)
        next(iter(speech))
        client.delete("Ada")
        assert kept(client) == NOTHING
        assert sum(len(chunk.samples) for chunk in speech) > 0
        assert kept(client) == NOTHING


def test_deletes_and_speeches_at_random(client: Client, reference_clip: bytes) -> None:
    """Uploads, speeches and deletes of a few voices at once, with and without the same clip."""
    faults: list[str] = []

    def live(number: int) -> None:
        family = FAMILIES[number % 2]
        for _ in range(4):
            try:
                client.upload(f"Voice {number}", reference_clip, reference_text=f"{TEXT} {number % 3}")
                threads = [threading.Thread(target=say, args=(f"Voice {number}", family)) for _ in range(2)]
                for thread in threads:
                    thread.start()
                client.delete(f"Voice {number}")
                for thread in threads:
                    thread.join()
            except Exception as error:
                faults.append(f"{type(error).__name__}: {error}")

    def say(voice: str, family: str) -> None:
        try:
            speak(client, family, voice)
        except VoiceNotFound:
            pass
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")

    lives = [threading.Thread(target=live, args=(number,)) for number in range(4)]
    for thread in lives:
        thread.start()
    for thread in lives:
        thread.join()
    assert not faults, faults
    # Clips of deleted voices may still be in the encoders: other tests would count them. This one comes behind them.
    client.upload("Last", reference_clip, reference_text=TEXT, wait=True)
    client.delete("Last")
    assert kept(client) == NOTHING


@pytest.mark.parametrize("model", sorted(NOTHING))
@pytest.mark.parametrize("text", ["", "{", "{}", '"7"', "[7]", "[" * 2000])
def test_a_wrong_list_is_refused(server: TritonServer, model: str, text: str) -> None:
    caller = triton.InferenceServerClient(server.url)
    answers: list[Any] = []
    came = threading.Event()

    def take(result: Any, error: Any) -> None:
        answers.append(str(error))
        came.set()

    caller.start_stream(take)
    wanted = triton.InferInput("forget", [1], "BYTES")
    wanted.set_data_from_numpy(np.array([text.encode()], np.object_))
    caller.async_stream_infer(model, [wanted])
    assert came.wait(WAIT) and "`forget` must be a list" in answers[0]
    caller.stop_stream()
    caller.close()


@pytest.mark.long
def test_texts_of_a_deleted_voice_in_the_memory_of_the_server(
    both_checkpoints: list[Path], tmp_path: Path, reference_clip: bytes
) -> None:
    """Transcript and consent. What remains after the delete is freed: buffers of Triton's connections, and of its
    messages between the processes. So other voices overwrite it.
    """
    texts = [secrets.token_hex(12) for _ in range(2)]
    sought = [text.encode() for text in texts]
    with running(both_checkpoints, tmp_path, **SETTINGS, **OVERWRITTEN) as server, Client(server.url) as client:

        def live(name: str, text: str, consent: str) -> None:
            client.upload(
                name, reference_clip, reference_text=f"{TEXT} {text}", consent=consent, wait=True, replace=True
            )
            for family in FAMILIES:
                speak(client, family, name)
            client.get(name), client.list(), client.export(name)

        assert found_in_server(server, sought) == {}
        live("Ada", *texts)
        held = found_in_server(server, sought)
        client.delete("Ada")
        left = found_in_server(server, sought)
        for number in range(20):
            live("Bea", f"{number:024}", f"{number:024}")
        client.delete("Bea")
        later = found_in_server(server, sought)
    assert {"speaker_cache", "qwen3_tts_prompt"} <= held.keys()
    assert sum(later.values()) < sum(left.values()) < sum(held.values()), (held, left, later)


WAYS = ("inline", "registered")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("then", WAYS)
def test_no_owner_learns_what_clips_others_have(
    server: TritonServer, client: Client, reference_clip: bytes, family: str, first: str, then: str
) -> None:
    """One that an owner has used is cold for another one, and warm for the first."""
    told = ("cache", "prompt_positions", "primed", "mode")

    def speak_as(owner: str | None, way: str) -> dict[str, Any]:
        given: dict[str, Any] = {"voice": f"Voice of {owner}"}
        if way == "inline":
            given = {"reference_audio": reference_clip, "reference_text": TEXT}
        with Client(server.url, owner=owner) as caller:
            if way == "registered":
                caller.upload(given["voice"], reference_clip, reference_text=TEXT, wait=True)
            _, info = sound(caller, family, **given)
        return {name: info.get(name) for name in told}

    cold = speak_as("carol", then)
    speak_as("alice", first)
    assert [speak_as(owner, then) for owner in ("bob", None)] == [cold, cold]
    warm = speak_as("bob", then)
    assert warm["prompt_positions"] < cold["prompt_positions"]
    for voice in client.list():
        client.delete(voice.name)
    client.upload("Last", reference_clip)
    client.delete("Last")
    assert kept(client) == NOTHING

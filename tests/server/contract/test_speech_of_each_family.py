"""What holds of the speech of every family: served as bare, alone as beside others, streamed as whole, on every way."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from voice_clone_client import (
    Client,
    DeadlineExceeded,
    InvalidArgument,
    Preset,
    Unsupported,
    VoiceCloneError,
    VoiceNotFound,
)
from voice_clone_command import cli

from tests.support.families.bare import Bare
from tests.support.families.trials import ADA, CARDS, CLONING, KNOBS, MUTE, TEXT, TRIALS, Way, merged, other_value
from tests.support.official.deployment_files import metrics_in_manifests
from tests.support.official.encoded_sound import decode
from tests.support.same_audio import is_same_audio
from tests.support.servers.contract_calls import IDS, SEED, WAYS, Samples, expected, of_voice, speak
from tests.support.servers.server_metrics import metric, series, until_cancelled, wait_until_quiet
from tests.support.waiting import WAIT, until
from voice_clone.family import Option
from voice_clone.marking.marker import PerthMarker
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("contract")]

each_family = pytest.mark.parametrize("family", CARDS)
each_way = pytest.mark.parametrize(("family", "way"), WAYS, ids=IDS)
FIRST = {family: TRIALS[family].ways[0] for family in CARDS}
BUILT_IN = {family: trial.presets for family, trial in TRIALS.items() if trial.presets}


@pytest.fixture(scope="module")
def alone(client: Client) -> Callable[[str, Way], Samples]:
    """A speech, made once."""
    made: dict[str, Samples] = {}

    def heard(family: str, way: Way) -> Samples:
        key = repr((family, way))
        if key not in made:
            made[key], _ = speak(client, family, way.voice, **way.asked)
        return made[key]

    return heard


@each_way
def test_a_server_speaks_as_the_bare_stages(
    client: Client,
    bare_of: Callable[[str], Bare],
    reference_clip: bytes,
    reference_text: str,
    family: str,
    way: Way,
) -> None:
    bare = bare_of(family)
    wanted = expected(bare, of_voice(bare, way, reference_clip, reference_text), **way.asked)
    samples, info = speak(client, family, way.voice, **way.asked)
    assert (info["mode"], info["finish_reason"], info["frames"]) == (way.mode, wanted.finish, len(wanted.codes))
    assert info["cache"] == (
        "none" if way.voice is None else "preset" if way.voice in BUILT_IN.get(family, ()) else "hit"
    )
    assert info["seed"] == SEED and (way.voice is None or info["voice"] == way.voice)
    if not TRIALS[family].finished:
        assert len(samples) == info["frames"] * bare.decoder.form.frame_samples
    assert is_same_audio(samples, wanted.samples)
    assert float(samples.std()) > 0.003, "near silence proves nothing"


@each_family
def test_a_seed_and_each_way_make_a_speech_of_their_own(
    client: Client, alone: Callable[[str, Way], Samples], family: str
) -> None:
    heard = [alone(family, way).tobytes() for way in TRIALS[family].ways]
    heard += [speak(client, family, FIRST[family].voice, seed=seed)[0].tobytes() for seed in (3, 2**63 + 5)]
    assert len(set(heard)) == len(heard)


def test_company_changes_no_speech(client: Client, alone: Callable[[str, Way], Samples]) -> None:
    """All ways of all families at once, and each family's first one with another seed."""
    orders = [(family, way.voice, dict(way.asked), alone(family, way)) for family, way in WAYS]
    for family, way in FIRST.items():
        orders.append((family, way.voice, {"seed": 9}, speak(client, family, way.voice, seed=9)[0]))
    barrier = threading.Barrier(len(orders))

    def beside(order: tuple[str, str | None, dict[str, Any], Samples]) -> Samples:
        barrier.wait(WAIT)
        return speak(client, order[0], order[1], **order[2])[0]

    with ThreadPoolExecutor(len(orders)) as pool:
        for (family, *_, one), other in zip(orders, pool.map(beside, orders), strict=True):
            assert is_same_audio(other, one), family


@pytest.mark.long
def test_many_speeches_side_by_side_are_those_that_they_are_alone(client: Client) -> None:
    """Neighbours of all families, ways and lengths come and go: other by rounding, never by a frame."""
    rng, orders = random.Random(0), list[tuple[str, str | None, dict[str, Any]]]()
    for family, way in WAYS * 25:
        lengths = {} if not CARDS[family].autoregressive else {"max_frames": rng.randrange(3, 40)}
        orders.append((family, way.voice, merged(way.asked, lengths, {"seed": rng.getrandbits(64)})))
    rng.shuffle(orders)

    def heard(order: tuple[str, str | None, dict[str, Any]]) -> Samples:
        return speak(client, order[0], order[1], **order[2])[0]

    alone = [heard(order) for order in orders]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(heard, orders))
    heard_at_all = [each for each in zip(orders, alone, together, strict=True) if each[1].size or each[2].size]
    assert len(heard_at_all) > 0.9 * len(orders), "three frames may be too few for a sample"
    others = [order for order, *pair in heard_at_all if not is_same_audio(*pair)]
    assert not others, f"{len(others)} of {len(orders)} have another frame, such as {others[0]}"


@pytest.mark.parametrize("family", CLONING)
def test_a_clip_in_the_request_is_the_registered_voice(
    client: Client, reference_clip: bytes, reference_text: str, family: str
) -> None:
    wanted, registered = speak(client, family, ADA)
    samples, info = speak(client, family, reference_audio=reference_clip, reference_text=reference_text)
    assert info["mode"] == registered["mode"] and is_same_audio(samples, wanted)
    assert speak(client, family, reference_audio=reference_clip, reference_text=reference_text)[1]["cache"] == "hit"
    if all(CARDS[family].modes.values()):
        with pytest.raises(Unsupported, match="upload it again with reference_text"):
            speak(client, family, MUTE)
        with pytest.raises(InvalidArgument, match="needs reference_text"):
            speak(client, family, reference_audio=reference_clip)
    else:
        wanted, registered = speak(client, family, MUTE)
        samples, info = speak(client, family, reference_audio=reference_clip)
        assert info["mode"] == registered["mode"] and is_same_audio(samples, wanted)


def different(family: str, name: str) -> Any:
    return TRIALS[family].knobs.get(name, KNOBS[name])


@each_family
def test_each_knob_counts_or_is_refused(
    client: Client, bare_of: Callable[[str], Bare], reference_clip: bytes, reference_text: str, family: str
) -> None:
    way, bare = FIRST[family], bare_of(family)
    voice = of_voice(bare, way, reference_clip, reference_text)
    plain = expected(bare, voice).samples
    for name in KNOBS:
        given = {name: different(family, name)}
        if name in CARDS[family].knobs:
            wanted = expected(bare, voice, **given).samples
            assert not is_same_audio(wanted, plain), f"{name} changes nothing, so this proves nothing"
            assert is_same_audio(speak(client, family, way.voice, **given)[0], wanted), name
        else:
            with pytest.raises(Unsupported, match=f"{name}|reads the whole text first"):
                speak(client, family, way.voice, **given)


@pytest.mark.parametrize(
    ("family", "option"),
    [(name, each) for name, card in CARDS.items() for each in card.options if other_value(name, each) is not None],
)
def test_each_option_counts(
    client: Client,
    bare_of: Callable[[str], Bare],
    reference_clip: bytes,
    reference_text: str,
    family: str,
    option: Option,
) -> None:
    way, bare = FIRST[family], bare_of(family)
    voice = of_voice(bare, way, reference_clip, reference_text)
    given = {"options": {option.name: other_value(family, option)}}
    wanted = expected(bare, voice, **given).samples
    assert not is_same_audio(wanted, expected(bare, voice).samples)
    assert is_same_audio(speak(client, family, way.voice, **given)[0], wanted)


@each_family
def test_what_is_refused(client: Client, family: str) -> None:
    card, voice = CARDS[family], FIRST[family].voice
    wrong: list[tuple[dict[str, Any], type[VoiceCloneError], str]] = [
        ({"options": {"warble": 1}}, InvalidArgument, "'warble' is unknown; this model has"),
        ({"max_frames": 0}, InvalidArgument, "max_frames"),
        ({"language": "Klingon"}, VoiceCloneError, "Klingon"),
    ]
    if "temperature" in card.knobs:
        wrong.append(({"temperature": -1.0}, InvalidArgument, "temperature"))
    if control := TRIALS[family].control:
        wrong.append(({"text": f"Hello {control} there."}, InvalidArgument, "control token"))
    for option in card.options:
        strange: Any = 3 if option.type is str else "much"
        wrong.append(({"options": {option.name: strange}}, InvalidArgument, f"{option.name} is .*must be of type"))
        if option.most is not None:
            wrong.append(({"options": {option.name: int(option.most) + 1}}, InvalidArgument, f"{option.name} is "))
    for given, error, message in wrong:
        with pytest.raises(error, match=message):
            speak(client, family, voice, **given)
    if voice is not None:
        with pytest.raises(VoiceNotFound, match="Nobody"):
            speak(client, family, "Nobody")
    if not card.appends:
        with pytest.raises(Unsupported, match="needs the whole text before it speaks"):
            client.speak_stream(["Good ", "morning."], voice=voice, model=family).read()


@pytest.mark.parametrize("family", CLONING)
def test_a_transcript_is_no_command(client: Client, reference_clip: bytes, family: str) -> None:
    if control := TRIALS[family].control:
        before = client.stats()["extractions"]
        with pytest.raises(InvalidArgument, match="control token"):
            speak(client, family, reference_audio=reference_clip + b"\0", reference_text=f"Now {control} then")
        assert client.stats()["extractions"] == before, "a request that is refused encodes no clip"


@each_family
def test_an_embedding_alone_is_a_voice_where_the_card_has_one(client: Client, family: str) -> None:
    given: dict[str, Any] = {"speaker_embedding": np.random.default_rng(0).normal(size=64).astype(np.float32)}
    if "speaker_embedding" in [each.name for each in CARDS[family].artifacts]:
        assert speak(client, family, **given)[1]["mode"] == "x_vector"
        own = client.speaker_embedding(ADA, model=family)
        assert is_same_audio(speak(client, family, speaker_embedding=own)[0], speak(client, family, MUTE)[0])
        client.upload("Embedded", model=family, wait=True, **given)
        assert is_same_audio(speak(client, family, "Embedded")[0], speak(client, family, **given)[0])
        for other in CLONING:
            if other != family:
                with pytest.raises(VoiceCloneError):
                    speak(client, other, "Embedded")
        client.delete("Embedded")
        return
    with pytest.raises(Unsupported):
        speak(client, family, **given)
    with pytest.raises(Unsupported):
        client.upload("Embedded", model=family, **given)
    with pytest.raises(Unsupported):
        client.speaker_embedding(ADA, model=family)


def test_presets_are_listed_with_their_family(client: Client, http: httpx2.Client) -> None:
    wanted = [Preset(name, family, False) for family, names in BUILT_IN.items() for name in names]
    assert sorted(client.presets(), key=repr) == sorted(wanted, key=repr)
    listed = http.get("/v1/audio/voices").json()
    assert {(each["name"], each["model"]) for each in listed["preset_voices"]} == {
        (each.name, each.model_type) for each in wanted
    }
    assert {*listed["voices"]} == {ADA, MUTE, *(preset.name for preset in wanted)}


@pytest.mark.parametrize("family", BUILT_IN)
def test_each_preset_speaks(client: Client, family: str) -> None:
    def spoken(name: str) -> Samples:
        samples, info = speak(client, family, name, max_frames=6)
        assert (info["cache"], info["voice"], info["mode"]) == ("preset", name, "preset")
        return samples

    with ThreadPoolExecutor(4) as pool:
        heard = [samples.tobytes() for samples in pool.map(spoken, BUILT_IN[family])]
    assert len(set(heard)) == len(BUILT_IN[family])


@each_family
def test_a_speech_over_http_is_that_of_the_client(client: Client, http: httpx2.Client, family: str) -> None:
    """In every format; instructions go where the card says."""
    card, voice = CARDS[family], FIRST[family].voice
    asked = dict(TRIALS[family].asked)
    words = TRIALS[family].options[card.instructions] if card.instructions else ""
    wanted, _ = speak(client, family, voice, **({"options": {card.instructions: words}} if words else {}))
    rate = client.speak(TEXT, model=family, voice=voice, max_frames=1).read()[1]
    body: dict[str, Any] = {"model": family, "input": TEXT, "seed": SEED, "allow_partial": True, "instructions": words}
    body |= {"max_new_tokens" if name == "max_frames" else name: value for name, value in asked.items()}
    body |= {"voice": voice} if voice else {}
    for form in ("wav", "flac", "pcm", "mp3", "opus"):
        answer = http.post("/v1/audio/speech", json={**body, "response_format": form})
        assert answer.status_code == 200, answer.text
        assert "x-speech-warning" not in answer.headers
        heard = decode(form, answer.content, rate)
        assert len(heard.samples) / heard.rate == pytest.approx(len(wanted) / rate, abs=0.1)
        if form == "pcm":
            assert answer.headers["content-type"] == f"audio/pcm;rate={rate}"
        if form in ("wav", "flac", "pcm"):
            assert heard.rate == rate and np.abs(heard.samples - wanted).max() <= 2 / 32768
    refused = http.post("/v1/audio/speech", json={**body, "options": {"warble": 1}})
    assert refused.status_code == 400 and "this model has" in refused.json()["error"]["message"]


def test_the_gateway_lists_what_each_can_do(http: httpx2.Client, client: Client) -> None:
    listed = {each["id"]: each for each in http.get("/v1/models").json()["data"]}
    for name, card in CARDS.items():
        assert (listed[name]["instructions"], listed[name]["voiceless"]) == (bool(card.instructions), card.voiceless)
        assert [*listed[name]["options"]] == [each.name for each in card.options]
        assert listed[name]["languages"] == [*(card.languages or ())]
    assert (listed["tts-1"]["root"], listed["tts-1-hd"]["root"]) == ("qwen3_tts", "chirp")
    body = {"input": TEXT, "voice": ADA, "response_format": "pcm", "max_new_tokens": 4}
    for named, rate in (({}, 24000), ({"model": "tts-1"}, 24000), ({"model": "tts-1-hd"}, 44100)):
        answer = http.post("/v1/audio/speech", json={**body, **named})
        assert answer.headers["content-type"] == f"audio/pcm;rate={rate}"
    assert http.post("/v1/audio/speech", json={**body, "model": "nightingale"}).status_code == 404


@each_family
def test_a_streamed_speech_is_the_whole_one(client: Client, server: TritonServer, family: str) -> None:
    def whole(**named: Any) -> Samples:
        order: dict[str, Any] = {"text": TEXT, "seed": SEED, **TRIALS[family].asked, **named}
        order |= {"options": json.dumps(order.get("options", {}))}
        answer = httpx2.post(f"{server.http}/v2/models/speech_whole/generate", json=order, timeout=60.0, verify=False)
        assert answer.status_code == 200, answer.text
        return np.array(answer.json()["audio"], np.float32)

    voice = FIRST[family].voice
    named = {"voice": voice} if voice else {}
    wanted, _ = speak(client, family, voice)
    assert is_same_audio(whole(**named, model=family), wanted)
    if family == client.models()[0]:
        assert is_same_audio(whole(**named), wanted), "it is the default"


@each_family
def test_the_command_line(
    client: Client, server: TritonServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    way, file, trial = TRIALS[family].ways[-1], tmp_path / "said.wav", TRIALS[family]
    asked = merged(trial.asked, way.asked)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items() if name != "options"]
    for name, value in asked.get("options", {}).items():
        words += ["--option", f"{name}={json.dumps(value) if isinstance(value, bool) else value}"]
    command = ["--url", server.url, "--model", family, "speak", TEXT, "-o", str(file), "--seed", str(SEED)]
    command += ["--voice", way.voice] if way.voice else []
    assert cli.main([*command, *words]) == 0, capsys.readouterr().err
    wanted, _ = speak(client, family, way.voice, **way.asked)
    samples, _ = soundfile.read(file, dtype="float32")
    assert len(samples) == len(wanted) and np.abs(samples - wanted).max() <= 2 / 32768
    assert cli.main([*command, "--option", "warble=3"]) == 1
    assert "'warble' is unknown; this model has" in capsys.readouterr().err


@each_family
def test_a_mark_is_all_that_it_changes(client: Client, server: TritonServer, family: str) -> None:
    voice = FIRST[family].voice
    plain, info = speak(client, family, voice)
    assert "mark" not in info
    with Client(server.url, mark="required") as marking:
        chunks = list(marking.speak(TEXT, model=family, voice=voice, seed=SEED, **TRIALS[family].asked))
    assert [(chunk.info or {}).get("mark") for chunk in (chunks[0], chunks[-1])] == ["marked", "marked"]
    marker = PerthMarker(chunks[0].sample_rate)
    [wanted] = marker.mark([marker.open()], [plain])
    assert is_same_audio(np.concatenate([chunk.samples for chunk in chunks]), wanted)
    assert not is_same_audio(plain, wanted)


@each_family
def test_a_client_that_leaves_ends_its_stream(client: Client, server: TritonServer, family: str) -> None:
    def leave() -> int:
        with client.speak(TEXT, model=family, voice=FIRST[family].voice, **TRIALS[family].long) as speech:
            if not CARDS[family].autoregressive:  # it makes no chunk before all is known
                until(lambda: metric(server, "talker_live_streams", family) == 1)
                return 1
            next(iter(speech))
        return 1

    until_cancelled(server, leave, family)
    until(lambda: metric(server, "talker_live_streams", family) == 0)


@each_family
def test_a_deadline_ends_a_stream(client: Client, server: TritonServer, family: str) -> None:
    with pytest.raises(DeadlineExceeded):
        speak(client, family, FIRST[family].voice, **TRIALS[family].long, deadline=0.05)
    until(
        lambda: metric(server, "talker_live_streams", family) == metric(server, "talker_waiting_streams", family) == 0
    )
    assert len(speak(client, family, FIRST[family].voice)[0])


def test_metrics_distinguish_the_families(client: Client, server: TritonServer, bare_of: Callable[[str], Bare]) -> None:
    wait_until_quiet(server, WAIT)  # the speeches of other tests are counted
    names = ("talker_frames_total", "talker_speech_seconds_total")

    def counted() -> dict[tuple[str, str], float]:
        return {(name, family): metric(server, name, family) for name in names for family in CARDS}

    wanted: dict[tuple[str, str], float] = counted()
    for family, way in FIRST.items():
        _, info = speak(client, family, way.voice)
        wanted[names[0], family] += info["frames"]
        wanted[names[1], family] += info["frames"] * bare_of(family).talker.frame_seconds
        until(lambda: counted() == pytest.approx(wanted))
    watched = {name for name in metrics_in_manifests() if not name.startswith("speaker_cache_")}
    assert watched and {name for name, *_ in series(server)} >= watched, "of the autoscaler"
    by_family: dict[str, set[str]] = {}
    for name, labels, _ in series(server):
        if name.startswith("talker_") and "family" in labels:
            by_family.setdefault(labels["family"], set()).add(name)
    assert by_family.keys() == CARDS.keys() and len({frozenset(names) for names in by_family.values()}) == 1

"""What an operator does with the images: start, speak, upload, restart, kill, confine, and get something wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from voice_clone_client import VoiceCloneError

from tests.images.engine import Engine, Ports, health_check, image
from tests.images.serving import CLIPS, CONFINED, TEXT, over_grpc, over_http, serve, serving, speaks, upload
from voice_clone.native.instructions import FEATURES, INSTRUCTIONS, PROCESSORS, choose
from voice_clone_server.triton_server import ROOT

SPEAK = f"""
import urllib.request as u
body = b'{{"input": "{TEXT}", "voice": "demo", "response_format": "wav"}}'
request = u.Request("http://localhost:8080/v1/audio/speech", body, {{"Content-Type": "application/json"}})
print(u.urlopen(request).read(4))
"""
MOST_LIKELY: dict[str, Any] = {"seed": 1, "do_sample": False, "options": {"subtalker_do_sample": False}}


@pytest.fixture(scope="module")
def cache(engine: Engine) -> str:
    """The volume of compiled code, which all containers of this file share."""
    return engine.volume()


def test_one_command_speaks_at_once(engine: Engine, cache: str) -> None:
    """As in README: no option but the cache's volume. In a network of its own, so that the ports are the image's."""
    check = health_check(engine, "cpu")
    with engine.container("cpu", f"--volume={cache}:/cache", "--network=none") as container:
        assert container.execute(*check).returncode != 0, "healthy before it is ready"
        container.ready()
        assert container.execute(*check).returncode == 0
        spoken = container.execute("python", "-c", SPEAK)
        assert "RIFF" in spoken.stdout, spoken.stderr
        assert container.execute("id", "-u").stdout.strip() != "0"


def test_a_voice_outlives_stop_and_kill(engine: Engine, cache: str) -> None:
    voices = engine.volume()
    with serving(engine, cache, voices) as (container, ports):
        assert b"<html" in ports.fetch("/") and b"voice_clone" in ports.fetch("/metrics")
        upload(ports, "rms")
        speaks(ports, "demo", "rms")
        container.signal("TERM")
        assert container.exit() == 0
    with serving(engine, cache, voices) as (container, ports):
        speaks(ports, "demo", "rms")
        assert container.execute("sh", "-c", "cat /proc/[0-9]*/maps | grep -c libtorch").stdout.strip() == "0"
        container.signal("KILL")
        assert container.exit() == 137
    with serving(engine, cache, voices) as (container, ports):
        speaks(ports, "demo", "rms")
        assert container.execute("sh", "-c", "kill -9 $(pidof tritonserver)").returncode == 0
        container.wait(lambda: "is ready again" in container.log())
        speaks(ports, "demo", "rms")


def test_a_speech_that_runs_ends_before_the_container_does(engine: Engine, cache: str) -> None:
    with serving(engine, cache, engine.volume()) as (container, ports), ports.client() as client:
        whole = over_grpc(client, "demo")
        with client.speak(TEXT, voice="demo", seed=1) as speech:
            first = len(next(speech).samples)
            container.signal("TERM")
            assert first + sum(len(chunk.samples) for chunk in speech) == whole
        assert container.exit() == 0


def test_it_needs_no_rights_and_no_more_shared_memory_than_usual(engine: Engine, cache: str) -> None:
    with serving(engine, cache, engine.volume(), *CONFINED, "--shm-size=64m") as (_, ports):
        upload(ports, "rms")
        speaks(ports, "demo", "rms")


def test_without_room_for_voices_and_cache_it_still_speaks(engine: Engine) -> None:
    ports = Ports()
    command = serve("/checkpoint", *ports.options, "--first-voice=/opt/voice-clone/demo.wav")
    mounts = ("--tmpfs=/cache:size=64k,mode=777", "--tmpfs=/voices:size=1m,mode=777")
    with engine.container("cpu", *mounts, command=command) as container:
        container.ready()
        with ports.client() as client, pytest.raises(VoiceCloneError):
            for number in range(9):
                client.upload(f"more-{number}", CLIPS / "rms.wav", wait=True)
        assert len(over_http(ports, "demo")) > 24000


def test_the_code_of_each_kind_of_processor_speaks_the_same(engine: Engine, cache: str) -> None:
    """Of those that this processor can run. Without a random choice only roundings differ."""
    voices, spoken = engine.volume(), []
    for features in PROCESSORS:
        kind = choose("", dict.fromkeys(features, True), "x86_64")
        if any(getattr(kind, each) > getattr(INSTRUCTIONS, each) for each in ("width", "byte_dots", "bf16_dots")):
            continue
        option = f"--env={FEATURES}={' '.join(features)}"
        with serving(engine, cache, voices, option) as (_, ports), ports.client() as client:
            spoken.append(client.speak(TEXT, voice="demo", max_frames=24, **MOST_LIKELY).read()[0])
    assert len(spoken) > 1 and np.sqrt(np.mean(spoken[0] ** 2)) > 0.01
    for each in spoken[1:]:
        np.testing.assert_allclose(each, spoken[0], atol=1e-3)


def test_two_versions_use_the_same_volumes_one_after_the_other(engine: Engine, cache: str) -> None:
    """The other one differs in its code, so what the first one keeps for its next start is not the other's."""
    change = "echo '# another' >> $(python -c 'import voice_clone; print(voice_clone.__file__)')"
    engine.build_on(f"FROM {image('cpu')}\nUSER 0\nRUN {change}\nUSER 1000\n", image("other"))
    voices, names = engine.volume(), ["demo"]
    for name, target in (("first", "cpu"), ("second", "other"), ("third", "cpu")):
        with serving(engine, cache, voices, target=target) as (_, ports):
            upload(ports, name)
            names.append(name)
            speaks(ports, *sorted(names))


def test_a_folder_that_is_no_checkpoint_ends_it_with_one_sentence(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    mount = f"--volume={tmp_path / 'checkpoint'}:/checkpoint:ro"
    with engine.container("cpu", mount, "--user=0:0", command=serve("/checkpoint", *Ports().own)) as container:
        assert container.exit() == 2
        [line] = container.log().strip().splitlines()
        assert "/checkpoint" in line


def test_a_checkpoint_that_is_not_there_is_named(engine: Engine) -> None:
    with engine.container("cpu", command=serve("/none", *Ports().own)) as container:
        assert container.exit() == 2
        [line] = container.log().strip().splitlines()
        assert "/none" in line


def test_an_image_with_the_aligner_finds_the_words(engine: Engine, cache: str) -> None:
    with engine.container("cpu", command=serve("/checkpoint", *Ports().own, "--with=aligner")) as container:
        assert container.exit() == 2
        [line] = container.log().strip().splitlines()
        assert "pocketsphinx" in line and "alignment" in line
    [pin] = [each for each in (ROOT / "constraints.txt").read_text().splitlines() if each.startswith("pocketsphinx==")]
    engine.build("cpu", f"--build-arg=ALIGNMENT={pin}", name="aligning")
    aligning = serving(engine, cache, engine.volume(), target="aligning", more=["--with=aligner"])
    with aligning as (_, ports), ports.client() as client, client.speak(TEXT, voice="demo", words=True) as speech:
        speech.read()
        assert [(word.text, word.estimated) for word in speech.words] == [(each, False) for each in TEXT.split()]


def test_the_gateway_s_image_speaks_with_a_server_elsewhere(engine: Engine, cache: str) -> None:
    with serving(engine, cache, engine.volume()) as (_, ports):
        own = Ports()
        place = [
            f"--env=VOICE_CLONE_GATEWAY_TRITON=127.0.0.1:{ports.grpc}",
            f"--env=VOICE_CLONE_GATEWAY_PORT={own.gateway}",
        ]
        with engine.container("gateway", *place, *CONFINED) as container:
            container.wait(lambda: _answers(own))
            assert len(over_http(own, "demo")) > 24000
            container.signal("TERM")
            assert container.exit() == 0


def _answers(ports: Ports) -> bool:
    try:
        return bool(ports.fetch("/health"))
    except OSError:
        return False


def test_any_user_of_group_0_runs_it_in_little_memory(engine: Engine) -> None:
    """With volumes of its own: it reads nothing that another user has compiled or packed."""
    options = ("--user=12345:0", *CONFINED, "--memory=2g")
    with serving(engine, engine.volume(), engine.volume(), *options) as (_, ports):
        upload(ports, "rms")
        speaks(ports, "demo", "rms")

"""The command that speaks: to a file, to stdout, to a player, and broken off; against the protocol double."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from voice_clone_client import pcm16
from voice_clone_gateway.audio import Encoder
from voice_clone_program.running import READER_LEFT
from voice_clone_sound.loudness import TEXTS, gain_of, loudness_of
from voice_clone_sound.tempo import Tempo

from tests.support.doubles.command_line import Run, pcm_of, pcm_of_chunks
from tests.support.doubles.triton_double import RATE, STATS, Failure, Server, chunk, endless, samples_of, speech
from tests.support.waiting import WAIT, until

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def command(triton: Server, *arguments: object) -> list[str]:
    """`voice-clone` against the double, for a process of its own."""
    return [sys.executable, "-m", "voice_clone_command.cli", "--url", triton.url, *map(str, arguments)]


def start(triton: Server, output: object) -> subprocess.Popen[bytes]:
    """`voice-clone speak` in a process of its own."""
    speak = command(triton, "speak", "Hi.", "--voice", "Ada", "-o", output)
    return subprocess.Popen(speak, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED)


def size_so_far(out: Path) -> int:
    """Of the file that is written beside `out`."""
    return sum(path.stat().st_size for path in out.parent.glob(f".{out.name}.*.part{out.suffix}"))


def test_speak_to_a_file(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.wav"
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out) == 0
    assert pcm_of(out) == pcm_of_chunks(3)
    assert triton.calls == [STATS, ("qwen3_tts", {"text": b"Hi.", "voice": b"Ada"})]  # absent options are not sent
    assert capsys.readouterr() == (f"{out}\t0.24 s\t3 frames\n", "")  # stderr is no terminal
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("speed", ["0.3", "1.5", "4"])
def test_speak_faster_or_slower(triton: Server, run: Run, tmp_path: Path, speed: str) -> None:
    out = tmp_path / "out.wav"
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out, "--speed", speed) == 0
    sound = np.concatenate([samples_of(index, 1920) for index in range(3)])
    assert pcm_of(out) == pcm16(Tempo(RATE, float(speed)).push(sound, final=True))


def test_a_voice_is_measured_once(triton: Server, run: Run, tmp_path: Path) -> None:
    """The server keeps the figure, and says it with the next speech."""
    kept = list[dict[str, Any]]()

    def answer(inputs: dict[str, Any]) -> dict[str, bytes]:
        if inputs["operation"] == b"keep_loudness":
            kept.append({"name": inputs["name"], "model_type": inputs["model_type"], **json.loads(inputs["options"])})
        return {"result": b"{}"}

    def play(context: Any) -> Any:
        info = {"voice": "Ada", "generation": 3, "mode": "icl"}
        info |= {"loudness": kept[0]["loudness"]} if kept else {}
        return iter([chunk(0, info=info), chunk(1), chunk(2, final=True, info=info)])

    triton.answer, triton.play = answer, play
    for name in ("one.wav", "other.wav"):
        assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / name, "--loudness", -18, "--quiet") == 0
    sound = np.concatenate([samples_of(index, 1920) for index in range(3)])
    figure = loudness_of([sound, sound], RATE)
    assert kept == [
        {"name": b"Ada", "model_type": b"qwen3_tts", "loudness": figure, "generation": 3, "mode": "icl"},
    ]
    assert [inputs["text"].decode() for _, inputs in triton.speeches][-1] == "Hi." and len(triton.speeches) == 4
    assert pcm_of(tmp_path / "one.wav") == pcm_of(tmp_path / "other.wav")


@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_speak_at_a_loudness(
    triton: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    """The samples are those of the gateway."""
    out = tmp_path / "out.wav"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the bytes of a clip")))
    assert run("speak", "Hi.", "--reference", "-", "-o", out, "--loudness", -18, "--speed", speed) == 0
    sound = np.concatenate([samples_of(index, 1920) for index in range(3)])
    encoder = Encoder("pcm", RATE, speed=speed, limited=True)
    data = encoder.encode(sound * gain_of(loudness_of([sound, sound], RATE), -18)) + encoder.finish()
    assert pcm_of(out) == data
    said = [inputs for _, inputs in triton.speeches]
    assert sorted(inputs["text"].decode() for inputs in said) == sorted(["Hi.", *TEXTS])
    assert len({inputs["reference_audio"] for inputs in said}) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *((["--speed", speed], "0.25 to 4") for speed in ("0.2", "4.1", "nan", "fast")),
        *((["--loudness", level], "-40 to -10") for level in ("-9", "-41", "0", "loud")),
    ],
)
def test_a_speed_or_loudness_that_cannot_be_is_refused_before_the_server_is_asked(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.wav", *options)
    assert words in capsys.readouterr().err and triton.calls == []


def test_a_loudness_needs_a_voice(triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("speak", "Hi.", "-o", tmp_path / "out.wav", "--loudness", -18)
    assert "--voice" in capsys.readouterr().err and triton.speeches == []


@pytest.mark.parametrize("reason", ["budget", "runaway", "length"])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_speech_whose_end_was_missed(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str, allowed: bool
) -> None:
    """The file has what was made; the exit code and a line on stderr tell that it is not whole."""
    triton.play = lambda context: iter([chunk(0), chunk(1, final=True, info={"finish_reason": reason})])
    out = tmp_path / "out.wav"
    code = run("speak", "Hi.", "--voice", "Ada", "-o", out, *(["--allow-partial"] if allowed else []))
    assert pcm_of(out) == pcm_of_chunks(2)
    said = capsys.readouterr().err
    if reason == "length":
        assert (code, said) == (0, "")
    else:
        assert code == (0 if allowed else 1)
        assert said.count("\n") == 1 and "the speech is not whole" in said and said.startswith("voice-clone: ")


def test_speak_options(triton: Server, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"clip")
    options = (
        "--reference-text Said. --language German --seed 5 --max-frames 7 --temperature 0.5 --top-k 3 --top-p 0.25 "
        "--repetition-penalty 1.5 --no-do-sample --non-streaming-mode --no-cache --no-x-vector-only --deadline 60 "
        "--option warmth=2 --option layers=[1,2.5] --option loud=true --option style=calm=very --option warmth=3 "
        '--option name="5" --option limit=NaN --option none='
    )
    source = ["--reference", tmp_path / "a.wav"]
    assert run("speak", "Hi.", *source, "-o", tmp_path / "out.wav", *options.split()) == 0
    [(_, inputs)] = triton.speeches
    assert json.loads(inputs.pop("options")) == {
        "warmth": 3,  # the last value of a name
        "layers": [1, 2.5],
        "loud": True,
        "style": "calm=very",
        "name": "5",
        "limit": "NaN",
        "none": "",
    }
    assert {name: value if isinstance(value, bytes) else value.item() for name, value in inputs.items()} == {
        "text": b"Hi.",
        "reference_audio": b"clip",
        "reference_text": b"Said.",
        "language": b"German",
        "seed": 5,
        "max_frames": 7,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "repetition_penalty": 1.5,
        "do_sample": False,
        "non_streaming_mode": True,
        "cache": False,
        "x_vector_only": False,
    }


def test_speak_with_a_ready_prompt(triton: Server, run: Run, tmp_path: Path) -> None:
    (tmp_path / "ada.bundle").write_bytes(b"bundle")
    assert run("speak", "Hi.", "--prompt", tmp_path / "ada.bundle", "-o", tmp_path / "out.wav") == 0
    assert triton.speeches[-1][1] == {"text": b"Hi.", "voice_prompt": b"bundle"}


def speak_stdin_to_stdout(triton: Server) -> None:
    speak = command(triton, "speak", "-", "--voice", "Ada", "-o", "-")
    process = subprocess.run(speak, input=b"From stdin.", capture_output=True, env=BUFFERED, timeout=WAIT)
    assert (process.returncode, process.stderr) == (0, b"")
    assert process.stdout == pcm_of_chunks(3)


def test_speak_from_stdin_to_stdout(triton: Server) -> None:
    speak_stdin_to_stdout(triton)
    [(family, opened)] = [call for call in triton.speeches if "append" not in call[1]]
    appended = [call for call in triton.speeches if "append" in call[1]]  # by another thread: one may come first
    assert (family, opened["voice"], "text" in opened) == ("qwen3_tts", b"Ada", False)
    assert {model for model, _ in appended} <= {"qwen3_tts_talker"}
    assert {piece["append"] for _, piece in appended} <= {opened["text_stream"]}


def test_speak_from_stdin_with_a_model_that_needs_the_whole_text(triton: Server) -> None:
    opened: list[int] = []

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        opened.append(1)
        if len(opened) == 1:
            raise Failure(grpc.StatusCode.UNIMPLEMENTED, "unsupported: this model needs the whole text")
        return iter(speech(3))

    triton.play = play
    speak_stdin_to_stdout(triton)
    assert triton.speeches[-1][1]["text"] == b"From stdin."


SENTENCES = [f"This is the sentence number {index}, and no other." for index in range(100)]


@pytest.mark.parametrize("way", ["argument", "stdin", "a model that needs the whole text"])
def test_speak_a_long_text(triton: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    refused = []

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        if "text_stream" in triton.speeches[0][1] and not refused:
            refused.append(context)
            raise Failure(grpc.StatusCode.UNIMPLEMENTED, "unsupported: this model needs the whole text")
        return iter(speech(3))

    triton.play = play
    monkeypatch.setattr(sys, "stdin", io.StringIO(" ".join(SENTENCES)))
    text = " ".join(SENTENCES) if way == "argument" else "-"
    more = ["--non-streaming-mode"] if way == "stdin" else []
    assert run("speak", text, "--voice", "Ada", "-o", tmp_path / "out.wav", *more) == 0
    assert pcm_of(tmp_path / "out.wav") == 100 * pcm_of_chunks(3)
    said = [inputs["text"].decode() for model, inputs in triton.speeches if model == "qwen3_tts" and "text" in inputs]
    assert said == SENTENCES


@pytest.mark.parametrize(("text", "code"), [("Hi.", 1), (" ".join(SENTENCES), 0)], ids=["short", "long"])
def test_a_sentence_of_a_long_file_is_tried_again(
    triton: Server, run: Run, tmp_path: Path, text: str, code: int
) -> None:
    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        reason = "budget" if len(triton.speeches) == 1 else "stop"
        return iter([chunk(0), chunk(1, final=True, info={"finish_reason": reason})])

    triton.play = play
    assert run("speak", text, "--voice", "Ada", "-o", tmp_path / "out.wav") == code
    assert len(triton.speeches) == (101 if code == 0 else 1)


@pytest.mark.parametrize(("end", "code"), [("interrupted", 130), ("refused", 1), ("spoken", 0)])
def test_a_speech_that_ends_while_its_text_is_still_written(
    triton: Server, tmp_path: Path, end: str, code: int
) -> None:
    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        if end == "refused":
            raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no such voice")
        return endless()(context) if end == "interrupted" else iter(speech(3))

    triton.play = play
    out = tmp_path / "out.wav"
    speak = command(triton, "speak", "-", "--voice", "Ada", "-o", out)
    process = subprocess.Popen(speak, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None and process.stdout is not None
    process.stdin.write(b"The first words, ")
    process.stdin.flush()
    if end == "interrupted":
        until(lambda: size_so_far(out) > 20000)
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=WAIT) == code  # stdin is open
    said = process.stderr.read()
    assert said == (b"voice-clone: speaker_not_found: no such voice\n" if end == "refused" else b"")
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_speak_with_a_chosen_model(triton: Server, run: Run, tmp_path: Path) -> None:
    triton.model_types = ["qwen3_tts", "made_up"]
    triton.play = lambda context: iter(speech(2, rate=44100))
    assert run("--model", "made_up", "speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.wav") == 0
    assert triton.calls == [("made_up", {"text": b"Hi.", "voice": b"Ada"})]  # an explicit model costs no call
    with wave.open(str(tmp_path / "out.wav")) as wav:
        assert wav.getframerate() == 44100


@pytest.mark.parametrize("existing", [False, True])
def test_speak_that_fails_at_once_leaves_the_file_alone(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], existing: bool
) -> None:
    out = tmp_path / "out.wav"
    if existing:
        out.write_bytes(b"before")

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.NOT_FOUND, "speaker_not_found: no voice\nis registered under the name 'Ada'")
        yield

    triton.play = play
    assert run("speak", "Hi.", "--voice", "Ada", "-o", out) == 1
    said = capsys.readouterr().err
    assert said == "voice-clone: speaker_not_found: no voice is registered under the name 'Ada'\n"  # one line
    assert out.read_bytes() == b"before" if existing else not out.exists()


def test_speak_that_breaks_off_leaves_a_valid_file(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    triton.play = lambda context: iter(speech(3)[:2])
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.wav") == 1
    assert pcm_of(tmp_path / "out.wav") == pcm_of_chunks(2)
    assert capsys.readouterr().err.startswith("voice-clone: broken_stream: ")


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


def interrupted(triton: Server, out: Path, number: int) -> None:
    """Speak to a file until a signal comes; nothing is left beside the file."""
    triton.play = endless()
    process = start(triton, out)
    until(lambda: size_so_far(out) > 20000)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=WAIT)
    assert (process.returncode, stdout, stderr) == (128 + number, b"", b"")
    assert list(out.parent.iterdir()) == [out]


@SIGNALS
def test_a_signal_leaves_an_older_file_as_it_was(triton: Server, tmp_path: Path, number: int) -> None:
    (tmp_path / "out.wav").write_bytes(b"before")
    interrupted(triton, tmp_path / "out.wav", number)
    assert (tmp_path / "out.wav").read_bytes() == b"before"


@SIGNALS
def test_a_signal_stops_the_server_and_leaves_a_valid_file(triton: Server, tmp_path: Path, number: int) -> None:
    out = tmp_path / "out.wav"
    interrupted(triton, out, number)
    pcm = pcm_of(out)
    assert len(pcm) >= 3840 and len(pcm) % 3840 == 0
    assert pcm == pcm_of_chunks(len(pcm) // 3840)
    assert triton.left.acquire(timeout=WAIT)


def test_reader_of_stdout_goes_away(triton: Server) -> None:
    received = threading.Event()

    def play(context: grpc.ServicerContext) -> Iterator[Any]:
        yield chunk(0)
        assert received.wait(WAIT)
        yield from (chunk(index) for index in range(1, 10000))

    triton.play = play
    process = start(triton, "-")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(3840) == pcm_of_chunks(1)  # nothing is held back
    process.stdout.close()
    received.set()
    assert process.wait(timeout=WAIT) == READER_LEFT
    assert process.stderr.read() == b""
    process.stderr.close()
    assert triton.left.acquire(timeout=WAIT)


def test_progress_on_a_terminal(triton: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run("speak", "Hi.", "--voice", "Ada", "-o", tmp_path / "out.wav") == 0
    updates = terminal.getvalue().split("\r\x1b[K")
    assert len(updates) == 4 and updates[0] == "" and updates[-1].endswith("\n")
    assert updates[-1].startswith("0.2 s of audio, first after ")
    assert "real-time factor" in updates[-1]


PARTED = {
    ("--ssml",): "<speak>Good morning.<break time='500ms'/><voice name='Bob'>Is it?</voice></speak>",
    (): "<speak>Good morning.<break time='500ms'/><voice name='Bob'>Is it?</voice></speak>",
    ("--script",): "Ada: Good morning.\nBob: Is\nit?",
    ("--inline-pauses", "--normalize", "on", "--language", "en"): "Good morning. [pause:500ms] Is 5 it?",
}


@pytest.mark.parametrize("options", PARTED)
def test_parts_of_a_text(triton: Server, run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    out = tmp_path / "out.wav"
    assert run("speak", PARTED[options], "--voice", "Ada", *options, "-o", out, "--quiet") == 0
    asked = [(inputs["voice"].decode(), inputs["text"].decode().strip()) for _, inputs in triton.speeches]
    second = ("Ada", "Is five it?") if "--normalize" in options else ("Bob", "Is it?")
    assert asked == [("Ada", "Good morning."), second]
    silence = b"" if options == ("--script",) else bytes(RATE)
    assert pcm_of(out) == pcm_of_chunks(3) + silence + pcm_of_chunks(3)


def test_an_unknown_language_of_markup_is_a_warning(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "<speak>One. <lang xml:lang='tlh'>Two.</lang> <lang xml:lang='de-AT'>Three.</lang></speak>"
    assert run("speak", text, "--voice", "Ada", "--language", "English", "-o", tmp_path / "out.wav", "--quiet") == 0
    said = [(inputs["text"].strip(), inputs["language"]) for _, inputs in triton.speeches]
    assert said == [(b"One.", b"English"), (b"Two.", b"English"), (b"Three.", b"de")]
    assert capsys.readouterr().err.count("xml:lang") == 1


def test_subtitles_of_a_dialogue(triton: Server, run: Run, tmp_path: Path) -> None:
    """They show what is said, and no names."""
    options = ("--voice", "Ada", "--quiet", "-o", tmp_path / "out.wav", "--subtitles", tmp_path / "out.json")
    assert run("speak", "--script", PARTED["--script",], *options) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["text"] == "Good morning.\nIs it?"
    words = [(word["text"], found["text"][slice(*word["span"])]) for word in found["words"]]
    assert words == [(each, each) for each in ("Good", "morning.", "Is", "it?")]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("words", "--ssml"), "<speak>"),
        (("<speak>a & b</speak>",), "column 11"),
        (("words", "--script"), "colon"),
        (("<speak>...</speak>",), "letter or digit"),
    ],
)
def test_texts_that_have_no_parts(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], word: str
) -> None:
    assert run("speak", *options, "--voice", "Ada", "-o", tmp_path / "out.wav") == 1
    assert word in capsys.readouterr().err and triton.speeches == []


def test_rates_and_what_has_no_effect(
    triton: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "<speak><prosody rate='2'>A <emphasis>b</emphasis></prosody><break time='1s'/>c</speak>"
    out = tmp_path / "out.wav"
    assert run("speak", text, "--voice", "Ada", "-o", out, "--speed", "2") == 0
    assert "emphasis" in capsys.readouterr().err
    speech_bytes = len(pcm_of_chunks(3))
    assert len(pcm_of(out)) == speech_bytes // 4 + 2 * RATE + speech_bytes // 2

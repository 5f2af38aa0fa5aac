"""The command line as a whole: usage, token, failures, exit codes; against the protocol double."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from voice_clone_client import __version__
from voice_clone_command import cli
from voice_clone_program.running import READER_LEFT

from tests.support.doubles.command_line import VOICE, Run, answer
from tests.support.doubles.triton_double import Server


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["shout"],
        ["upload", "Ada"],
        ["upload", "Ada", "a.wav", "--embedding", "a.npy"],
        ["upload", "Ada", "a.wav", "--text", "a", "--text-file", "b"],
        ["speak", "Hi."],
        ["speak", "Hi.", "--voice", "Ada"],
        ["speak", "Hi.", "--voice", "Ada", "--reference", "a.wav", "-o", "out.wav"],
        ["speak", "Hi.", "--voice", "Ada", "-o", "out.wav", "--top-k", "many"],
        ["speak", "Hi.", "--voice", "Ada", "-o", "out.wma"],
        ["speak", "Hi.", "--voice", "Ada", "--seed", "5"],
        ["speak", "Hi.", "--voice", "Ada", "-o", "out.wav", "--option", "warmth"],
        ["speak", "Hi.", "--voice", "Ada", "-o", "out.wav", "--option", "=2"],
        ["export"],
        ["embedding"],
        ["embedding", "extract", "Ada"],
        ["embedding", "blend", "Ada", "Ben"],
        ["embedding", "blend", "Ada", "Ben", "-o", "a.npy", "--method", "cubic"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: voice-clone" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for name in (
        "upload",
        "list",
        "get",
        "delete",
        "prepare",
        "stats",
        "models",
        "export",
        "import",
        "speak",
        "embedding",
        "doctor",
        "detect",
    ):
        assert f"    {name}" in text


def test_the_token_comes_from_the_option_or_the_environment(
    triton: Server, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("delete", "Ada") == 0
    monkeypatch.setenv("VOICE_CLONE_TOKEN", "from-the-environment")
    assert run("delete", "Ada") == run("--token", "from-the-option", "delete", "Ada") == 0
    sent = [metadata.get("x-voice-token") for metadata in triton.metadata]
    assert sent == [None, "from-the-environment", "from-the-option"]


def test_help_does_not_show_the_token(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VOICE_CLONE_TOKEN", "s3cret")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "s3cret" not in capsys.readouterr().out


def test_an_authority_s_file_that_is_absent(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--ca", "absent.pem", "list") == 1
    assert capsys.readouterr().err == "voice-clone: absent.pem: No such file or directory\n"


def test_doctor(triton: Server, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer(triton, {"speakers": [VOICE], "count": 1})
    monkeypatch.setenv("PATH", "")
    assert run("doctor") == 0
    server, model, voices, formats, player = capsys.readouterr().out.splitlines()
    assert (server, model) == (f"server\tanswers at {triton.url}", "model\tqwen3_tts is ready")
    assert voices == "voices\t1" and formats.startswith("formats\t.wav")
    assert player.startswith("player\tno audio player found")
    triton.model_types = ["made_up", "qwen3_tts"]
    assert run("doctor") == 0
    assert "model\tmade_up and qwen3_tts are ready\n" in capsys.readouterr().out


def test_doctor_goes_on_to_its_end(
    triton: Server, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(triton, {"speakers": [VOICE], "count": 1})
    assert run("--model", "fish", "doctor") == 1
    out, err = capsys.readouterr()
    assert "model\tFAILED: fish is not ready\nvoices\t1\nformats\t" in out and "\nplayer\t" in out and not err
    triton.model_types = []
    assert run("doctor") == 1
    assert "model\tFAILED: the server has no model family\nvoices\t1\n" in capsys.readouterr().out
    assert cli.main(["--url", "127.0.0.1:1", "doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("server\tFAILED: the server cannot be reached")
    assert [line.partition("\t")[0] for line in lines] == ["server", "formats", "player"]


@pytest.mark.parametrize("place", ["before", "behind", "variable"])
def test_the_address_of_the_server(
    triton: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """Anywhere on the line; an option wins over the variable."""
    monkeypatch.setenv("VOICE_CLONE_SERVER", triton.url if place == "variable" else "127.0.0.1:1")
    url = [] if place == "variable" else ["--url", triton.url]
    assert cli.main([*(url if place == "before" else []), "models", *(url if place == "behind" else [])]) == 0
    assert capsys.readouterr().out == "qwen3_tts\n"
    words = ["embedding", "extract", "Ada", "-o", "a.npy"]
    triton.answer = lambda inputs: {"result": b"{}"}
    assert cli.main([*(url if place == "before" else []), *words, *(url if place == "behind" else [])]) == 1
    assert triton.calls[-1][1]["operation"] == b"resolve"
    capsys.readouterr()


def test_models(triton: Server, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    triton.model_types = ["made_up", "qwen3_tts"]
    assert run("models") == 0
    assert capsys.readouterr().out == "made_up\nqwen3_tts\n"
    triton.options = {"made_up": {"warmth": "how warm (a number)"}}
    assert run("models", "--details") == 0
    assert capsys.readouterr().out == "made_up\n  warmth\thow warm (a number)\nqwen3_tts\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["upload", "Ada", "missing.wav"], "missing.wav: No such file or directory"),
        (["import", "missing.bundle"], "missing.bundle: No such file or directory"),
        (["speak", "Hi.", "--voice", "Ada", "-o", "missing/out.wav"], "missing/out.wav: No such file or directory"),
        (["speak", "Hi.", "--voice", "Ada", "-o", "a.wav", "--seed", "-1"], "invalid_argument: --seed cannot be sent"),
        (
            ["speak", "Hi.", "--voice", "Ada", "-o", "a.wav", "--max-frames", "-9999999999"],
            "invalid_argument: --max-frames cannot be sent",
        ),
        (
            ["speak", "Hi.", "--voice", "Ada", "-o", "a.wav", "--option", "warmth=1e999"],
            "invalid_argument: --option warmth cannot be sent",
        ),
    ],
)
def test_failures_are_one_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Any,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"voice-clone: {text}") and error.count("\n") == 1


def test_transcript_that_is_no_text(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xfd")
    assert run("upload", "Ada", "a.wav", "--text-file", tmp_path / "a.txt") == 1
    assert "not UTF-8" in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--url", "127.0.0.1:1", "list"]) == 1
    assert capsys.readouterr().err.startswith("voice-clone: connection_failed: ")


@pytest.fixture(params=["voice-clone", "voice-clone-gateway"])
def script(request: pytest.FixtureRequest) -> Path:
    path = Path(sys.executable).with_name(request.param)
    if not path.exists():
        pytest.skip("the client is not installed here (pip install ./client ./gateway)")
    return path


def test_an_installed_command_has_a_version(script: Path) -> None:
    process = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=30)
    assert process.stdout == f"{script.name} {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_a_reader_that_leaves_ends_it_without_a_word(script: Path, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.run([script, *words], stdout=writer, stderr=subprocess.PIPE, env=environment, timeout=30)
    os.close(writer)
    assert process.returncode in (0, READER_LEFT), "argparse itself overlooks it where its text fills the buffer"
    assert process.stderr == b""


def test_the_gateway_without_its_packages_says_what_to_install() -> None:
    code = """if True:
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("uvicorn", "fastapi", "starlette"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Absent())
        from voice_clone_gateway.__main__ import main
        sys.exit(main())
    """
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert process.returncode == 1 and process.stderr.count("\n") == 1
    assert "pip install ./client ./gateway" in process.stderr and "is missing" in process.stderr

"""Candidates of a designed voice, by the gateway, the clients and the shell, on a double of the speech server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import soundfile
from voice_clone_client import AsyncClient, Candidate, Client, InvalidArgument, Unsupported
from voice_clone_command.cli import main

from tests.support.doubles.gateway_thread import Serve
from tests.support.doubles.triton_double import FAMILY, Failure, Server

DESIGNER = "some_voice_design"
BODY = {"description": "An old captain.", "input": "Good morning."}


@pytest.fixture
def designs(triton: Server) -> Server:
    """A server whose second family was made for it, whose third one can, too."""
    triton.model_types = [FAMILY, "other", DESIGNER]
    triton.voiceless = ["other", DESIGNER]
    triton.instructions = {"other": "style", DESIGNER: "instruct"}
    artifacts = [{"model_type": FAMILY, "mode": "icl", "state": "ready"}]
    voice = {"name": "Captain", "generation": 1, "created_at": 1.0, "artifacts": artifacts}
    triton.answer = lambda inputs: {"result": json.dumps(voice if inputs["operation"] == b"upload" else {}).encode()}
    return triton


def upload(triton: Server) -> dict[str, Any]:
    """The inputs of the latest upload, with its options as JSON values."""
    inputs = [inputs for _, inputs in triton.calls if inputs.get("operation") == b"upload"][-1]
    return {**inputs, **json.loads(inputs["options"])}


def sent(triton: Server) -> list[tuple[str, dict[str, Any]]]:
    """The models of all speeches, and their options and seeds."""
    return [
        (model, {**json.loads(inputs.get("options", b"{}")), "seed": int(inputs["seed"][0])})
        for model, inputs in triton.speeches
    ]


def test_candidates_are_spoken_with_the_description_and_their_seeds(designs: Server, serve: Serve) -> None:
    answer = serve(designs.url).post("/v1/audio/voices/design", json={**BODY, "seeds": [5, 2**64 - 1]})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert {name: found[name] for name in ("model", "description", "input")} == {"model": DESIGNER, **BODY}
    assert [each["seed"] for each in found["candidates"]] == [5, 2**64 - 1]
    for each in found["candidates"]:
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(each["audio_data"])))
        assert rate == 24000 and len(samples)
    assert sorted(sent(designs), key=str) == sorted(
        [(DESIGNER, {"instruct": "An old captain.", "seed": seed}) for seed in (5, 2**64 - 1)], key=str
    )


def test_a_candidate_of_several_sentences_has_one_voice(designs: Server, serve: Serve) -> None:
    """It is one speech with the seed that is answered; the pieces of a text that is cut have seeds of their own."""
    text = "The sea is quiet today, and the wind comes from the west. " * 12
    answer = serve(designs.url).post("/v1/audio/voices/design", json={**BODY, "input": text, "seeds": [5]})
    assert answer.status_code == 200 and len(text) > 600
    [(_, inputs)] = designs.speeches
    assert inputs["text"].decode() == text and sent(designs)[0][1]["seed"] == 5


def test_three_new_seeds_and_another_model(designs: Server, serve: Serve) -> None:
    body = {**BODY, "model": "other", "language": "en", "max_frames": 9, "options": {"x": 1}}
    found = serve(designs.url).post("/v1/audio/voices/design", json=body).json()
    assert len({each["seed"] for each in found["candidates"]}) == 3
    assert {(model, given["style"], given["x"]) for model, given in sent(designs)} == {
        ("other", BODY["description"], 1)
    }
    inputs = designs.speeches[-1][1]
    assert (inputs["language"], int(inputs["max_frames"][0])) == (b"en", 9)


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"description": " "}, 400, "description is blank"),
        ({"description": ""}, 400, "description"),
        ({"input": ""}, 400, "input"),
        ({"input": " "}, 400, "input is blank"),
        ({"seeds": []}, 400, "seeds"),
        ({"seeds": [1, 1]}, 400, "different"),
        ({"seeds": list(range(9))}, 400, "seeds"),
        ({"seeds": [-1]}, 400, "seeds"),
        ({"voice": "ada"}, 400, "voice"),
        ({"model": "nowhere"}, 404, "there is no model 'nowhere'"),
        ({"model": FAMILY}, 501, f"{FAMILY} makes no voices of descriptions; leave model out"),
        ({"options": {"instruct": "x"}}, 400, "only one of instructions and the option instruct"),
    ],
)
def test_what_is_refused(designs: Server, serve: Serve, change: dict[str, Any], status: int, message: str) -> None:
    answer = serve(designs.url).post("/v1/audio/voices/design", json={**BODY, **change})
    assert answer.status_code == status and message in answer.text, answer.text
    assert not designs.speeches


def test_a_server_that_designs_none(triton: Server, serve: Serve) -> None:
    answer = serve(triton.url).post("/v1/audio/voices/design", json=BODY)
    assert answer.status_code == 501 and "no model of this server makes voices of descriptions" in answer.text
    with Client(triton.url) as client, pytest.raises(Unsupported, match="no model of this server makes voices"):
        client.design("An old captain.", "Good morning.")


def test_a_failure_of_the_server_is_that_of_the_request(designs: Server, serve: Serve) -> None:

    def fails(context: Any) -> Iterator[Any]:
        raise Failure(grpc.StatusCode.UNAVAILABLE, "overloaded: too much to do")

    designs.play = fails
    answer = serve(designs.url).post("/v1/audio/voices/design", json=BODY)
    assert answer.status_code == 503 and "too much to do" in answer.text


def test_a_kept_candidate_says_how_it_was_made(designs: Server, serve: Serve) -> None:
    http = serve(designs.url)
    wav = base64.b64decode(
        http.post("/v1/audio/voices/design", json={**BODY, "seeds": [7]}).json()["candidates"][0]["audio_data"]
    )
    form = {"name": "Captain", "consent": "nobody's voice", "reference_text": BODY["input"]}
    form |= {"design": BODY["description"], "design_model": DESIGNER, "design_seed": "7"}
    answer = http.post("/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", wav)})
    assert answer.status_code == 200, answer.text
    options = upload(designs)
    assert options["audio"] == wav
    assert (options["design"], options["design_model"], options["design_seed"]) == (BODY["description"], DESIGNER, 7)


def test_the_clients_design_alike(designs: Server) -> None:
    with Client(designs.url) as client:
        found = client.design("An old captain.", "Good morning.", seeds=[3, 4], max_frames=9)
        client.keep("Captain", found[1], consent="nobody's", replace=True)
    options = upload(designs)
    assert options["replace"] is True
    assert (options["design"], options["design_model"], options["design_seed"]) == ("An old captain.", DESIGNER, 4)

    async def too() -> list[Candidate]:
        async with AsyncClient(designs.url) as client:
            candidates = await client.design("An old captain.", "Good morning.", seeds=[3, 4], max_frames=9)
            await client.keep("Captain", candidates[0])
            with pytest.raises(InvalidArgument, match="description is blank"):
                await client.design(" ", "Good morning.")
            with pytest.raises(InvalidArgument, match="1 to 16 different ones"):
                await client.design("An old captain.", "Good morning.", seeds=[1, 1])
            return candidates

    for ours, theirs in zip(found, asyncio.run(too()), strict=True):
        np.testing.assert_array_equal(ours.samples, theirs.samples)
        assert (ours.seed, ours.model, ours.sample_rate) == (theirs.seed, DESIGNER, theirs.sample_rate)
    assert upload(designs)["design_seed"] == 3


def test_the_shell_writes_files_and_keeps_one(
    designs: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "captains"
    words = ["--url", designs.url, "design", "An old captain.", "--text", "Good morning.", "-o", str(folder)]
    assert main([*words, "--seed", "3", "--seed", "4"]) == 0
    assert sorted(file.name for file in folder.iterdir()) == ["3.json", "3.wav", "4.json", "4.wav"]
    assert capsys.readouterr().out.count(f"by {DESIGNER}") == 2
    assert main(["--url", designs.url, "keep", "Captain", str(folder / "4.wav"), "--consent", "nobody's"]) == 0
    assert "replace" not in upload(designs)
    assert main(["--url", designs.url, "keep", "Captain", str(folder / "4.wav"), "--replace"]) == 0
    sent = upload(designs)
    assert sent["replace"] is True
    assert sent["audio"] == (folder / "4.wav").read_bytes() and sent["reference_text"] == b"Good morning."
    assert sent["design_seed"] == 4
    (folder / "4.json").write_text("{}")
    assert main(["--url", designs.url, "keep", "Captain", str(folder / "4.wav")]) == 1
    assert "does not say how a voice was made" in capsys.readouterr().err
    assert main([*words, "--seed", "3", "--seed", "3"]) == 1
    assert "--seed must be 1 to 16 different ones" in capsys.readouterr().err

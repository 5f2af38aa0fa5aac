"""The input files for perf_analyzer: every model that is served has one, and takes what is in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from perf.bench import stage_inputs
from voice_clone_server.families.recognition import OPTIONAL, models_of
from voice_clone_server.triton_server import MODELS, TritonServer

pytestmark = pytest.mark.share("servers")


def test_every_model_takes_its_file(
    server: TritonServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stage_inputs", str(tmp_path), "-u", server.url, "--streams", "3"])
    stage_inputs.main()
    models = set(models_of(list(server.families), [MODELS, OPTIONAL / "text_front_end"]))
    assert {path.stem for path in tmp_path.iterdir()} == models
    commands = capsys.readouterr().out
    for model, requests in stage_inputs.requests(server.url, 3).items():
        assert f"-m {model} " in commands
        written = json.loads((tmp_path / f"{model}.json").read_text())["data"]
        assert len(written) == len(requests) and set(written[0]) == set(requests[0])
        answers = [stage_inputs.ask(server.url, model, request) for request in requests]
        assert all(answers), model

"""A server that demands consent for each voice: it refuses one before it needs an encoder, so the cache is enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from voice_clone_client import Client, InvalidArgument
from voice_clone_command import cli

from tests.support.families.factories import CheckpointFactory
from voice_clone_server.triton_server import TritonServer

EMBEDDING = np.random.default_rng(0).normal(size=64).astype(np.float32)


def test_no_voice_without_consent(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, reference_clip: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = tmp_path / "clip.wav"
    clip.write_bytes(reference_clip)
    environment = {"VOICE_CLONE_REQUIRE_CONSENT": "true", "VOICE_CLONE_MODEL_TYPES": "qwen3_tts"}
    server = TritonServer(
        checkpoint_folder("tiny", 0),
        tmp_path / "voices",
        log=tmp_path / "log",
        options=["--model-control-mode=explicit", "--load-model=speaker_cache"],
        environment=environment,
    )
    with server, Client(server.url) as client:
        for source in ({"audio": reference_clip}, {"speaker_embedding": EMBEDDING}):
            with pytest.raises(InvalidArgument, match="demands consent"):
                client.upload("Ada", **source)
        assert cli.main(["--url", server.url, "upload", "Ada", str(clip)]) == 1
        assert "--consent" in capsys.readouterr().err
        assert client.list() == []
        assert cli.main(["--url", server.url, "upload", "Ada", str(clip), "--consent", "by mail", "--no-wait"]) == 0
        assert client.get("Ada").consent == "by mail"
        server.kill()

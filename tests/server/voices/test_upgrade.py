"""Another checkpoint on the same voice folder: every voice is there, extracted again from its clip if it has one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from voice_clone_client import Client, Unsupported

from tests.support.families.factories import CheckpointFactory
from tools.families.qwen3_tts.onnx_export import CLIP, Loaded
from tools.triton_server import TritonServer
from voice_clone.audio import decode, resample

EMBEDDING = np.random.default_rng(0).normal(size=64).astype(np.float32)


@pytest.mark.long
def test_another_checkpoint_keeps_the_voices(
    checkpoint_folder: CheckpointFactory, tmp_path: Path, reference_clip: bytes, reference_text: str
) -> None:
    made = []
    for version in (0, 1):
        checkpoint = checkpoint_folder("tiny", version)
        with (
            TritonServer(checkpoint, tmp_path / "voices", log=tmp_path / f"log{version}") as server,
            Client(server.url) as client,
        ):
            if version == 0:
                client.upload("Ada", reference_clip, reference_text=reference_text, wait=True)
                client.upload("Bob", speaker_embedding=EMBEDDING)
            assert {voice.name for voice in client.list()} == {"Ada", "Bob"}
            statuses = []
            for _ in range(2):
                speech = client.speak("Good morning.", voice="Ada", max_frames=2)
                samples, _ = speech.read()
                assert len(samples) == 2 * 1920 and speech.info is not None
                statuses.append(speech.info["cache"])
            assert statuses == (["hit", "hit"] if version == 0 else ["miss", "hit"])
            made.append(client.speaker_embedding("Ada"))
            np.testing.assert_allclose(made[version], embedding(checkpoint), rtol=1e-3, atol=1e-4)
            if version == 0:
                np.testing.assert_array_equal(client.speaker_embedding("Bob"), EMBEDDING)
            else:  # there is no clip to make it of
                with pytest.raises(Unsupported, match=r"registered without audio.*upload a clip of it"):
                    client.speak("Good morning.", voice="Bob").read()
    assert not np.allclose(*made, atol=1e-2)


def embedding(checkpoint: Path) -> np.ndarray:
    """What this checkpoint makes of the clip, without a server."""
    loaded, clip = Loaded.of(checkpoint), decode(CLIP.read_bytes())
    waveform = resample(clip.waveform, clip.sample_rate, loaded.config.speaker_encoder.sample_rate)
    return loaded.speaker_encoder.embed(torch.from_numpy(waveform)).numpy()

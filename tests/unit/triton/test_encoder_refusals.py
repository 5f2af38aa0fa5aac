"""What an encoder's model refuses, whoever calls it, before its network computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.doubles.backend_double import backend_double
from voice_clone.audio import ClipLimits
from voice_clone.errors import InvalidArgument, Unsupported, VoiceCloneError
from voice_clone.families.cosyvoice3.family import LEAST_RATE
from voice_clone.settings import Settings
from voice_clone_server.triton_server import MODELS

CLIP = np.full(2 * LEAST_RATE, 0.1, np.float32)


def answer(waveform: Any, rate: int, mode: str | None, least_rate: int = 0) -> Any:
    with backend_double("stages.encoder") as (module,):

        class Model(module.EncoderModel):  # type: ignore[name-defined, misc]
            @staticmethod
            def load_stage(given: Settings, call: Any, /) -> Any:
                raise NotImplementedError

        model = object.__new__(Model)
        model.least_rate = least_rate
        model._clip, model._dtypes = ClipLimits(), {}
        model._stage = SimpleNamespace(
            sample_rate=LEAST_RATE,
            modes={"icl": ()},
            fingerprints={},
            encode=lambda waveform, mode: {"codes": waveform},
        )
        given = {"waveform": waveform, "sample_rate": rate, "mode": mode}
        return model.handle(SimpleNamespace(array=given.get, number=given.get, text=given.get), None)


@pytest.mark.parametrize("mode", [None, "", "icl"])
def test_known_modes_are_taken(mode: str | None) -> None:
    np.testing.assert_array_equal(answer(CLIP, LEAST_RATE, mode)["codes"], CLIP)


@pytest.mark.parametrize(
    ("waveform", "rate", "mode", "error"),
    [
        (CLIP, LEAST_RATE, "nonsense", InvalidArgument),
        (CLIP[:0], LEAST_RATE, "nonsense", InvalidArgument),
        (CLIP[:100], LEAST_RATE, None, InvalidArgument),
        (np.resize(CLIP, 31 * LEAST_RATE), LEAST_RATE, None, InvalidArgument),
        (np.append(CLIP, np.float32(np.nan)), LEAST_RATE, None, InvalidArgument),
        (CLIP * np.float32(1e6), LEAST_RATE, None, InvalidArgument),
        (CLIP, LEAST_RATE - 1, None, Unsupported),
    ],
)
def test_what_no_clip_may_be_is_refused(
    waveform: Any, rate: int, mode: str | None, error: type[VoiceCloneError]
) -> None:
    with pytest.raises(error):
        answer(waveform, rate, mode, least_rate=LEAST_RATE)


@pytest.mark.parametrize("network", ["mel", "speaker_encoder", "speech_tokenizer"])
def test_the_networks_of_a_family_refuse_the_same_rates(network: str) -> None:
    code = (MODELS / f"cosyvoice3_{network}" / "1" / "model.py").read_text()
    with backend_double("stages.encoder"):
        scope: dict[str, Any] = {"__name__": network}
        exec(code, scope)
        assert scope["TritonPythonModel"].least_rate == LEAST_RATE

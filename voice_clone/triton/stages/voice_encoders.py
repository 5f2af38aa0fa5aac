"""The voice encoders of all families, as models of this server: `<model_type>_voice_encoder`.

in    waveform     FP32 [-1]   mono; empty: the encoder describes itself
      sample_rate  INT32 [1]   Hz
      mode         STRING [1]  optional; absent only with an empty waveform, where the modes alone are asked for
out   <artifact>   any type    an artifact of the voice, cached under its own name
      fingerprint  STRING [1]  of the weights; all outputs whose names end so count together
      limits       STRING [1]  optional: JSON {artifact: {"below", "rows"}}: what it may hold (see `stages.Limit`)
      presets      STRING [1]  optional: JSON [name] of the voices that the checkpoint brings
      modes        STRING [1]  optional: JSON {mode: [what it needs]}, best mode first (see `speakers.modes`)
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_clone.errors import Unsupported
from voice_clone.speakers.encoders import Extraction
from voice_clone.speech import parse_object, synthesizer_digest
from voice_clone.triton.calls import call, is_ready

SUFFIX = "_voice_encoder"
_PARAMETER = re.compile(r'^parameters \{ key: "(\w+)" value \{ string_value: "([^"]*)" \} \}', re.M)
_STAGE = re.compile(r'^ +model_name: "(\w+)"', re.M)
_OPTION = "option_"  # begins the names of parameters that say what an option of a family is
_FINGERPRINT, _MODES, _PRESETS, _LIMITS = "fingerprint", "modes", "presets", "limits"


class TritonVoiceEncoders:
    """The encoders, found by name.

    Args:
        repository: the folder of the models, where families are looked for.
        ready: set when the server has loaded all of its models. To ask Triton 2.51 about a model before that corrupts
            the memory that this process shares with it, and this process dies of the first or second question.
        model_types: the families that count instead; empty for all that are found.
    """

    def __init__(self, repository: Path, ready: threading.Event, model_types: Sequence[str] = ()) -> None:
        self._repository = repository
        self._model_types = tuple(model_types)
        self._ready = ready

    def model_types(self) -> Iterator[str]:
        """The families whose artifacts are made at upload, the default first: those set, else those loaded, by name.

        None before the server is ready.
        """
        if not self._ready.is_set():
            return iter(())
        if self._model_types:
            return iter(self._model_types)
        folders = self._repository.glob(f"*{SUFFIX}")
        names = sorted(folder.name for folder in folders if folder.is_dir())
        return (name.removesuffix(SUFFIX) for name in names if name != SUFFIX and is_ready(name))

    def traits(self, kept: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
        """What the families' public models say of themselves, and what makes their sound: see `speakers.operations`.

        Args:
            kept: what each stage says of itself.
        """
        instructions, voiceless, options, languages, characters, synthesizers = {}, [], {}, {}, {}, {}
        for model_type in self.model_types():
            config = self._repository / model_type / "config.pbtxt"
            text = config.read_text(encoding="utf-8") if config.is_file() else ""
            said = dict(_PARAMETER.findall(text))
            digests = [(kept.get(stage) or {}).get("digest") for stage in _STAGE.findall(text)[1:]]
            if len(digests) == 2 and None not in digests:
                synthesizers[model_type] = synthesizer_digest(*map(str, digests))
            if "instructions_option" in said:
                instructions[model_type] = said["instructions_option"]
            if said.get("voiceless") == "true":
                voiceless.append(model_type)
            if "languages" in said:
                languages[model_type] = said["languages"].split(", ")
            if "max_characters" in said:
                characters[model_type] = int(said["max_characters"])
            options[model_type] = {
                name.removeprefix(_OPTION): meaning for name, meaning in said.items() if name.startswith(_OPTION)
            }
        found = {"instructions": instructions, "voiceless": voiceless, "options": options, "languages": languages}
        return {**found, "max_characters": characters, "synthesizers": synthesizers}

    def encode(self, model_type: str, waveform: NDArray[np.float32], sample_rate: int, mode: str | None) -> Extraction:
        """As `Encoder`; before the server is ready no encoder is loaded."""
        if not self._ready.is_set():
            raise Unsupported("voice encoders answer when the server has loaded all models; ask again then")
        outputs = call(f"{model_type}{SUFFIX}", {"waveform": waveform, "sample_rate": sample_rate, "mode": mode})
        modes, presets, limits = (outputs.pop(name, None) for name in (_MODES, _PRESETS, _LIMITS))
        return Extraction(
            {name: tensor for name, tensor in outputs.items() if not name.endswith(_FINGERPRINT)},
            _fingerprint(outputs),
            None if modes is None else parse_object(_MODES, modes[0].decode()),
            {} if limits is None else parse_object(_LIMITS, limits[0].decode()),
            () if presets is None else tuple(map(str, json.loads(presets[0]))),
        )


def _fingerprint(outputs: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(name for name in outputs if name.endswith(_FINGERPRINT)):
        digest.update(name.encode() + b"=" + outputs[name][0] + b"\n")
    return digest.hexdigest()

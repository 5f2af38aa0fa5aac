"""The official code of CosyVoice3, streaming: a checkout, see `tests.support.oracles.cosyvoice3`."""

from __future__ import annotations

import importlib
import threading
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perf.bench.machine import give_threads
from perf.bench.official.comparison import Asked, Clock, Official, Spoken
from tests.support.oracles.cosyvoice3 import official_package, official_talker
from tests.support.oracles.cosyvoice3_decoder import official_flow, official_vocoder
from tests.support.oracles.packages import quiet
from voice_clone.families.cosyvoice3.config import CODES, FRAME_SAMPLES, MEL, MEL_STEPS, SPEAKER, stream_chunks
from voice_clone.families.cosyvoice3.decoder_checkpoint import DecoderCheckpoint


class Adapter(Official):
    """See `Official`. Several streams are calls in threads of their own; `decode` then waits for the others, too."""

    source = "a checkout of https://github.com/FunAudioLLM/CosyVoice"
    lists = True
    knobs = MappingProxyType({"do_sample": False})
    tolerance = 1e-3  # the vocoder's phase makes that of rounding

    def __init__(self, folder: Path, asked: Asked, dtype: str) -> None:
        checkpoint = DecoderCheckpoint(folder)
        networks = official_talker(folder), official_flow(checkpoint, True), official_vocoder(checkpoint, True)
        with quiet(), official_package():
            self._model = importlib.import_module("cosyvoice.cli.model").CosyVoice3Model(*networks)
        prompt, voice = asked.plan.request.prompt, asked.plan.voice

        def row(ids: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(ids.astype(np.int32))[None]

        speaker = torch.from_numpy(voice[SPEAKER])[None]
        self._given = {
            "text": row(prompt.text_ids),
            "prompt_text": row(prompt.prefix_ids),
            "llm_prompt_speech_token": row(prompt.heard_tokens),
            "flow_prompt_speech_token": row(asked.plan.context[:, 0]),
            "prompt_speech_feat": torch.from_numpy(voice[MEL])[None].float() / MEL_STEPS,
            "flow_embedding": speaker,
            "llm_embedding": speaker,
        }
        step, turn = self._model.llm.llm.forward_one_step, threading.Lock()

        def in_turn(*given: Any, **named: Any) -> Any:  # transformers collects its layers' outputs for one call alone
            with turn:
                return step(*given, **named)

        self._model.llm.llm.forward_one_step = in_turn
        self._model.silent_tokens = []  # all tokens are heard: those of random weights may be silent throughout

    @staticmethod
    def compared(samples: NDArray[np.float32], reference: int) -> NDArray[np.float32]:
        """Of our first chunk, less what flow and vocoder hold back; the official end of a stream is another way."""
        return samples[: FRAME_SAMPLES * (stream_chunks(reference)[0] - 6)]

    def speak(self, frames: int, streams: int) -> Spoken:
        give_threads()
        model, codes = self._model, list[int]()
        model.token_hop_len = 25  # it grows from request to request

        def likeliest(scores: torch.Tensor, before: list[int], *rest: Any) -> int:
            if len(before) == frames:
                codes[:] = before
                return CODES
            return int(scores[:CODES].argmax())

        model.llm.sampling = likeliest
        model.token2wav = decode = Clock(lambda *given, **named: type(model).token2wav(model, *given, **named))
        firsts: list[float] = []
        made: list[NDArray[np.float32]] = []

        def one() -> None:
            pieces: list[NDArray[np.float32]] = []
            for piece in model.tts(**self._given, stream=True):
                if not pieces:
                    firsts.append(time.perf_counter() - began)
                pieces.append(piece["tts_speech"][0].numpy())
            made.append(np.concatenate(pieces))

        threads = [threading.Thread(target=one) for _ in range(streams)]
        began, cpu = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = {
            "first audio": float(np.mean(firsts)),
            "decode": sum(decode.seconds) / frames / streams,
            "total": time.perf_counter() - began,
            "CPU": time.process_time() - cpu,
        }
        return Spoken(np.array(codes)[:, None], made[0], seconds)

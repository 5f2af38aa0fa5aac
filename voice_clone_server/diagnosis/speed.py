"""How long a frame of speech takes on this machine's processor: a short measurement.

Without a checkpoint: some layers of a model's talker and of its code predictor, and its whole decoder, with arbitrary
weights; the time of the whole is that of its parts, by the number of their weights. Talker and decoder share the cores,
so their times add up.

Other programs only ever slow a measurement down, so of all runs the fastest counts. The whole is measured in several
rounds, some seconds apart; how far these differ shows how steady the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from voice_clone.array_kinds import as_tensor
from voice_clone.autoregressive.stack.native_stack import NativeStack, layers_by_name
from voice_clone.autoregressive.stack.protocol import StackConfig
from voice_clone.batching.source import PayloadForm
from voice_clone.codec.decoder import StreamDecoder
from voice_clone.native.arrays import Array, empty
from voice_clone.native.matrix.weights import head_precision
from voice_clone.native.packed_file import Make, made
from voice_clone.settings import Precision
from voice_clone_server.diagnosis.workload import FrameLoad, Workload, stack_weights

POSITIONS = 256  # that a row attends to at most
ROUNDS = 3
SECONDS = 0.25  # for each part of a round
ENOUGH = 400 << 20  # bytes of weights, which fit no processor's cache
PROMPT = 32  # rows that are read at once
CHUNK = 4  # frames that are decoded at once


@dataclass(frozen=True)
class Speed:
    """Seconds: of a frame in talker and code predictor, of a frame in the decoder, of a position of a prompt."""

    frame: float
    decoder: float
    position: float

    def real_time_factor(self, frame_seconds: float) -> float:
        """Of long speech by one caller, its prompt not counted."""
        return (self.frame + self.decoder) / frame_seconds


def fastest(rounds: Sequence[Speed]) -> tuple[Speed, float]:
    """The least time of each part, and how many times as long a frame with its decoding took in the slowest round."""
    best = Speed(*(min(times) for times in zip(*map(astuple, rounds), strict=True)))
    frames = [speed.frame + speed.decoder for speed in rounds]
    return best, max(frames) / min(frames)


class Measurement:
    """A round: times the parts once. These are a layer, whose time stands for that of larger ones by their weights, and
    each decoder.
    """

    def __init__(self, layer: StackConfig) -> None:
        self._config = replace(layer, num_hidden_layers=1)
        self._layers: dict[Precision, tuple[float, float]] = {}
        self._decoders: dict[str, float] = {}

    def speed(self, work: Workload, pace: FrameLoad, precision: Precision) -> Speed:
        """Of a model in a precision."""
        row, prompt_row = self._weight(precision)
        frame = row * (stack_weights(work.talker) + pace.passes * stack_weights(work.predictor))
        frame += self._weight(head_precision(precision))[0] * work.head_weights
        if pace.decoder_name not in self._decoders:
            self._decoders[pace.decoder_name] = decoder_seconds(pace.decoder(), PayloadForm(pace.codebooks))
        return Speed(frame, self._decoders[pace.decoder_name], prompt_row * stack_weights(work.talker))

    def _weight(self, precision: Precision) -> tuple[float, float]:
        """Seconds for each weight: of one row, and of one of many rows."""
        if precision not in self._layers:
            self._layers[precision] = _layer_seconds(self._config, precision)
        single, many = self._layers[precision]
        return single / stack_weights(self._config), many / stack_weights(self._config)


def decoder_seconds(decoder: StreamDecoder[Any], form: PayloadForm) -> float:
    """Of a frame, in chunks of `CHUNK`."""
    zeros = np.zeros((1, form.width, CHUNK), np.float32 if np.issubdtype(form.dtype, np.floating) else np.int64)
    state, frames = decoder.new_state(1), zeros if decoder.device is None else as_tensor(zeros)
    return _least(lambda: decoder.decode_chunk(frames, state)) / CHUNK


def arbitrary(name: str, shape: tuple[int, ...]) -> Array:
    """A tensor of small equal numbers."""
    return np.full(shape, 0.01, np.float32)


def _layer_seconds(config: StackConfig, precision: Precision) -> tuple[float, float]:
    """Seconds of a layer for one row, and for each of many rows."""
    layers = partial(layers_by_name, arbitrary, "", config)
    arrays: list[Array] = []

    def packed(make: Make) -> list[Array]:
        arrays.extend(made(make))
        return arrays

    depth = max(2, ENOUGH // NativeStack(config, precision, layers, packed).nbytes)
    copies = [array if array.ndim == 1 else _copies(array[0], depth) for array in arrays]  # the last norm has one row
    stack = NativeStack(replace(config, num_hidden_layers=depth), precision, layers, lambda make: copies)
    cache = stack.new_cache(1, POSITIONS)
    rows = np.full((PROMPT, config.hidden_size), 0.01, np.float32)
    places = np.arange(POSITIONS - PROMPT, POSITIONS)
    zeros = np.zeros_like(places)
    single = _least(lambda: stack.run(rows[:1], cache, zeros[:1], places[:1]))
    many = _least(lambda: stack.run(rows, cache, zeros, places))
    return single / depth, many / depth / PROMPT


def _copies(array: Array, count: int) -> Array:
    return np.stack([array] * count, out=empty((count, *array.shape), array.dtype))


def _least(run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    run()  # compiles what was never compiled, and touches the memory
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)

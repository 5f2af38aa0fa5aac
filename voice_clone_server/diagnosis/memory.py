"""The memory that a server takes on a CPU, counted from the sizes of its networks."""

from __future__ import annotations

from voice_clone.native.matrix.weights import Packed, head_precision
from voice_clone.settings import PRECISIONS, Precision
from voice_clone_server.diagnosis.workload import Workload, stack_weights

PROCESS = 220_000_000  # bytes of a process with torch and compiled code, of its own
NATIVE_PROCESS = 90_000_000  # of one with compiled code alone
OTHERS = 150_000_000  # tritonserver, and the processes without torch
_SIDE = 1 << 10  # of a matrix that no form pads
WEIGHT_BYTES: dict[Precision, float] = {
    name: Packed.empty(1, (_SIDE, _SIDE), name).nbytes / _SIDE**2 for name in PRECISIONS
}


def server_bytes(work: Workload, precision: Precision) -> int:
    """Of an idle server."""
    layers = stack_weights(work.talker) + stack_weights(work.predictor)
    tables = 4 if precision == "fp32" else 2
    weights = layers * WEIGHT_BYTES[precision]
    weights += work.head_weights * WEIGHT_BYTES[head_precision(precision)]
    weights += work.table_weights * tables + 4 * (work.encoder_weights + work.decoder_weights)
    return round(weights) + work.processes * PROCESS + work.native_processes * NATIVE_PROCESS + OTHERS


def stream_bytes(work: Workload) -> int:
    """Of a stream of a minute: keys and values in fp32, and what else it keeps."""
    talker = work.talker
    position = 4 * 2 * talker.num_hidden_layers * talker.num_key_value_heads * talker.head_dim
    return position * work.positions + work.other_stream_bytes

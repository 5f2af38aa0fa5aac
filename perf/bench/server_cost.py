"""The cost of Triton and the gateway: the same speech from the bare engine in this process and through both, in turns.

    bare     text to ids, engine, code2wav's worker, each with the thread that it has in a server; the voice is in
             memory. Chunks go from thread to thread as Python objects.
    server   the same through tritonserver, gRPC and the client, by the name of a registered voice.
    gateway  the same through the OpenAI speech API in front of it, as a stream of raw PCM over one HTTP connection.

Talker and code2wav compute at the same time, with one thread each. In the bare engine they share Python's GIL, so the
server, whose models are processes, may be faster from chunk to chunk. What the server adds to a chunk shows where
nothing overlaps: in speeches of a single chunk, and in the CPU time of all processes. Chunks keep to the schedule, and
the samples of all three must be equal before anything is timed (the gateway's: rounded to 16 bits).

Times are milliseconds at the listener. `first chunk` is from the request to its samples, `later chunk` the mean time
from one chunk to the next, `CPU` the time that all processes of a side spend on a speech, over its chunks; `only chunk`
is a whole speech of one frame. `Triton's own` is the difference of the medians, `by the least` that of the shortest
times, which other processes disturb least; likewise `the gateway's own` over Triton. The last table shows the lower
bound of Triton: the only chunk of the same ensemble, with the same tensors, where the models do nothing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton
from safetensors.numpy import load
from voice_clone_client import Client, pcm16

from perf.bench import empty_models, report
from perf.bench.bare_engine import GREEDY_OPTIONS, PARTS, Bare, Heard
from perf.bench.gateway_process import Gateway
from perf.bench.reference import TEXT, TRANSCRIPT, fresh_clip
from tools.families.qwen3_tts.checkpoint_maker import make_endless
from voice_clone.compute import prepare
from voice_clone.families.qwen3_tts.prompt import Tokenizer
from voice_clone.settings import PRECISIONS, Settings, TalkerSettings
from voice_clone.speech import ResolvedVoice
from voice_clone_server import guard
from voice_clone_server.triton_server import TritonServer

VOICE = "server cost"
FRAME = 1920  # samples
PAUSE = 0.1  # seconds between two speeches, in which metrics and logs of the first are written
MODELS = ("qwen3_tts", "qwen3_tts_prompt", "speaker_cache", "qwen3_tts_talker", "qwen3_tts_code2wav")
MEASURES = ("first chunk", "later chunk", "only chunk", "CPU")


def through_triton(client: Client, frames: int) -> Heard:
    """The same speech from a server."""
    arrivals, chunks = [], []
    info: dict[str, Any] = {}
    began = time.perf_counter()
    with client.speak(TEXT, voice=VOICE, max_frames=frames, do_sample=False, options=GREEDY_OPTIONS) as speech:
        for chunk in speech:
            arrivals.append(1e3 * (time.perf_counter() - began))
            chunks.append(chunk.samples)
            info = info or dict(chunk.info or {})
    return Heard(arrivals, chunks, info)


class HTTP:
    """A caller of the gateway, with one connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=600.0)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def speak(self, frames: int, sizes: Sequence[int]) -> Heard:
        """The same speech as raw PCM: int16 samples, in chunks of the given sizes."""
        asked = {
            "input": TEXT,
            "voice": VOICE,
            "response_format": "pcm",
            "max_new_tokens": frames,
            "do_sample": False,
            "options": GREEDY_OPTIONS,
        }
        arrivals, chunks = [], []
        began = time.perf_counter()
        self._connection.request(
            "POST", "/v1/audio/speech", json.dumps(asked).encode(), {"content-type": "application/json"}
        )
        answer = self._connection.getresponse()
        info = json.loads(answer.getheader("x-speech-info", "{}"))
        for size in sizes:
            chunks.append(np.frombuffer(answer.read(2 * size), "<i2"))
            arrivals.append(1e3 * (time.perf_counter() - began))
        if answer.read():
            raise SystemExit("the gateway said more than the bare engine; nothing was timed")
        return Heard(arrivals, chunks, info)


def cpu_ms(processes: list[psutil.Process]) -> float:
    """CPU time of processes, so far."""
    return 1e3 * sum(sum(process.cpu_times()[:2]) for process in processes)


def counters(statistics_of: triton.InferenceServerClient) -> dict[str, dict[str, float]]:
    """Triton's statistics by model: the number of requests and their milliseconds."""
    found = {}
    for model in statistics_of.get_inference_statistics().model_stats:
        spent = model.inference_stats
        kinds = ("success", "queue", "compute_input", "compute_infer", "compute_output")
        found[model.name] = {"requests": float(spent.success.count)} | {
            kind: getattr(spent, kind).ns / 1e6 for kind in kinds
        }
    return found


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All sides, in turns."""
    environment = {
        "VOICE_CLONE_CHECKPOINT_DIR": str(folder),
        "VOICE_CLONE_PRECISION": given.precision,
        "VOICE_CLONE_DEVICE": "cpu",
        "VOICE_CLONE_MAX_STREAMS": "1",
        "VOICE_CLONE_MAX_DECODE_BATCH": "1",
        "VOICE_CLONE_THREADS": "1",
        "VOICE_CLONE_DETERMINISTIC": "true",  # chunks keep to the schedule, however fast frames come
    }
    prepare(TalkerSettings.of(Settings({}, environ=environment)))
    with guard.temporary_folder() as scratch:
        log = scratch / "log"
        with (
            TritonServer(folder, scratch / "voices", log=log, environment=environment) as server,
            Client(server.url, model=MODELS[0], timeout=600.0) as client,
            Gateway(server.url, scratch / "gateway.log") as gateway,
        ):
            client.upload(VOICE, fresh_clip(0), reference_text=TRANSCRIPT, wait=True)
            bare = Bare(environment, _voice(server), Tokenizer(folder))
            with closing(bare), closing(HTTP(gateway.url)) as web:
                found = in_turns(bare, server, client, gateway, web, given)
        return {**found, "empty models": report.summary(nothing(scratch, folder, given.runs))}


def nothing(scratch: Path, folder: Path, runs: int) -> Sequence[float]:
    """The only chunk of models that do nothing."""
    models = scratch / "models"
    empty_models.write(models)
    with (
        TritonServer(folder, scratch / "voices", log=scratch / "empty.log", models=models) as server,
        Client(server.url, model=MODELS[0], timeout=600.0) as client,
    ):
        spent = []
        for _ in range(runs + 1):
            time.sleep(PAUSE)
            spent.append(through_triton(client, 1).arrivals[0])
    return spent[1:]


def _voice(server: TritonServer) -> ResolvedVoice:
    """The registered voice as the server has it."""
    with triton.InferenceServerClient(server.url) as client:
        inputs = []
        for name, value in {"operation": "resolve", "model_type": "qwen3_tts", "name": VOICE}.items():
            inputs.append(triton.InferInput(name, [1], "BYTES"))
            inputs[-1].set_data_from_numpy(np.array([value.encode()], np.object_))
        answer = client.infer("speaker_cache", inputs)
    result, artifacts = json.loads(answer.as_numpy("result")[0]), answer.as_numpy("artifacts")[0]
    return ResolvedVoice(load(artifacts), result["reference_text"], result["mode"])


def in_turns(
    bare: Bare, server: TritonServer, client: Client, gateway: Gateway, web: HTTP, given: argparse.Namespace
) -> dict[str, Any]:
    """All sides' times. Each side speaks once before, and the samples must be equal."""
    assert server.process is not None
    tree = psutil.Process(server.process.pid)
    here = [psutil.Process()]
    served = [*here, tree, *tree.children(recursive=True)]
    expected = bare.speak(given.frames)
    sizes = {frames: [len(chunk) for chunk in bare.speak(frames).chunks] for frames in (1, given.frames)}
    sides: dict[str, tuple[Callable[[int], Heard], list[psutil.Process]]] = {
        "bare": (bare.speak, here),
        "server": (lambda frames: through_triton(client, frames), served),
        "gateway": (lambda frames: web.speak(frames, sizes[frames]), [*served, psutil.Process(gateway.process.pid)]),
    }
    for name, (speak, _) in sides.items():
        check(name, speak(given.frames), expected)
        speak(1)
    found: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in (*MEASURES, *PARTS)} for name in sides}
    with triton.InferenceServerClient(server.url) as asked:
        before = counters(asked)
        for _ in range(given.runs):
            for name, (speak, processes) in sides.items():
                began = cpu_ms(processes)
                heard = speak(given.frames)
                time.sleep(PAUSE)
                heard = Heard(heard.arrivals, heard.chunks, heard.info, cpu_ms(processes) - began)
                for kind, value in {**heard.measures, **heard.parts}.items():
                    found[name][kind].append(value)
        after = counters(asked)
    for _ in range(given.runs):
        for name, (speak, _) in sides.items():
            found[name]["only chunk"].append(speak(1).arrivals[-1])
            time.sleep(PAUSE)
    return {
        "chunks": len(expected.chunks),
        **{name: {kind: report.summary(values) for kind, values in kinds.items()} for name, kinds in found.items()},
        "difference": {
            kind: report.summary(np.subtract(found["server"][kind], values).tolist())
            for kind, values in found["bare"].items()
        },
        "gateway's difference": {
            kind: report.summary(np.subtract(found["gateway"][kind], values).tolist())
            for kind, values in found["server"].items()
        },
        "triton": {model: _spent(before[model], after[model], 2 * given.runs) for model in MODELS},
    }


def check(name: str, heard: Heard, expected: Heard) -> None:
    """Exit unless both have the same samples in the same chunks."""
    frames = [len(chunk) // FRAME for chunk in heard.chunks]
    if frames != [len(chunk) // FRAME for chunk in expected.chunks]:
        raise SystemExit(f"{name}: chunks of {frames} frames")
    said, meant = np.concatenate(heard.chunks), np.concatenate(expected.chunks)
    if said.tobytes() != (pcm16(meant) if said.dtype == np.int16 else meant.tobytes()):
        raise SystemExit(f"{name}: other samples than the bare engine's; nothing was timed")


def _spent(before: Mapping[str, float], after: Mapping[str, float], speeches: int) -> dict[str, float]:
    """Requests a speech, and milliseconds of a request."""
    delta = {name: after[name] - before[name] for name in after}
    requests = delta.pop("requests")
    return {"requests": requests / speeches, **{name: spent / max(1.0, requests) for name, spent in delta.items()}}


def show(found: dict[str, Any], given: argparse.Namespace) -> None:
    def middle(summary: dict[str, float]) -> str:
        return f"{summary['p50']:.2f} ({summary['min']:.2f} to {summary['max']:.2f})"

    def lines(kinds: tuple[str, ...], *names: str) -> list[list[Any]]:
        rows = []
        for kind in kinds:
            sides = [found[name][kind] for name in names]
            costs = [sides[1][which] - sides[0][which] for which in ("p50", "min")]
            rows.append([kind, *map(middle, sides), *(f"{cost:.2f}" for cost in costs)])
        return rows

    columns = ("", "bare engine", "through Triton", "Triton's own", "by the least")
    gateway_columns = ("", "through Triton", "through the gateway", "the gateway's own", "by the least")
    print(f"\n{given.precision}, {given.frames} frames in {found['chunks']} chunks, ms, median of {given.runs}:\n")
    print(report.table(columns, lines(MEASURES, "bare", "server")))
    print()
    print(report.table(gateway_columns, lines(MEASURES, "server", "gateway")))
    print(f"\nThe only chunk of models that do nothing, wired alike: {middle(found['empty models'])}")
    print("\nThe first chunk by part:\n")
    print(report.table(columns, lines(PARTS, "bare", "server")))
    print("\nTriton's statistics, ms a request, heartbeats included:\n")
    kinds = ("requests", "success", "queue", "compute_input", "compute_infer", "compute_output")
    rows = [[model, *(spent[kind] for kind in kinds)] for model, spent in found["triton"].items()]
    print(report.table(("model", "requests a speech", "whole", "queue", "inputs", "execute", "outputs"), rows))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/server_cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--frames", type=int, default=63, help="of a speech")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    with guard.temporary_folder() as scratch:
        found = measure(make_endless(given.checkpoint, scratch / "endless"), given)
    show(found, given)
    arguments = {"precision": given.precision, "frames": given.frames, "runs": given.runs}
    report.write(given.output, {**arguments, **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())

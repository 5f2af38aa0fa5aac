"""Compares what this checkout speaks with what another commit speaks, to the last bit.

Both servers get the same checkpoint and the same speeches, greedy and sampled, with every kind of voice: first each
speech alone, then all at once. Samples come from the ensemble. Codes come from the talker, which gets the prompt's
tensors as the ensemble would hand them on. All must be equal, also alone and together (on a CPU, in native code).

    perf/recorded_speech --against COMMIT --shape 0.6b --precision fp32 int4

The comparison is valid on one machine: another processor may sum in another order.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import pickle
import queue
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import triton_to_np_dtype

# This file also runs in the other commit's tree, which may have no other file of perf as it is here: nothing of perf is
# imported above `main`.
ROOT = Path(__file__).resolve().parents[2]
VOICE, FAMILY = "recorded", "qwen3_tts"
Speech = dict[str, Any]

LONG = "The quick brown fox jumps over the lazy dog, and no one who saw it will forget the morning on which it did."


@dataclass(frozen=True)
class Asked:
    """What both servers are asked for.

    Attributes:
        clip, transcript: of the voice that is registered.
        speeches: inputs by the speech's name.
    """

    clip: bytes
    transcript: str
    speeches: Mapping[str, Speech]


def speeches(size: int, frames: int, clip: bytes, transcript: str) -> dict[str, Speech]:
    """The speeches by name; `size` is that of a speaker embedding, `clip` is sent along with a speech."""
    greedy: Speech = {"do_sample": False, "subtalker_do_sample": False, "max_frames": frames}
    embedding = np.random.default_rng(7).standard_normal(size).astype(np.float32)
    return {
        "voice": {"text": "Good morning.", "voice": VOICE, **greedy},
        "voice, language": {"text": LONG, "voice": VOICE, "language": "English", **greedy},
        "voice, x-vector": {"text": LONG, "voice": VOICE, "x_vector_only": True, **greedy},
        "voice, whole text": {"text": LONG, "voice": VOICE, "non_streaming_mode": True, **greedy},
        "clip": {"text": "Über den Wolken.", "reference_audio": clip, "reference_text": transcript, **greedy},
        "clip, x-vector": {"text": "你好。", "reference_audio": clip, **greedy},
        "embedding": {"text": "One, two.", "speaker_embedding": embedding, **greedy},
        "sampled": {"text": LONG, "voice": VOICE, "seed": 5, "max_frames": frames},
        "sampled, top-p": {
            "text": "Top.",
            "voice": VOICE,
            "seed": 6,
            "top_p": 0.8,
            "top_k": 0,
            "temperature": 1.3,
            "repetition_penalty": 1.2,
            "subtalker_top_p": 0.7,
            "subtalker_top_k": 9,
            "max_frames": frames,
        },
    }


class Server:
    """Calls of a server, by tritonclient alone."""

    def __init__(self, url: str) -> None:
        self._url = url
        with triton.InferenceServerClient(url) as client:
            self._ensemble = client.get_model_config(FAMILY, as_json=True)["config"]
            steps = self._ensemble["ensemble_scheduling"]["step"]
            self._steps = {step["model_name"]: step for step in steps}
            self._configs = {
                name: client.get_model_config(name, as_json=True)["config"] for name in (FAMILY, *self._steps)
            }

    def upload(self, clip: bytes, transcript: str) -> None:
        asked = {
            "operation": b"upload",
            "name": VOICE.encode(),
            "audio": clip,
            "reference_text": transcript.encode(),
            "options": b'{"wait": true}',
            "model_type": FAMILY.encode(),
        }
        with triton.InferenceServerClient(self._url) as client:
            client.infer("speaker_cache", [_tensor(name, "BYTES", value) for name, value in asked.items()])

    def samples(self, speech: Speech) -> np.ndarray[Any, Any]:
        """The samples of a speech from the ensemble, joined."""
        return np.concatenate([each["audio"] for each in self._stream(FAMILY, self._inputs(speech)) if "audio" in each])

    def codes(self, speech: Speech) -> np.ndarray[Any, Any]:
        """The codes of a speech from the talker, given the prompt stage's outputs and the request's own tensors."""
        prompt, talker = (self._steps[f"{FAMILY}_{stage}"] for stage in ("prompt", "talker"))
        given = self._inputs(speech)
        made = self._first(
            prompt["model_name"], {name: given[of] for name, of in prompt["input_map"].items() if of in given}
        )
        made = {of: made[name] for name, of in prompt["output_map"].items()}
        known = {**given, **made}
        asked = {name: known[of] for name, of in talker["input_map"].items() if of in known}
        frames = [each["codes"] for each in self._stream(talker["model_name"], asked) if "codes" in each]
        return np.concatenate([each for each in frames if len(each)])

    def _inputs(self, speech: Speech) -> Speech:
        """The family's own options as JSON, if the server has one tensor for them."""
        declared = {entry["name"] for entry in self._configs[FAMILY]["input"]}
        own = {name: value for name, value in speech.items() if name not in declared}
        rest = {name: value for name, value in speech.items() if name in declared}
        return {**rest, "options": json.dumps(own)} if own else rest

    def _first(self, model: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        with triton.InferenceServerClient(self._url) as client:
            answer = client.infer(model, self._tensors(model, inputs))
        return {each.name: answer.as_numpy(each.name) for each in answer.get_response().outputs}

    def _stream(self, model: str, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        answers: queue.Queue[Any] = queue.Queue()
        client = triton.InferenceServerClient(self._url)
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer(model, self._tensors(model, inputs), enable_empty_final_response=True)
        found = []
        while True:
            answer = answers.get(timeout=600)
            if isinstance(answer, Exception):
                raise answer
            message = answer.get_response()
            if message.outputs:
                found.append({each.name: answer.as_numpy(each.name) for each in message.outputs})
            if message.parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
        client.close()
        return found

    def _tensors(self, model: str, inputs: Mapping[str, Any]) -> list[Any]:
        kinds = {entry["name"]: entry["data_type"].removeprefix("TYPE_") for entry in self._configs[model]["input"]}
        return [_tensor(name, kinds[name].replace("STRING", "BYTES"), value) for name, value in inputs.items()]


def _tensor(name: str, kind: str, value: Any) -> Any:
    if kind == "BYTES":
        value = value.encode() if isinstance(value, str) else value
        array = value if isinstance(value, np.ndarray) else np.array([value], np.object_)
    else:
        array = np.atleast_1d(np.asarray(value, triton_to_np_dtype(kind)))
    return triton.InferInput(name, list(array.shape), kind).set_data_from_numpy(array)


def record(checkpoint: Path, precision: str, asked: Asked) -> dict[str, str]:
    """Digests of all codes and samples from a server of the checkout that is first on the path."""
    package = "voice_clone_server" if Path("voice_clone_server").is_dir() else "tools"  # of older trees
    TritonServer = importlib.import_module(f"{package}.triton_server").TritonServer

    environment = {"VOICE_CLONE_PRECISION": precision, "VOICE_CLONE_CHUNK_FRAMES": "1,2,4"}
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with TritonServer(checkpoint, folder / "voices", log=folder / "log", environment=environment) as running:
            server = Server(running.url)
            server.upload(asked.clip, asked.transcript)
            ways = {"samples": server.samples, "codes": server.codes}
            with ThreadPoolExecutor(len(asked.speeches)) as pool:
                for what, ask in ways.items():
                    alone = {name: _digest(ask(speech)) for name, speech in asked.speeches.items()}
                    made = pool.map(ask, asked.speeches.values())
                    together = dict(zip(asked.speeches, map(_digest, made), strict=True))
                    for name in asked.speeches:
                        found[f"{what}: {name}"] = alone[name]
                        found[f"{what} in company: {name}"] = together[name]
    return found


def _digest(array: np.ndarray[Any, Any]) -> str:
    kind = np.int64 if array.dtype.kind in "iu" else array.dtype
    return f"{array.shape[0]} {hashlib.sha256(np.ascontiguousarray(array, kind).tobytes()).hexdigest()[:16]}"


def _record_of(tree: Path, checkpoint: Path, precision: str, asked: Asked) -> dict[str, str]:
    """`record` in a process of its own, with the modules and the server of `tree`."""
    path = os.pathsep.join([str(tree), str(tree / "client")])
    command = [sys.executable, str(Path(__file__).resolve()), "--record", str(checkpoint), precision]
    from voice_clone_server import guard  # older trees have none

    environment = guard.marked({**os.environ, "PYTHONPATH": path})
    given = pickle.dumps(vars(asked))  # plain values: the other tree may have no module with this class
    output = subprocess.run(command, input=given, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, str] = json.loads(output.splitlines()[-1])
    return found


def main() -> int:
    """The command line."""
    if sys.argv[1:2] == ["--record"]:
        print(json.dumps(record(Path(sys.argv[2]), sys.argv[3], Asked(**pickle.load(sys.stdin.buffer)))))
        return 0
    from perf.bench.reference import TRANSCRIPT, fresh_clip
    from tools.families.qwen3_tts.checkpoint_maker import make_checkpoint
    from voice_clone_server import guard

    parser = argparse.ArgumentParser(
        prog="perf/recorded_speech", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", required=True, help="a commit")
    parser.add_argument("--shape", choices=("tiny", "0.6b", "1.7b"), default="tiny", help="of a random checkpoint")
    parser.add_argument("--precision", nargs="+", default=["fp32", "int4"])
    parser.add_argument("--frames", type=int, default=24)
    given = parser.parse_args()
    with guard.temporary_folder() as scratch:
        other, checkpoint = scratch / "other", scratch / "checkpoint"
        git = ["git", "-C", str(ROOT)]
        subprocess.run([*git, "worktree", "add", "--detach", "--quiet", str(other), given.against], check=True)
        try:
            make_checkpoint(given.shape, 0, checkpoint)
            config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
            size = config["talker_config"]["hidden_size"]
            asked = Asked(fresh_clip(0), TRANSCRIPT, speeches(size, given.frames, fresh_clip(1), TRANSCRIPT))
            differing = 0
            for precision in given.precision:
                theirs = _record_of(other, checkpoint, precision, asked)
                ours = _record_of(ROOT, checkpoint, precision, asked)
                for name in theirs:
                    alone = ours[name.replace(" in company", "")]
                    equal = ours[name] == theirs[name] == alone
                    differing += not equal
                    if not equal:
                        print(f"{precision} {name}: {theirs[name]} there, {ours[name]} here, {alone} here alone")
                print(f"{given.shape} {precision}: {len(theirs)} recordings compared", flush=True)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)
    print("all equal" if not differing else f"{differing} differ")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())

"""Measures the memory of each process of a Qwen3-TTS server: after loading, and after speeches in all slots at once.

It counts each process's own memory, and each resident page of a mapped file once, however many processes map it. The
sum equals that of the proportional set sizes (PSS) where no other process of the machine maps the same files. It is
compared with the sum of

    1.3 x weights   as stored: talker and code predictor at the precision, all other networks in fp32, embeddings
                    as in the checkpoint. The text embedding stays in the file, so it is not counted
    KV              the key-value memory that the speeches have filled; the rest of it is reserved address space
    1 GB            the server, six interpreters and compiled code
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open
from voice_clone_client import Client

from perf.bench import report
from perf.bench.reference import TEXT, TRANSCRIPT, fresh_clip
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig, load_config
from voice_clone.settings import Precision
from voice_clone_server import guard
from voice_clone_server.diagnosis.memory import WEIGHT_BYTES
from voice_clone_server.triton_server import TritonServer

FACTOR, FREE = 1.3, 1e9
VOICE = "memory"
SERVER = "tritonserver"


@dataclass(frozen=True)
class Usage:
    """Bytes of a process: its own, those of each file that it maps, and the peak of both."""

    own: float
    files: Mapping[str, float]
    peak: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        own, files = 0.0, defaultdict[str, float](float)
        for area in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text())[1:]:
            sizes = _fields(area)
            own += sizes["Anonymous"]
            _, _, file = area.partition("\n")[0].partition("/")
            files[file] += sizes["Rss"] - sizes["Anonymous"]
        return cls(own, files, _fields(Path(f"/proc/{pid}/status").read_text())["VmHWM"])


def _fields(text: str) -> dict[str, float]:
    return {name: 1024.0 * int(size) for name, size in re.findall(r"(?m)^(\w+):\s+(\d+) kB$", text)}


def usage(server: TritonServer) -> dict[str, Usage]:
    """The usage of each process of a server, by the name of its model."""
    assert server.process is not None
    root = psutil.Process(server.process.pid)
    found = {}
    for process in [root, *root.children(recursive=True)]:
        model = re.search(r"(\w+)/\d+/model\.py", " ".join(process.cmdline()))
        found[model[1] if model else SERVER] = Usage.of(process.pid)
    return found


def shares(found: Mapping[str, Usage]) -> dict[str, float]:
    """Bytes of each process: its own memory and its share of each file, of which the largest mapping counts once."""
    mapped: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for each in found.values():
        mapped.update(each.files)
        most |= Counter(each.files)
    return {
        name: each.own + sum(size * most[file] / mapped[file] for file, size in each.files.items() if size)
        for name, each in found.items()
    }


def weights(folder: Path, precision: Precision) -> dict[str, float]:
    """Bytes of the weights by part, as a server at `precision` keeps them; `text embedding` is that of the file."""
    parts = {"talker and code predictor": 0.0, "embeddings": 0.0, "text embedding": 0.0, "other networks": 0.0}
    for file in [*folder.glob("model*.safetensors"), *(folder / "speech_tokenizer").glob("model*.safetensors")]:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                part = tensors.get_slice(name)
                count = float(torch.Size(part.get_shape()).numel())
                if "text_embedding" in name:
                    parts["text embedding"] += count * _width(part.get_dtype())
                elif name.startswith("talker.") and "embedding" in name:
                    parts["embeddings"] += count * _width(part.get_dtype())
                elif re.match(r"talker\..*(_proj|head.*|projection)\.weight$", name):
                    parts["talker and code predictor"] += count * WEIGHT_BYTES[precision]
                else:
                    parts["other networks"] += count * WEIGHT_BYTES["fp32"]
    return parts


def _width(dtype: str) -> int:
    return {"F32": 4, "F16": 2, "BF16": 2}[dtype]


def kv_bytes(config: Qwen3TTSConfig, positions: int) -> int:
    """Bytes of the talker's keys and values of a number of positions, in fp32."""
    talker = config.talker
    return 2 * 4 * talker.num_hidden_layers * talker.num_key_value_heads * talker.head_dim * positions


def measure(folder: Path, precision: Precision, streams: int, frames: int) -> dict[str, Any]:
    """Return the figures of a server at one precision."""
    with guard.temporary_folder() as scratch:
        environment = {"VOICE_CLONE_PRECISION": precision, "VOICE_CLONE_MAX_STREAMS": str(streams)}
        log = scratch / "log"
        server = TritonServer(folder, scratch / "voices", log=log, environment=environment)
        with server, Client(server.url, timeout=600.0) as client, ThreadPoolExecutor(streams) as pool:
            time.sleep(2.0)
            loaded = usage(server)
            client.upload(VOICE, fresh_clip(0), reference_text=TRANSCRIPT, wait=True)
            infos = list(pool.map(lambda seed: _speak(client, seed, frames), range(streams)))
            time.sleep(2.0)
            spoken = usage(server)
    kept = weights(folder, precision)
    positions = [info["reference_frames"] + info["frames"] for info in infos]
    kv = kv_bytes(load_config(folder), sum(positions))
    counted = sum(size for part, size in kept.items() if part != "text embedding")
    return {
        "processes": {
            name: {
                "loaded": shares(loaded)[name],
                "spoken": shares(spoken)[name],
                "own": each.own,
                "files": sum(each.files.values()),
                "peak": each.peak,
            }
            for name, each in spoken.items()
        },
        "weights": kept,
        "kv": kv,
        "goal": FACTOR * counted + kv + FREE,
        "sum": sum(shares(spoken).values()),
    }


def _speak(client: Client, seed: int, frames: int) -> dict[str, Any]:
    with client.speak(TEXT, voice=VOICE, seed=seed, max_frames=frames) as speech:
        speech.read()
        return dict(speech.info or {})


def show(found: dict[str, Any], precision: Precision) -> None:
    rows: list[list[Any]] = [
        [name, *(size / 1e6 for size in each.values())] for name, each in found["processes"].items()
    ]
    rows.append(["all", sum(row[1] for row in rows), sum(row[2] for row in rows), None, None, None])
    print(f"\n{precision}, MB:\n")
    print(report.table(("process", "loaded", "after speeches", "its own", "files it maps", "peak while loading"), rows))
    parts = ", ".join(f"{part} {size / 1e6:.0f}" for part, size in found["weights"].items())
    print(f"\nweights, MB: {parts}; KV {found['kv'] / 1e6:.0f}")
    print(f"sum {found['sum'] / 1e6:.0f} MB, {found['sum'] / found['goal']:.2f} of {found['goal'] / 1e6:.0f} MB")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="perf/memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--precision", nargs="+", choices=tuple(WEIGHT_BYTES), default=["fp32", "int8"])
    parser.add_argument("--streams", type=int, default=8, help="speeches at once")
    parser.add_argument("--frames", type=int, default=12, help="of each, at most")
    parser.add_argument("-o", "--output", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    found = {}
    for precision in given.precision:
        found[precision] = measure(given.checkpoint, precision, given.streams, given.frames)
        show(found[precision], precision)
    report.write(given.output, {"streams": given.streams, "frames": given.frames, "precisions": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())

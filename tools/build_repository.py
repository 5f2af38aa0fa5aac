"""Writes a model repository ready to deploy for one checkpoint: settings filled in, graphs exported and in place.

With --native-encoders the networks of both encoders run on Triton's own ONNX Runtime or TensorRT backend, as models
behind the encoders, which keep their names, tensors and errors: a native backend can neither resample nor refuse a
clip, and takes no optional input where it batches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.families.qwen3_tts.onnx_comparison import Loaded, compare
from tools.families.qwen3_tts.onnx_export import graphs
from tools.new_folder import new_folder, refusal
from tools.repository_config import (
    PLATFORMS,
    BuildError,
    Network,
    check_repository,
    encoder_warm_up,
    fill,
    write_warm_up_data,
)
from tools.stopping import Stopped, stoppable
from tools.triton_server import MODELS
from voice_clone.checkpoint import Checkpoint
from voice_clone.errors import VoiceCloneError
from voice_clone.families.qwen3_tts.config import Qwen3TTSConfig
from voice_clone.families.qwen3_tts.engines.onnx_graphs import CODE2WAV_STEP, CODEC_ENCODER, SPEAKER_ENCODER
from voice_clone.onnx.export import export
from voice_clone.onnx.session import PROVIDERS, Runtime

ENCODERS = {"speaker_encoder": SPEAKER_ENCODER, "codec_encoder": CODEC_ENCODER}  # stage: its graph
GRAPHS = {**ENCODERS, "code2wav": CODE2WAV_STEP}
ENGINES = dict.fromkeys(GRAPHS, ("torch", "onnx"))
PRECISIONS = {**dict.fromkeys(GRAPHS, ("auto", "fp32", "bf16")), "talker": ("auto", "fp32", "bf16", "int8", "int4")}
PREFIX = "qwen3_tts_"


@dataclass(frozen=True)
class Plan:
    """What to build.

    Attributes:
        checkpoint: the checkpoint's folder here.
        served_checkpoint, served_at: where the server will find the checkpoint and the repository.
        engines, precisions: by stage; the repository's own where there is none.
        native: a kind of `PLATFORMS` for the encoders' networks; None: in Python.
        provider: that graphs run on, as the setting `onnx_provider`.
        instances: of each encoder, or of its network.
    """

    checkpoint: Path
    served_checkpoint: str
    served_at: str
    engines: Mapping[str, str]
    precisions: Mapping[str, str]
    native: str | None
    provider: str
    instances: int

    def networks(self, config: Qwen3TTSConfig) -> dict[str, Network]:
        """The encoders' networks that become models, by stage."""
        if self.native is None:
            return {}
        speaker, codec = config.speaker_encoder, config.codec
        embedding = ("speaker_embedding", "TYPE_FP32", (speaker.enc_dim,))
        codes = ("codec_codes", "TYPE_INT32", (-1, codec.encoder_valid_num_quantizers))
        return {
            "speaker_encoder": Network(f"{PREFIX}speaker_encoder", SPEAKER_ENCODER, speaker.sample_rate, embedding),
            "codec_encoder": Network(f"{PREFIX}codec_encoder", CODEC_ENCODER, codec.input_sample_rate, codes),
        }


def build(plan: Plan, folder: Path) -> None:
    """Fill an empty folder.

    Raises:
        CheckpointError: the checkpoint cannot be served.
        BuildError: a graph does not compute what torch does, or a configuration does not fit.
    """
    config = Checkpoint(plan.checkpoint).config
    networks = plan.networks(config)
    shutil.copytree(MODELS, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    exported = [stage for stage in GRAPHS if plan.engines.get(stage) == "onnx" or stage in networks]
    loaded = Loaded.of(plan.checkpoint) if exported else None
    fingerprints = {}
    for stage in exported:
        assert loaded is not None
        model = networks[stage].model if stage in networks else PREFIX + stage
        (folder / model / "1").mkdir(parents=True, exist_ok=True)
        fingerprints[stage] = _export(loaded, GRAPHS[stage], folder / model / "1")
    for network in networks.values():
        assert plan.native is not None
        text = network.config(plan.native, plan.provider, plan.instances)
        (folder / network.model / "config.pbtxt").write_text(text, encoding="utf-8")
    for file in sorted(folder.glob(f"{PREFIX}*/config.pbtxt")):
        stage = file.parent.name.removeprefix(PREFIX)
        text = file.read_text(encoding="utf-8")
        values = {"checkpoint_dir": plan.served_checkpoint} if '"checkpoint_dir"' in text else {}
        if stage in plan.precisions:
            values["precision"] = plan.precisions[stage]
        if stage in networks:
            values |= {"engine": "triton", "network_fingerprint": fingerprints[stage]}
        elif stage in plan.engines:
            values["engine"] = plan.engines[stage]
        if stage in exported and stage not in networks:
            values |= {"onnx_dir": f"{plan.served_at}/{file.parent.name}/1", "onnx_provider": plan.provider}
        own = stage in ENCODERS and stage not in networks
        text = fill(text, values, plan.instances if own else None)
        if own:
            rate = config.speaker_encoder.sample_rate if stage == "speaker_encoder" else config.codec.input_sample_rate
            text += encoder_warm_up(rate)
            write_warm_up_data(file.parent, rate)
        file.write_text(text, encoding="utf-8")
    check_repository(folder)


def _export(loaded: Loaded, name: str, folder: Path) -> str:
    """Write a graph and compare it with torch; its fingerprint."""
    graph, fingerprint = graphs(loaded)[name]
    export(graph, folder, fingerprint)
    for row in compare(loaded, Runtime(folder, "cpu", threads=os.cpu_count() or 1), name):
        print(f"  {row}", flush=True)
        if not row.right:
            raise BuildError(f"the graph {name} does not compute what torch does")
    return fingerprint


def by_stage(option: str, given: Sequence[str], allowed: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """`VALUE` for every stage that knows it, and `STAGE=VALUE` for one; the later counts.

    Raises:
        BuildError: an item is neither.
    """
    chosen: dict[str, str] = {}
    for item in given:
        stage, _, value = item.rpartition("=")
        stages = [name for name, values in allowed.items() if value in values and stage in ("", name)]
        if not stages:
            known = "; ".join(f"{name}={'|'.join(values)}" for name, values in allowed.items())
            raise BuildError(f"{option} {item}: it must be one of {known}, or a value alone for all")
        chosen |= dict.fromkeys(stages, value)
    return chosen


def parse(arguments: Sequence[str] | None) -> tuple[Plan, Path]:
    """What to build, and where.

    Raises:
        BuildError: the options contradict each other, or something is in the way.
    """
    parser = argparse.ArgumentParser(prog="tools/build_repository", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the official checkpoint")
    parser.add_argument("--output", type=Path, required=True, help="folder of the repository; must not be there yet")
    parser.add_argument("--force", action="store_true", help="replace the repository that is there")
    parser.add_argument(
        "--served-checkpoint", metavar="DIR", help="where the server will find the checkpoint (default: --checkpoint)"
    )
    parser.add_argument(
        "--served-at", metavar="DIR", help="where the server will find the repository (default: --output)"
    )
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="[STAGE=]ENGINE",
        help="torch or onnx (default: torch, and onnx for the encoders with --provider cpu)",
    )
    parser.add_argument(
        "--native-encoders", choices=tuple(PLATFORMS), help="the encoders' networks as models of this kind"
    )
    parser.add_argument(
        "--precision", action="append", default=[], metavar="[STAGE=]PRECISION", help="fp32, bf16; talker: int8, int4"
    )
    parser.add_argument("--provider", choices=("auto", *PROVIDERS), default="auto", help="that graphs run on")
    parser.add_argument("--instances", type=int, default=1, help="of each encoder (default: %(default)s)")
    given = parser.parse_args(arguments)
    output: Path = given.output.resolve()
    engines = by_stage("--engine", given.engine, ENGINES)
    precisions = by_stage("--precision", given.precision, PRECISIONS)
    if given.provider == "cpu" and given.native_encoders is None:
        engines = dict.fromkeys(ENCODERS, "onnx") | engines  # a fifth faster than torch there
    if given.instances < 1:
        raise BuildError(f"--instances is {given.instances}; it must be at least 1")
    if given.native_encoders and any(item.partition("=")[0] in ENCODERS for item in given.engine):
        raise BuildError("--native-encoders says how both encoders run; give --engine for code2wav alone")
    if given.native_encoders == "tensorrt" and given.provider == "cpu":
        raise BuildError("--native-encoders tensorrt needs a GPU; leave --provider cpu out")
    if not given.checkpoint.is_dir():
        raise BuildError(f"there is no folder {given.checkpoint}; give that of an official checkpoint")
    if reason := refusal(output, given.force, _is_repository):
        raise BuildError(reason)
    plan = Plan(
        checkpoint=given.checkpoint,
        served_checkpoint=given.served_checkpoint or str(given.checkpoint.resolve()),
        served_at=(given.served_at or str(output)).rstrip("/"),
        engines=engines,
        precisions=precisions,
        native=given.native_encoders,
        provider=given.provider,
        instances=given.instances,
    )
    return plan, output


def _is_repository(folder: Path) -> bool:
    """Whether there are models in it and nothing else, and it is not the one that all are copied from."""
    return folder != MODELS and all((entry / "config.pbtxt").is_file() for entry in folder.iterdir())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    try:
        with stoppable() as check:
            plan, output = parse(arguments)
            with new_folder(output) as folder:
                build(plan, folder)
                check()
    except (VoiceCloneError, BuildError) as error:
        print(f"tools/build_repository: {error}", file=sys.stderr)
        return 1
    except Stopped:
        print("tools/build_repository: stopped; nothing was written", file=sys.stderr)
        return 130
    print(f"{output} is ready for\n  tritonserver --disable-auto-complete-config --model-repository={plan.served_at}")
    if plan.native == "tensorrt":
        print("as soon as the plans are there; on the GPU that will serve them:")
        for network in plan.networks(Checkpoint(plan.checkpoint).config).values():
            print(f"  {network.plan_command(f'{plan.served_at}/{network.model}')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

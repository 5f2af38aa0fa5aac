"""Writes a model repository ready to deploy for one checkpoint: settings filled in, graphs exported and in place.

It holds the models of the checkpoint's family and those that serve every family.

With --native-encoders the networks of the encoders run on Triton's own ONNX Runtime or TensorRT backend, as models
behind the encoders, which keep their names, tensors and errors: a native backend can neither resample nor refuse a
clip, and takes no optional input where it batches.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voice_clone_program.arguments import Parser

from voice_clone.audio import ClipLimits
from voice_clone.errors import VoiceCloneError
from voice_clone.onnx.session import PROVIDERS
from voice_clone.settings import EncoderSettings, Settings
from voice_clone_server.config_file import ConfigError, ConfigFile
from voice_clone_server.families.names import owner
from voice_clone_server.families.operating import EncoderGraph, RepositoryOptions, repository_options
from voice_clone_server.families.recognition import (
    FamilyError,
    add_repository_option,
    add_with_option,
    families,
    family_of,
    models_of,
)
from voice_clone_server.new_folder import new_folder, refusal
from voice_clone_server.preflight import check_checkpoints
from voice_clone_server.program import program
from voice_clone_server.repository_config import PLATFORMS, BuildError, Network, check_repository, prepare_encoder
from voice_clone_server.stopping import Stopped, stoppable
from voice_clone_server.triton_server import MODELS, plain_command


@dataclass(frozen=True)
class Plan:
    """What to build.

    Attributes:
        family: of the checkpoint.
        models: the folders of its models and of those lent to it, by name.
        stages: the names of these models by stage; of a model that has no family, its own.
        checkpoint: the checkpoint's folder here.
        served_checkpoint, served_at: where the server will find the checkpoint and the repository.
        precisions: by stage; the repository's own where there is none.
        native: a kind of `PLATFORMS` for the encoders' networks; None: in Python.
        provider: on which graphs run, a key of `PROVIDERS`, or auto.
        instances: of each encoder, or of its network.
        threads: of an encoder's network, as the setting `threads`; None: all cores.
        limits: of the clips that it takes.
    """

    family: str
    models: Mapping[str, Path]
    stages: Mapping[str, str]
    checkpoint: Path
    served_checkpoint: str
    served_at: str
    precisions: Mapping[str, str]
    native: str | None
    provider: str
    instances: int
    threads: int | None
    limits: ClipLimits

    @property
    def options(self) -> RepositoryOptions:
        """What this family can be asked for."""
        return repository_options(self.family)

    def encoders(self) -> dict[str, Sequence[EncoderGraph]]:
        """The encoders' networks, by stage."""
        found = self.options.encoders(self.checkpoint).items()
        return {stage: encoders for stage, encoders in found if stage in self.stages}

    def networks(self) -> list[Network]:
        """The encoders' networks that become models."""
        if self.native is None:
            return []
        found = self.encoders().items()
        return [Network(self.family, self.stages[stage], each) for stage, encoders in found for each in encoders]


def build(plan: Plan, folder: Path) -> None:
    """Fill an empty folder.

    Raises:
        CheckpointError: the checkpoint cannot be served.
        BuildError: a configuration does not fit.
    """
    encoders, networks = plan.encoders(), plan.networks()
    for name, model in plan.models.items():
        shutil.copytree(model, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    graphs = {network.encoder.graph: folder / network.model / "1" for network in networks}
    for place in graphs.values():
        place.mkdir(parents=True, exist_ok=True)
    fingerprints = plan.options.export(plan.checkpoint, graphs) if graphs else {}
    for network in networks:
        assert plan.native is not None
        network.config(plan.native, plan.provider, plan.instances, plan.threads).write(folder / network.model)
        if plan.native == "onnx" and plan.provider != "tensorrt":  # which refuses lengths by its own profiles
            network.refuse(graphs[network.encoder.graph] / f"{network.encoder.graph}.onnx", plan.limits)
        checked = network.checked
        (folder / checked.message.name / "1").mkdir(parents=True)
        checked.write(folder / checked.message.name)
        if not (folder / network.check).exists():
            network.write_check(folder)
    for stage, name in plan.stages.items():
        file = ConfigFile.read(folder / name)
        behind = [network.encoder.graph for network in networks if network.front == name]
        values = {"checkpoint_dir": plan.served_checkpoint} if "checkpoint_dir" in file.parameters else {}
        if stage in plan.precisions:
            values["precision"] = plan.precisions[stage]
        if behind:
            values["network_fingerprint"] = " ".join(fingerprints[graph] for graph in behind)
        for setting, value in values.items():
            file.set(setting, value)
        if stage in encoders and not behind:
            prepare_encoder(file.message, folder / name, encoders[stage][0].sample_rate, plan.instances)
        if values:
            file.write(folder / name)
    check_repository(folder)


def by_stage(option: str, given: Sequence[str], allowed: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Choices by stage, from `VALUE` for every stage that knows it and `STAGE=VALUE` for one; the last one counts.

    Raises:
        BuildError: an item is neither.
    """
    chosen: dict[str, str] = {}
    for item in given:
        stage, _, value = item.rpartition("=")
        stages = [name for name, values in allowed.items() if value in values and stage in ("", name)]
        if not allowed:
            raise BuildError(f"{option} {item}: this family has no such choice")
        if not stages:
            known = "; ".join(f"{name}={'|'.join(values)}" for name, values in allowed.items())
            raise BuildError(f"{option} {item}: it must be one of {known}, or a value alone for all")
        chosen |= dict.fromkeys(stages, value)
    return chosen


def parse(arguments: Sequence[str] | None) -> tuple[Plan, Path]:
    """What to build, and where.

    Raises:
        BuildError: the options contradict each other, or there is something at the output.
        FamilyError: the checkpoint is of no family, or not whole.
    """
    parser = Parser(prog=program("build_repository"), description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the checkpoint")
    add_repository_option(parser)
    add_with_option(parser)
    parser.add_argument("--output", type=Path, required=True, help="folder of the repository; must not be there yet")
    parser.add_argument("--force", action="store_true", help="replace the repository that is there")
    parser.add_argument(
        "--served-checkpoint", metavar="DIR", help="where the server will find the checkpoint (default: --checkpoint)"
    )
    parser.add_argument(
        "--served-at", metavar="DIR", help="where the server will find the repository (default: --output)"
    )
    parser.add_argument(
        "--native-encoders", choices=tuple(PLATFORMS), help="the encoders' networks as models of this kind"
    )
    parser.add_argument(
        "--precision",
        action="append",
        default=[],
        metavar="[STAGE=]PRECISION",
        help="as the setting precision; an unknown one is refused with a list",
    )
    parser.add_argument(
        "--provider", choices=("auto", *PROVIDERS), default="auto", help="execution provider of native encoders"
    )
    parser.add_argument("--instances", type=int, default=1, help="of each encoder (default: %(default)s)")
    given = parser.parse_args(arguments)
    output: Path = given.output.resolve()
    repositories = [MODELS, *given.repository]
    family = family_of(given.checkpoint, repositories)
    check_checkpoints({family: given.checkpoint}, repositories)
    options = repository_options(family)
    known, models = families(repositories), models_of([family], repositories)
    stages = {name.removeprefix(f"{owner(name, known)}_"): name for name in models}
    has_precision = {s for s, name in stages.items() if "precision" in ConfigFile.read(models[name]).parameters}
    offered = {stage: values for stage, values in options.PRECISIONS.items() if stage in has_precision}
    precisions = by_stage("--precision", given.precision, offered)
    if given.instances < 1:
        raise BuildError(f"--instances is {given.instances}; it must be at least 1")
    if given.native_encoders and not any(stage in stages for stage in options.ENCODERS):
        raise BuildError(f"--native-encoders: {family} has no encoders whose networks can be models of their own")
    if given.native_encoders == "tensorrt" and given.provider == "cpu":
        raise BuildError("--native-encoders tensorrt needs a GPU; leave --provider cpu out")
    if reason := refusal(output, given.force, lambda folder: _is_repository(folder, repositories)):
        raise BuildError(reason)
    fronts = [models[stages[stage]] for stage in options.ENCODERS if stage in stages]
    parameters = {
        name: {"string_value": value} for front in fronts for name, value in ConfigFile.read(front).parameters.items()
    }
    of_encoder = Settings({"parameters": parameters}, family=family)
    plan = Plan(
        family=family,
        models=models,
        stages=stages,
        checkpoint=given.checkpoint,
        served_checkpoint=given.served_checkpoint or str(given.checkpoint.resolve()),
        served_at=(given.served_at or str(output)).rstrip("/"),
        precisions=precisions,
        native=given.native_encoders,
        provider=given.provider,
        instances=given.instances,
        threads=EncoderSettings.read(of_encoder, "threads"),
        limits=ClipLimits(max_seconds=EncoderSettings.read(of_encoder, "max_clip_seconds")),
    )
    return plan, output


def _is_repository(folder: Path, sources: Sequence[Path]) -> bool:
    """Whether a folder holds models and nothing else, and is none of those that models are copied from."""
    own = any(folder == source.resolve() for source in sources)
    return not own and all((entry / "config.pbtxt").is_file() for entry in folder.iterdir())


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        with stoppable() as check:
            plan, output = parse(arguments)
            with new_folder(output) as folder:
                build(plan, folder)
                check()
    except (BuildError, ConfigError, FamilyError, VoiceCloneError, OSError) as error:
        print(f"{program('build_repository')}: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"{program('build_repository')}: stopped; nothing was written", file=sys.stderr)
        return stopped.status
    print(f"{output} is ready for\n  {shlex.join(['tools/serve', '--models', plan.served_at])}")
    print(f"or, with what docs/plain_tritonserver.md installs,\n  {plain_command(plan.served_at)}")
    if plan.native == "tensorrt":
        print("as soon as the plans are there; on the GPU that will serve them:")
        for network in plan.networks():
            print(f"  {network.plan_command(f'{plan.served_at}/{network.model}', plan.limits)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What can be found wrong before a server starts, which would take long to say the same."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from voice_clone.errors import NO_POCKETSPHINX, NO_TORCH, CheckpointError, Unsupported, VoiceCloneError
from voice_clone.gpu import has_driver
from voice_clone.server_settings import AlignerSettings, SpeakerCacheSettings, settings_of
from voice_clone.settings import CheckpointSettings, Settings
from voice_clone.speakers.disk.directory import holder
from voice_clone_server.config_file import ConfigError, ConfigFile, model_config_pb2
from voice_clone_server.families.cards import card_of, check_checkpoint, function
from voice_clone_server.families.names import owner
from voice_clone_server.families.recognition import FamilyError, download_fault, families, lent_models, models
from voice_clone_server.program import program
from voice_clone_server.triton_binary import ServerFailed

READERS = {"talker": "precision", "code2wav": "decoder_precision"}  # in voice_clone/compute.py: what suits the device
_BACKENDS = {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt"}  # by platform
_ON_GPU = model_config_pb2.ModelInstanceGroup.KIND_GPU
PATIENCE = 0.5  # seconds for a server that is just ending


def check_checkpoints(checkpoints: Mapping[str, Path], repositories: Sequence[Path]) -> None:
    """Look at the checkpoints of families; those of a family from elsewhere are not looked at. What one that can be
    served cannot do is printed.

    Raises:
        FamilyError: a checkpoint cannot be served, or not beside the others; the text says why, in one line.
    """
    for family, checkpoint in checkpoints.items():
        if found := card_of(family):
            card, package = found
            if not card.without_torch and importlib.util.find_spec("torch") is None:
                raise FamilyError(f"{checkpoint}: {card.title} computes in torch, {NO_TORCH}")
            with _refused(str(checkpoint), checkpoint):
                check_checkpoint(card, package, checkpoint)
                if card.shortcoming and (lacking := function(package, card.shortcoming)(checkpoint)):
                    print(f"{checkpoint}: {lacking}", file=sys.stderr)
    known = families(repositories)
    lends = dict(checkpoints)  # by family, the checkpoint of which its models are
    for family, checkpoint in checkpoints.items():
        for lender in {owner(model, known) or "" for model in lent_models([family], repositories)}:
            other = lends.setdefault(lender, checkpoint)
            if other != checkpoint and (found := card_of(family)) and found[0].check_shared:
                card, package = found
                with _refused(f"{other} and {checkpoint} cannot be on one server"):
                    function(package, card.check_shared)(other, checkpoint)


@contextmanager
def _refused(which: str, checkpoint: Path | None = None) -> Iterator[None]:
    """A checkpoint that cannot be served is a `FamilyError` that names it; `checkpoint`: it may lack a file."""
    try:
        yield
    except CheckpointError as error:
        fault = None if checkpoint is None else download_fault(checkpoint)
        raise FamilyError(f"{which}: {error}" if fault is None else f"{which}: {fault} ({error})") from None


def check_settings(found: Mapping[str, Path], known: Collection[str], environ: Mapping[str, str]) -> None:
    """Look at each setting of these models by itself, as the environment and the configurations have it.

    Args:
        found: the models' folders by name.
        known: the families that there are.

    Raises:
        FamilyError: a value cannot be; the text says which, and what would be right.
    """
    for model, folder in sorted(found.items(), key=lambda each: not each[0].endswith("_talker")):  # the strictest first
        family = owner(model, known) or ""
        stage = model.removeprefix(f"{family}_")
        kind = settings_of(model)
        try:
            given = _settings(folder, family, environ)
            names = kind.known().keys() & ConfigFile.read(folder).parameters.keys() - {"checkpoint_dir"}
            values = {name: kind.read(given, name) for name in names}
            if stage in READERS and values.get("precision", "auto") != "auto":  # else torch need not be imported
                whole = kind(checkpoint_dir=folder, **values)
                getattr(importlib.import_module("voice_clone.compute"), READERS[stage])(whole)
            no_checkpoint = kind is AlignerSettings and kind.read(given, "aligner_checkpoint_dir") is None
            if no_checkpoint and importlib.util.find_spec("pocketsphinx") is None:
                raise Unsupported(NO_POCKETSPHINX)
        except ConfigError as error:
            raise FamilyError(str(error)) from None
        except VoiceCloneError as error:
            raise FamilyError(f"{model}: {error}") from None


def check_backends(found: Mapping[str, Path], backends: Path) -> None:
    """Look whether a server has what runs these models: backends, a GPU, and the files that they run.

    Args:
        found: the models' folders by name.
        backends: the server's folder of them; where there is none here, they are not known.

    Raises:
        ServerFailed: it lacks one; the text says what to do.
    """
    for model, folder in sorted(found.items()):
        config = ConfigFile.read(folder).message
        backend = config.backend or _BACKENDS.get(config.platform, "")
        own = any(folder.rglob(f"libtriton_{backend}.so"))
        if backend and backends.is_dir() and not (backends / backend).is_dir() and not own:
            there = ", ".join(sorted(each.name for each in backends.iterdir() if each.is_dir())) or "none"
            raise ServerFailed(
                f"{model} needs Triton's backend {backend}, and this Triton has {there}. Run it in an image of "
                "NVIDIA's, or name a tritonserver that has it by VOICE_CLONE_TRITON_DIR; or build the repository "
                "without --native-encoders"
            )
        file = config.default_model_filename
        if config.platform in _BACKENDS and file and not any(folder.glob(f"[0-9]*/{file}")):
            raise ServerFailed(
                f"{model} has no 1/{file}; {program('build_repository')} prints the command that makes it"
            )
        if any(group.kind == _ON_GPU for group in config.instance_group) and not has_driver():
            raise ServerFailed(f"{model} runs on a GPU, and here is none; build the repository with --provider cpu")


def named_checkpoints(repositories: Sequence[Path]) -> list[Path]:
    """The checkpoint of each family whose models, or the environment, name one; a built repository does.

    Raises:
        FamilyError: a repository cannot be read, or one family has several.
    """
    found: dict[str, Path] = {}
    known = families(repositories)
    for model, folder in models(repositories).items():
        family = owner(model, known)
        settings = _settings(folder, family or "")
        if family is None or not settings.text("checkpoint_dir"):
            continue
        folder = CheckpointSettings.of(settings).checkpoint_dir
        if found.setdefault(family, folder) != folder:
            raise FamilyError(f"the models of {family} name two checkpoints; give one with --checkpoint")
    return list(found.values())


def occupied(voices: Path | None, repositories: Sequence[Path]) -> str | None:
    """Why the folder of the voices cannot be had, if so: it can be none, or another server has it.

    Args:
        voices: the folder; None: the one that the settings name.
    """
    cache = models(repositories).get("speaker_cache")
    try:
        settings = SpeakerCacheSettings.of(Settings({}) if cache is None else _settings(cache))
    except VoiceCloneError as error:
        return str(error)
    if settings.voice_store:  # they are in a database
        return None
    folder = voices or settings.voice_dir
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written" if there.is_dir() else "is no folder"
        return f"{folder} cannot have the voices: {there} {why}; give another folder with --voices"
    if settings.voice_dir_wait > 1.0:  # it shall wait for that server
        return None
    deadline = time.monotonic() + PATIENCE
    while owned_by := holder(folder):
        if time.monotonic() > deadline:
            return f"{folder} is in use by {owned_by}; stop that server, or give another folder with --voices"
        time.sleep(0.05)
    return None


def _settings(model: Path, family: str = "", environ: Mapping[str, str] | None = None) -> Settings:
    parameters = ConfigFile.read(model).parameters
    return Settings(
        {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}, environ, family
    )

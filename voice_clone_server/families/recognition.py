"""The families of model repositories, which of them a checkpoint belongs to, and where the code of each is.

The public model of a family says in its config.pbtxt how the folder of a checkpoint is recognised:

    parameters { key: "checkpoint" value { string_value: "config.json: model_type=some_family" } }

`FILE` alone: the folder has this file. `FILE: KEY=VALUE`: the file is a JSON object in which KEY has this value.
The ensemble of a family may use a model of another one, such as the decoder that both have: that one lends it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voice_clone_server.config_file import ConfigError, ConfigFile
from voice_clone_server.families.cards import card_of_weights
from voice_clone_server.families.names import owner
from voice_clone_server.program import program

PARAMETER, CONFIG = "checkpoint", "config.pbtxt"
_NAMED = f'"{PARAMETER}"', f"'{PARAMETER}'"
OPTIONAL = Path(__file__).parent.parent / "optional_models"
HUB_NAME = re.compile(  # OWNER/NAME, or its page; `Path` makes one slash of two
    r"(?:https?:/+(?:www\.)?(?:huggingface\.co|hf\.co)/)?([\w-][\w.-]*/[\w-][\w.-]*?)(?:/tree/main)?", re.ASCII
)
_HF_DOWNLOADS = ".cache/huggingface/download"  # in the folder: where hf download keeps what is not whole
_LFS, _POINTER = (
    b"version https://git-lfs",
    1024,
)  # how a file that stands for another one begins; bytes that it has not
_OTHERS = {
    ".gguf": "GGUF files",
    ".safetensors": "weights",
    ".bin": "pickles",
    ".pth": "pickles",
    ".pt": "pickles",
    ".onnx": "ONNX files",
}
INSIDE, MOST_INSIDE = 3, 300  # levels and folders that are looked through for a checkpoint; the hub's cache has three


class FamilyError(Exception):
    """A checkpoint or a repository does not fit; the text says what would."""


@dataclass(frozen=True)
class Mark:
    """What distinguishes the checkpoints of a family from others.

    Attributes:
        file: its path in the checkpoint's folder.
        key, value: of the JSON object in it; empty if the file alone is enough.
    """

    file: str
    key: str = ""
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> Mark:
        """
        Raises:
            ValueError: it is neither `FILE` nor `FILE: KEY=VALUE`.
        """
        file, colon, rest = (part.strip() for part in text.partition(":"))
        key, equals, value = (part.strip() for part in rest.partition("="))
        if not file or Path(file).is_absolute() or (colon and not (key and equals and value)):
            raise ValueError(f"{text!r} is neither FILE nor FILE: KEY=VALUE")
        return cls(file, key, value)

    def __str__(self) -> str:
        return f"{self.file} with {self.key} = {self.value}" if self.key else self.file

    def missing(self, checkpoint: Path) -> str | None:
        """What a folder has instead of it; None: it has it."""
        path = checkpoint / self.file
        if not path.is_file():
            return f"here there is no {self.file}"
        if not self.key:
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return f"here {self.file} cannot be read as JSON"
        found = content.get(self.key) if isinstance(content, dict) else None
        if found is None:
            return f"here it has no {self.key}"
        said = found if isinstance(found, str) else json.dumps(found)
        return None if said == self.value else f"here it is {said}"

    def is_on(self, checkpoint: Path) -> bool:
        """Whether a folder has it. A file that cannot be read has no keys."""
        return self.missing(checkpoint) is None


def models(repositories: Sequence[Path]) -> dict[str, Path]:
    """The folder of every model by its name. A repository may also be the folder of one model.

    Raises:
        FamilyError: a repository is not there or none, or two have a model of the same name.
    """
    found: dict[str, Path] = {}
    for repository in repositories:
        if not repository.is_dir():
            raise FamilyError(f"there is no model repository {repository}")
        alone = repository / CONFIG
        configs = [alone] if alone.is_file() else sorted(repository.glob(f"*/{CONFIG}"))
        if not configs:
            raise FamilyError(f"{repository} is no model repository: no folder in it has a {CONFIG}")
        for config in configs:
            model = config.parent
            if found.get(model.name, model.resolve()) != model.resolve():
                raise FamilyError(f"the model {model.name} is in {found[model.name].parent} and in {repository}")
            found[model.name] = model.resolve()
    return found


def families(repositories: Sequence[Path]) -> dict[str, Mark]:
    """The marks of all families by name, in alphabetical order.

    Raises:
        FamilyError: as `models`; or a configuration or a mark cannot be read.
    """
    found: dict[str, Mark] = {}
    for name, model in sorted(models(repositories).items()):
        try:
            if (file := ConfigFile.read_if(model, _NAMED)) is not None and PARAMETER in file.parameters:
                found[name] = Mark.parse(file.parameters[PARAMETER])
        except (ConfigError, ValueError) as error:
            raise FamilyError(f"{model}: {error}") from None
    return found


def family_of(checkpoint: Path, repositories: Sequence[Path]) -> str:
    """The family of a checkpoint.

    Raises:
        FamilyError: as `families`; or there is no such folder, no family recognises it, or several do.
    """
    try:
        return _family_of(checkpoint, families(repositories), repositories)
    except OSError as error:
        raise FamilyError(f"{checkpoint} cannot be read: {error.strerror}") from None


def _family_of(checkpoint: Path, known: Mapping[str, Mark], repositories: Sequence[Path]) -> str:
    if not checkpoint.exists() and (on_hub := HUB_NAME.fullmatch(str(checkpoint))):
        name = checkpoint.name if on_hub[0] == on_hub[1] else on_hub[1].rpartition("/")[2]
        raise FamilyError(
            f"there is no folder {checkpoint}; if that is a name on the Hugging Face hub, download it first: "
            f"hf download {on_hub[1]} --local-dir {name}; then give the folder {name}"
        )
    if not checkpoint.exists():
        raise FamilyError(f"there is no folder {checkpoint}; give that of a checkpoint, see README.md")
    if not checkpoint.is_dir():
        raise FamilyError(f"{checkpoint} is a file; give the folder of the checkpoint that it is in")
    if not any(checkpoint.iterdir()):
        raise FamilyError(f"{checkpoint} is empty; download the checkpoint into it, see README.md")
    found = [name for name, mark in known.items() if mark.is_on(checkpoint)]
    if len(found) == 1:
        return found[0]
    if found:
        raise FamilyError(f"{checkpoint} looks like a checkpoint of {' and of '.join(found)}")
    if reason := _no_checkpoint(checkpoint, known):
        raise FamilyError(f"{checkpoint} is no checkpoint: {reason}")
    wanted = "; ".join(f"{name} has {mark}, {mark.missing(checkpoint)}" for name, mark in known.items())
    wanted = wanted or "there is no family"
    raise FamilyError(f"{checkpoint} is no checkpoint of a family in {_listed(repositories)}: {wanted}")


def _no_checkpoint(folder: Path, known: Mapping[str, Mark]) -> str | None:
    """Why a folder is a checkpoint of nothing, and what to do; None: it may be one of another kind of model."""
    if fault := download_fault(folder):
        return fault
    files = [each for each, _ in Counter(mark.file for mark in known.values()).most_common()]
    there = [file for file in files if (folder / file).exists()]
    if files and not there:
        for inside in (folder, *_folders_in(folder)):
            if any(mark.is_on(inside) for mark in known.values()):
                return f"one is in it; give the folder {inside}"
            if card_of_weights(inside):
                return f"its sizes are not beside its weights; run once: {program('complete_checkpoint')} {inside}"
        kinds = (what for ending, what in _OTHERS.items() if any(folder.glob(f"*{ending}")))
        lacks, but = " and no ".join(files), next((f", only {what}" for what in kinds), "")
        return f"it has no {lacks}{but}; give the folder of the whole official checkpoint"
    for file in there:
        try:
            text = (folder / file).read_text(encoding="utf-8")
            if file.endswith(".json"):
                json.loads(text)
                return None
        except ValueError:
            return f"its {file} cannot be read as {'JSON' if file.endswith('.json') else 'text'}; download it again"
    return None


def download_fault(checkpoint: Path) -> str | None:
    """What shows that a download has not come to its end, and what would end it."""
    for place in ("*", "*/*", f"{_HF_DOWNLOADS}/*", f"{_HF_DOWNLOADS}/*/*"):
        for file in itertools.islice(checkpoint.glob(place), MOST_INSIDE):
            if file.name.endswith(".incomplete"):
                return "its download is not finished; run the same hf download again"
            if file.is_file() and file.stat().st_size < _POINTER and file.read_bytes().startswith(_LFS):
                return (
                    f"{file.relative_to(checkpoint)} only stands for a file in Git LFS; run git lfs pull in the folder"
                )
    return None


def _folders_in(folder: Path) -> Iterator[Path]:
    """Folders in a folder, the upper ones first, as many as are looked through."""
    level = [folder]
    for _ in range(INSIDE):
        names = (each for above in level for each in sorted(above.iterdir()))  # the same ones on each file system
        inside = (each for each in names if each.is_dir() and os.access(each, os.R_OK | os.X_OK))
        level = list(itertools.islice(inside, MOST_INSIDE))
        yield from level


def families_of(checkpoints: Sequence[Path], repositories: Sequence[Path]) -> dict[str, Path]:
    """The checkpoint of each family that has one.

    Raises:
        FamilyError: as `family_of`; or two checkpoints are of the same family.
    """
    found: dict[str, Path] = {}
    for checkpoint in checkpoints:
        family = family_of(checkpoint, repositories)
        if family in found:
            raise FamilyError(
                f"{found[family]} and {checkpoint} are both checkpoints of {family}; a server has one of each family"
            )
        found[family] = checkpoint
    return found


def models_of(wanted: Collection[str], repositories: Sequence[Path]) -> dict[str, Path]:
    """The folders, by name, of the wanted families' models, of those lent to them, and of those that belong to none.

    Raises:
        FamilyError: as `families`.
    """
    known, lent = families(repositories), lent_models(wanted, repositories)
    found = models(repositories).items()
    return {name: path for name, path in found if name in lent or owner(name, known) in (None, *wanted)}


def lent_models(wanted: Collection[str], repositories: Sequence[Path]) -> dict[str, str]:
    """The models of other families that the ensembles of the wanted families use, and the first family that does so.

    Raises:
        FamilyError: as `families`.
    """
    known, found = families(repositories), models(repositories)
    lent: dict[str, str] = {}
    for family in wanted:
        for step in ConfigFile.read(found[family]).message.ensemble_scheduling.step:
            if owner(step.model_name, known) not in (None, family):
                lent.setdefault(step.model_name, family)
    return lent


def _listed(repositories: Sequence[Path]) -> str:
    return " and ".join(map(str, repositories))


def add_repository_option(parser: argparse.ArgumentParser) -> None:
    """The option `--repository` of the tools that serve or build: a list of folders, empty by default."""
    parser.add_argument(
        "--repository",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a further model repository, for families from elsewhere; may be repeated",
    )


def add_with_option(parser: argparse.ArgumentParser) -> None:
    """The option `--with`: models that come with the server and that most servers do not need.

    Their folders join those of `--repository`.
    """
    names = sorted(each.parent.name for each in OPTIONAL.glob(f"*/{CONFIG}"))

    def optional(name: str) -> Path:
        if name not in names:
            raise argparse.ArgumentTypeError(f"{name!r} is no optional model; they are {', '.join(names)}")
        return OPTIONAL / name

    parser.add_argument(
        "--with",
        type=optional,
        action="append",
        dest="repository",
        metavar="MODEL",
        help=f"a further model that comes with the server, of {', '.join(names)}; may be repeated",
    )

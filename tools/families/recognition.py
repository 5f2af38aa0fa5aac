"""The families of model repositories, which of them a checkpoint belongs to, and where the code of each is.

The public model of a family says in its config.pbtxt how the folder of a checkpoint is recognised:

    parameters { key: "checkpoint" value { string_value: "config.json: model_type=some_family" } }

`FILE` alone: the folder has this file. `FILE: KEY=VALUE`: the file is a JSON object in which KEY has this value.
The ensemble of a family may use a model of another one, such as the decoder that both have: that one lends it.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import voice_clone.families
from tools.config_file import ConfigError, ConfigFile
from tools.families.names import kind_of, owner

PARAMETER = "checkpoint"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)  # OWNER/NAME


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
    """The folder of every model by its name.

    Raises:
        FamilyError: a repository is not there, or two have a model of the same name.
    """
    found: dict[str, Path] = {}
    for repository in repositories:
        if not repository.is_dir():
            raise FamilyError(f"there is no model repository {repository}")
        for config in sorted(repository.glob("*/config.pbtxt")):
            model = config.parent
            if model.name in found:
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
            text = ConfigFile.read(model).parameters.get(PARAMETER)
            if text is not None:
                found[name] = Mark.parse(text)
        except (ConfigError, ValueError) as error:
            raise FamilyError(f"{model}: {error}") from None
    return found


def family_of(checkpoint: Path, repositories: Sequence[Path]) -> str:
    """The family of a checkpoint.

    Raises:
        FamilyError: as `families`; or there is no such folder, no family recognises it, or several do.
    """
    if not checkpoint.exists() and HUB_NAME.fullmatch(str(checkpoint)):
        name = checkpoint.name
        raise FamilyError(
            f"there is no folder {checkpoint}; if that is a name on the Hugging Face hub, download it first: "
            f"hf download {checkpoint} --local-dir {name}; then give the folder {name}"
        )
    if not checkpoint.exists():
        raise FamilyError(f"there is no folder {checkpoint}; tools/make_checkpoint makes one with random weights")
    if not checkpoint.is_dir():
        raise FamilyError(f"{checkpoint} is a file; give the folder of the checkpoint that it is in")
    if not any(checkpoint.iterdir()):
        raise FamilyError(f"{checkpoint} is empty; download the checkpoint into it, see README.md")
    known = families(repositories)
    found = [name for name, mark in known.items() if mark.is_on(checkpoint)]
    if len(found) == 1:
        return found[0]
    if found:
        raise FamilyError(f"{checkpoint} looks like a checkpoint of {' and of '.join(found)}")
    wanted = "; ".join(f"{name} has {mark}, {mark.missing(checkpoint)}" for name, mark in known.items())
    wanted = wanted or "there is no family"
    raise FamilyError(f"{checkpoint} is no checkpoint of a family in {_listed(repositories)}: {wanted}")


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


def code_of(family: str) -> str:
    """The package of a family's code, which is that of the family that it is a kind of."""
    ours = [each.name for each in pkgutil.iter_modules(voice_clone.families.__path__)]
    return f"voice_clone.families.{kind_of(family, ours)}"


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

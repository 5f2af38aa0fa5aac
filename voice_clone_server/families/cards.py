"""The cards of model families, out of the packages of their code."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import voice_clone.families
from voice_clone.checkpoint_folder import check_converted, check_file, check_graph, check_weights, weight_names
from voice_clone.errors import CheckpointError
from voice_clone.family import Family
from voice_clone_server.families.names import kind_of

_FAMILIES = voice_clone.families.__name__
PACKAGES = tuple(f"{_FAMILIES}.{each.name}" for each in pkgutil.iter_modules(voice_clone.families.__path__))


def cards(packages: Collection[str] = PACKAGES) -> list[Family]:
    """The cards in the modules `family` of packages, in the order of their names."""
    names = [vars(importlib.import_module(f"{package}.family")) for package in packages]
    found = [(name, value) for each in names for name, value in each.items() if isinstance(value, Family)]
    return sorted((card for name, card in found if not name.startswith("_")), key=lambda card: card.name)


def code_of(family: str) -> str:
    """The package of a family's code, which is that of the family that it is a kind of."""
    return f"{_FAMILIES}.{kind_of(family, [each.rpartition('.')[2] for each in PACKAGES])}"


def card_of(family: str) -> tuple[Family, str] | None:
    """The card of a family of this package, and the package of its code; None: it is from elsewhere."""
    package = code_of(family)
    known = cards([package]) if package in PACKAGES else []
    return next(((card, package) for card in known if card.name == family), None)


def card_of_weights(folder: Path) -> Family | None:
    """The card of a release whose sizes are elsewhere, by its tensors; None: it is none."""
    for card in cards():
        with suppress(CheckpointError):
            if card.without_sizes and {*card.without_sizes} <= weight_names(folder, card.weights[0].name):
                return card
    return None


def function(package: str, name: str) -> Any:
    """What a card names as MODULE.FUNCTION of its package."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"{package}.{module}"), function)


def check_checkpoint(card: Family, package: str, folder: Path) -> None:
    """Check that a configuration is one that can be served, and that all files are there and whole. Needs no torch.

    Raises:
        CheckpointError: something is wrong; the text says what.
    """
    config, *_ = [function(package, each)(folder) for each in card.configurations]
    for alternatives in card.files:
        sets = [each.split("+") for each in alternatives.split("|")]
        if not any(all((folder / name).is_file() for name in names) for names in sets[:-1]):
            for name in sets[-1]:
                check_file(folder, name)
    for weights in card.weights:
        if not weights.where or getattr(config, weights.where):
            if weights.pickles:
                check_converted(folder, weights.name, weights.pickles)
            check_weights(folder, weights.name)
    for graph in card.graphs:
        check_graph(folder, graph)

"""What a name says: whose a model is, and of which family another one is a kind.

A family's models are the folder of its name and those whose names begin with it and an underscore. A family whose name
begins so with another's is a kind of that one: kinds share their code and their tools.

It needs no package, so what measures on a bare machine can use it.
"""

from __future__ import annotations

from collections.abc import Collection


def owner(model: str, known: Collection[str]) -> str | None:
    """The family that a model belongs to: of several whose names it begins with, that with the longest name."""
    fitting = [family for family in known if f"{model}_".startswith(f"{family}_")]
    return max(fitting, key=len, default=None)


def kind_of(family: str, known: Collection[str]) -> str:
    """The family that a family is a kind of: of several whose names its name begins with, the one with the shortest
    name. Itself, if it is a kind of none.
    """
    return min((each for each in known if f"{family}_".startswith(f"{each}_")), key=len, default=family)

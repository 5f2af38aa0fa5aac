"""The families whose engines are measured, by their names."""

from __future__ import annotations

import importlib
import pkgutil

from perf.bench.families.family import Family

_MODULES = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
_FOUND = [value for module in _MODULES for value in vars(module).values() if isinstance(value, type)]
FAMILIES: dict[str, type[Family]] = {
    each.name: each for each in _FOUND if issubclass(each, Family) and hasattr(each, "name")
}

"""Types of fixtures that make something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

CheckpointFactory = Callable[[str, int], Path]
"""The random checkpoint of a shape and seed."""

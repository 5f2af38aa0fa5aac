"""A model repository of one made-up model."""

from __future__ import annotations

from pathlib import Path


def write_model(models: Path, code: str, config: str) -> None:
    """Write the model of this code and config.pbtxt into the repository `models`, under its own name."""
    folder = models / config.partition('name: "')[2].partition('"')[0]
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code, encoding="utf-8")
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")

"""What only Qwen3-TTS knows of a request: how codebooks 1..15 are drawn. Needs no torch."""

from __future__ import annotations

OPTIONS: dict[str, type] = {
    "subtalker_do_sample": bool,
    "subtalker_temperature": float,
    "subtalker_top_k": int,
    "subtalker_top_p": float,
}
"""Names and types; ranges as of `SamplingParameters`."""

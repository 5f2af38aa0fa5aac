"""What is recorded of a speech: its tokens, how it ended, and its line in the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voice_clone_client.fields import SOURCES

from ..http.errors import HTTPFailure
from ..http.keys import Key
from ..schemas import SpeechOptions

_KNOWN = ("voice", "generation", "voice_digest", "mark")  # of the server's info


def audited(key: Key, options: SpeechOptions) -> dict[str, Any]:
    """The entry of the audit log for a speech that is asked for with this key."""
    source = next((name for name in SOURCES if getattr(options, name) is not None), "voice")
    rule = {} if key.mark is None else {"mark_rule": key.mark}
    return {"voice": options.voice_name, "source": source, **rule}


def audited_result(info: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    """The entry for the speech that was made: the voice under its own name, its mark, the seconds that were sent."""
    known = {name: info[name] for name in _KNOWN if name in info} if info else {}
    return {**known, "seconds": round(seconds, 3)}


def usage(info: Mapping[str, Any] | None) -> dict[str, Any]:
    """The tokens of a speech. Input: text tokens, and frames of the reference in context. Output: frames."""
    info = info or {}
    text, audio = int(info.get("text_tokens", 0)), int(info.get("reference_frames", 0))
    output = int(info.get("frames", 0))
    return {
        "input_tokens": text + audio,
        "output_tokens": output,
        "total_tokens": text + audio + output,
        "input_token_details": {"text_tokens": text, "audio_tokens": audio},
    }


def finish_reason(error: Exception) -> str:
    """The reason of a speech that ended with `error`: the server's, or the slug of the error."""
    if isinstance(error, HTTPFailure):
        return str(error.body()["error"]["code"])
    return str(getattr(error, "finish_reason", None) or getattr(error, "slug", "internal"))

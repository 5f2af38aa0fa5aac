"""Speech in cloned voices from a Triton Inference Server.

    from voice_clone_client import Client

    with Client("localhost:8001") as client:
        client.upload("ada", "ada.wav", reference_text="What she says in the clip.", wait=True)
        with client.speak("Any other sentence.", voice="ada") as speech:
            for chunk in speech:  # the first chunk arrives long before the last
                play(chunk.samples, chunk.sample_rate)

`speak_long` is the same for a text of any length.

`AsyncClient` is the same for asyncio. Every failure is a `VoiceCloneError`; `voice_clone_client.errors` shows the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from voice_clone_words.words import Word

from ._version import __version__
from .aio import AsyncClient
from .client import Client
from .errors import (
    BrokenStream,
    Cancelled,
    ConnectionFailed,
    DeadlineExceeded,
    Incomplete,
    Internal,
    InvalidArgument,
    NameReserved,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    StreamNotFound,
    Unsupported,
    VoiceCloneError,
    VoiceExists,
    VoiceNotFound,
)
from .fields import Knobs
from .servers.channel import tls_credentials
from .speeches.speech import AsyncSpeech, Speech
from .types import (
    Artifacts,
    Candidate,
    Chunk,
    ClipWarning,
    Consent,
    Detection,
    Family,
    KeepOptions,
    KeptDictionary,
    LongOptions,
    Mark,
    Preset,
    SpeechOptions,
    SpeechStatus,
    StreamOptions,
    Take,
    UploadOptions,
    Voice,
)
from .wav import WavWriter, pcm16

if TYPE_CHECKING:
    from .long_text.long_speech import AsyncLongSpeech, LongSpeech

__all__ = [
    "Artifacts",
    "AsyncClient",
    "AsyncLongSpeech",
    "AsyncSpeech",
    "BrokenStream",
    "Cancelled",
    "Candidate",
    "Chunk",
    "Client",
    "ClipWarning",
    "ConnectionFailed",
    "Consent",
    "DeadlineExceeded",
    "Detection",
    "Family",
    "Incomplete",
    "Internal",
    "InvalidArgument",
    "KeepOptions",
    "KeptDictionary",
    "Knobs",
    "LongOptions",
    "LongSpeech",
    "Mark",
    "NameReserved",
    "Overloaded",
    "PermissionDenied",
    "Preset",
    "QuotaExceeded",
    "Speech",
    "SpeechOptions",
    "SpeechStatus",
    "StreamNotFound",
    "StreamOptions",
    "Take",
    "Unsupported",
    "UploadOptions",
    "Voice",
    "VoiceCloneError",
    "VoiceExists",
    "VoiceNotFound",
    "WavWriter",
    "Word",
    "__version__",
    "pcm16",
    "tls_credentials",
]


def __getattr__(name: str) -> Any:
    if name not in ("AsyncLongSpeech", "LongSpeech"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .long_text import long_speech  # late, because it takes long to import

    return getattr(long_speech, name)

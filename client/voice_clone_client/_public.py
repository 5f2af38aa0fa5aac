"""What the package offers; `__init__` imports it with the first use of a name."""

from ._fields import Knobs
from ._servers.channel import tls_credentials
from ._speeches.async_speech import AsyncSpeech
from ._speeches.speech import Speech
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
from .long_text.async_long_speech import AsyncLongSpeech
from .long_text.long_speech import LongSpeech
from .types import (
    Artifacts,
    Candidate,
    Chunk,
    ClipWarning,
    Consent,
    Detection,
    Family,
    LongOptions,
    Mark,
    Preset,
    SpeechOptions,
    SpeechStatus,
    StreamOptions,
    Voice,
)
from .wav import WavWriter, pcm16

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
    "Unsupported",
    "Voice",
    "VoiceCloneError",
    "VoiceExists",
    "VoiceNotFound",
    "WavWriter",
    "__version__",
    "pcm16",
    "tls_credentials",
]

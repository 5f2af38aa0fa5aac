"""Makes the plugins of LiveKit and the services of Pipecat that speak through the gateway in the words of a vendor.

VENDOR is openai, elevenlabs, dialogue for ElevenLabs' dialogues, deepgram, deepgram-v2 or cartesia.
"""

from __future__ import annotations

from typing import Any

KEY = "unused"
RATE = 24000


def livekit_plugin(vendor: str, url: str, **options: Any) -> Any:
    """A plugin of LiveKit; `options` are its own, but for `voice`, which some call otherwise."""
    from livekit.plugins import cartesia, deepgram, elevenlabs, openai

    kind, field, base, more = {
        "openai": (openai.TTS, "voice", f"{url}/v1", {}),
        "elevenlabs": (elevenlabs.TTS, "voice_id", f"{url}/v1", {}),
        "dialogue": (elevenlabs.TTS, "voice_id", f"{url}/v1", {"model": "eleven_v4_turbo"}),
        "deepgram": (deepgram.TTS, "model", f"{url}/v1/speak", {}),
        "deepgram-v2": (deepgram.TTSv2, "model", f"{url}/v2/speak", {}),
        "cartesia": (cartesia.TTS, "voice", url, {}),
    }[vendor]
    if "voice" in options:
        more = {**more, field: options.pop("voice")}
    return kind(base_url=base, api_key=KEY, **more, **options)


def pipecat_http_service(vendor: str, url: str, http: Any, settings: dict[str, Any]) -> Any:
    """A service of Pipecat that speaks over HTTP."""
    from pipecat.services.cartesia.tts import CartesiaHttpTTSService
    from pipecat.services.deepgram.tts import DeepgramHttpTTSService
    from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService
    from pipecat.services.openai.tts import OpenAITTSService

    if vendor == "openai":
        own = OpenAITTSService.Settings(**settings)
        return OpenAITTSService(api_key=KEY, base_url=f"{url}/v1", sample_rate=RATE, settings=own)
    kind: Any = {
        "elevenlabs": ElevenLabsHttpTTSService,
        "deepgram": DeepgramHttpTTSService,
        "cartesia": CartesiaHttpTTSService,
    }[vendor]
    own = kind.Settings(**settings)
    return kind(api_key=KEY, aiohttp_session=http, base_url=url, sample_rate=RATE, settings=own)


def pipecat_socket_service(vendor: str, url: str, voice: str) -> Any:
    """A service of Pipecat that speaks on a WebSocket, and sends tokens, or sentences for dialogues."""
    from pipecat.services.cartesia.tts import CartesiaTTSService
    from pipecat.services.deepgram.flux.tts import DeepgramFluxTTSService
    from pipecat.services.deepgram.tts import DeepgramTTSService
    from pipecat.services.elevenlabs.dialogue.tts import ElevenLabsDialogueTTSService
    from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
    from pipecat.services.tts_service import TextAggregationMode

    url = url.replace("http", "ws", 1)
    kind, address = {
        "elevenlabs": (ElevenLabsTTSService, {"url": url}),
        "dialogue": (ElevenLabsDialogueTTSService, {"url": url}),
        "deepgram": (DeepgramTTSService, {"base_url": url}),
        "deepgram-v2": (DeepgramFluxTTSService, {"url": f"{url}/v2/speak"}),
        "cartesia": (CartesiaTTSService, {"url": f"{url}/tts/websocket"}),
    }[vendor]
    mode = {} if vendor == "dialogue" else {"text_aggregation_mode": TextAggregationMode.TOKEN}
    return kind(api_key=KEY, sample_rate=RATE, settings=kind.Settings(voice=voice), **address, **mode)

"""Codec frames to waveform, chunk by chunk."""

import contextlib
import json
import time

from voice_clone.errors import Cancelled, InvalidArgument, VoiceCloneError
from voice_clone.qwen3_tts import stages
from voice_clone.qwen3_tts.code2wav import Code2Wav
from voice_clone.triton_io import Model, call


class TritonPythonModel(Model):
    single = True  # keeps every stream's decoder state, and the order of its chunks

    def load(self, settings):
        decoder, self._config = stages.load_codec_decoder(settings)
        codec = self._config.codec.decoder_config
        self._code2wav = Code2Wav(decoder, codec.codebook_size, codec.num_quantizers)
        self._spent_ms: dict[str, float] = {}

    def handle(self, request, responder):
        began = time.monotonic()
        stream_id = request.text("stream_id")
        index, final = request.number("chunk_index"), request.number("final")
        try:
            if responder.cancelled():
                raise Cancelled("the client gave the stream up")
            codes, context = request.array("codes"), request.array("context_codes")
            audio = self._code2wav.decode(stream_id, index, codes, context, final)
        except BaseException:
            # Triton does not tell the talker inside an ensemble that its stream has ended.
            self._code2wav.drop(stream_id)
            with contextlib.suppress(VoiceCloneError):
                call("qwen3_tts_talker", {"cancel": stream_id}, decoupled=True)
            raise
        finally:
            spent = self._spent_ms.pop(stream_id, 0.0) + 1e3 * (time.monotonic() - began)
        if not final:
            self._spent_ms[stream_id] = spent
        info = request.text("info")
        if info:
            info = json.dumps({**_parse(info), "code2wav_ms": round(spent, 3)})
        return {
            "audio": audio,
            "sample_rate": self._config.codec.output_sample_rate,
            "chunk_index": index,
            "final": final,
            "info": info,
        }


def _parse(info):
    try:
        return dict(json.loads(info))
    except (TypeError, ValueError):
        raise InvalidArgument("info must be a JSON object") from None

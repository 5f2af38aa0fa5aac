"""Waveform to speech tokens (Whisper's log-mel + S3 tokenizer, speech_tokenizer_v3.onnx)."""

from voice_clone.families.cosyvoice3.encoder import load_tokens
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of CosyVoice3."""

    stage = "speech_tokenizer"
    least_rate = 16000
    load_stage = staticmethod(load_tokens)

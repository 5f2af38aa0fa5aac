"""Waveform to speaker embedding (Kaldi filter banks + CAM++, campplus.onnx)."""

from voice_clone.families.cosyvoice3.encoder import load_speaker
from voice_clone.triton.stages.encoder import EncoderModel


class TritonPythonModel(EncoderModel):
    """Of CosyVoice3."""

    stage = "speaker_encoder"
    in_torch = False
    least_rate = 16000
    load_stage = staticmethod(load_speaker)

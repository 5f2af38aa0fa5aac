"""Waveform to codec codes. An empty waveform asks for the fingerprint alone; mode `x_vector` needs no codes."""

import os

import numpy as np
import torch

from voice_clone.audio import check_waveform, resample
from voice_clone.families.qwen3_tts import stages
from voice_clone.memory import trim
from voice_clone.triton.model import Model, call

# What is compiled for the length of one clip serves no other: without this the process grows by 170 MB over 1000 clips.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")


class TritonPythonModel(Model):
    def load(self, settings):
        stages.use_threads(settings)
        self._encoder, self._config, self._fingerprint = stages.load_codec_encoder(settings, call)
        self.threads = stages.encoder_threads(settings)

    def handle(self, request, responder):
        codec = self._config.codec
        waveform, rate = request.array("waveform"), request.number("sample_rate")
        if waveform.size == 0 or request.text("mode") == "x_vector":
            codes = np.zeros((0, codec.encoder_valid_num_quantizers), np.int32)
        else:
            check_waveform(waveform, rate)
            waveform = resample(waveform, rate, codec.input_sample_rate)
            codes = self._encoder.encode(torch.from_numpy(waveform)).cpu().numpy()
            trim()
        return {"codec_codes": codes, "fingerprint": self._fingerprint}

"""Waveform to speaker embedding. An empty waveform asks for the fingerprint and the embedding's size alone."""

import numpy as np
import torch

from voice_clone.audio import check_waveform, resample
from voice_clone.families.qwen3_tts import stages
from voice_clone.memory import trim
from voice_clone.triton.model import Model, call


class TritonPythonModel(Model):
    def load(self, settings):
        stages.use_threads(settings)
        self._encoder, self._config, self._fingerprint = stages.load_speaker_encoder(settings, call)
        self.threads = stages.encoder_threads(settings)

    def handle(self, request, responder):
        config = self._config.speaker_encoder
        waveform, rate = request.array("waveform"), request.number("sample_rate")
        if waveform.size == 0:
            embedding = np.zeros(config.enc_dim, np.float32)
        else:
            check_waveform(waveform, rate)
            waveform = resample(waveform, rate, config.sample_rate)
            embedding = self._encoder.embed(torch.from_numpy(waveform)).float().cpu().numpy()
            trim()
        return {"speaker_embedding": embedding, "fingerprint": self._fingerprint}

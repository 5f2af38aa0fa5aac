"""What the voice encoder's networks take and give, and the files they are in. Needs no torch."""

from __future__ import annotations

TOKENIZER, SPEAKER_ENCODER = "speech_tokenizer_v3", "campplus"  # files, without .onnx
TOKENIZER_INPUTS = (("tensor(float)", 3), ("tensor(int32)", 1))  # frames [1, 128, n], their number [1]
SPEAKER_INPUTS = (("tensor(float)", 3),)  # frames [1, n, 80]

FRAMES_PER_TOKEN = 4  # of the tokenizer's, 100 a second
MOST_SECONDS = 30  # of a clip: the tokenizer was trained on no longer one
MOST_TOKENS = 25 * MOST_SECONDS
MOST_MEL_FRAMES = 50 * MOST_SECONDS
LEAST_RATE = 16_000  # Hz of a clip, as in the official code: the flow would clone the sound of a telephone
LEAST_SECONDS = 0.1  # of a clip: all windows are shorter

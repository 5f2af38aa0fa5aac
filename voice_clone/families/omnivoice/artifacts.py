"""The names of what goes between the stages, and the codec's frames. Needs no torch."""

from __future__ import annotations

FRAME_RATE = 25  # frames a second
CODEBOOKS, CODES = 8, 1024  # of a frame, and of a codebook

ICL = "icl"  # the mode of a voice: its clip and its transcript
CODEC_CODES = "codec_codes"  # artifact: uint16 [frames, CODEBOOKS]
REF_RMS = "ref_rms"  # artifact, and of the decoder's voice: float32 [1], the clip's RMS before anything is done to it

TEXT_CHUNKS = "text_chunks"  # of the decoder's voice: int32 [n], the frames of each chunk of the text
REMOVE_SILENCE = "remove_silence"  # of the decoder's voice: uint8 [1]

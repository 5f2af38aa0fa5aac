"""OmniVoice. It makes all frames of an utterance at once."""

from voice_clone.family import CLIP, Artifact, EncoderPart, Family, FrameForm, Option, Weights

CARD = Family(
    name="omnivoice",
    title="OmniVoice",
    recognised_by="config.json: model_type=omnivoice",
    frame=FrameForm("UINT16", voice=("ref_rms", "text_chunks", "remove_silence")),
    weights=(Weights("model"), Weights("audio_tokenizer/model")),
    configurations=("config.load_config", "text.read", "codec_config.load_codec_config"),
    chunk_frames=(25, 50),
    prompt=("ids", "id_counts", "frames", "codec_codes", "ref_rms"),
    artifacts=(
        Artifact("codec_codes", "UINT16", (CLIP, CLIP), "frames x codebooks"),
        Artifact("ref_rms", "FP32", (1,), "root mean square of the clip"),
    ),
    encoders=(EncoderPart(("codec_codes", "ref_rms"), "Waveform to codec codes, and its RMS."),),
    modes={"icl": ("reference_text",)},
    languages=None,
    options=(
        Option("instruct", str, "words for a voice, out of a list"),
        Option("num_step", int, "steps of unmasking", 1, 1000),
        Option("guidance_scale", float, "strength of the prompt", 0, 100),
        Option("t_shift", float, "below 1 the last steps unmask more", 1e-3, 100),
        Option("layer_penalty_factor", float, "how much later a codebook comes", 0, 1000),
        Option("position_temperature", float, "of the choice of cells", 0, 1000),
        Option("class_temperature", float, "of the choice of codes", 0, 1000),
        Option("duration", float, "seconds of the speech", 0.04, 600),
        Option("speed", float, "above 1 is faster", 0.1, 10),
        Option("denoise", bool, "true: as if the clip had no noise"),
        Option("audio_chunk_duration", float, "seconds of a chunk of a long text", 1, 60),
        Option("audio_chunk_threshold", float, "seconds of a text that is not cut yet", 0, 60),
        Option("remove_silence", bool, "true: long silences are cut"),
    ),
    instructions="instruct",
    voiceless=True,
    autoregressive=False,
    prefix_bytes=0,
    streams="own",
    cuda_graphs=False,
    notes={"max_text_tokens": "; long ones are spoken in chunks"},
)

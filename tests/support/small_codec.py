"""A codec decoder small enough to be decoded often."""

from voice_clone.batching.payload import PayloadForm
from voice_clone.codec.decoder import CodecFormat
from voice_clone.families.qwen3_tts.config import CodecDecoderConfig

SMALL = CodecDecoderConfig(  # 24 samples a frame; the window is shorter than most chunkings
    codebook_dim=16,
    head_dim=8,
    codebook_size=32,
    hidden_size=16,
    latent_dim=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    sliding_window=9,
    intermediate_size=32,
    num_hidden_layers=2,
    num_quantizers=4,
    upsample_rates=(3, 2),
    upsampling_ratios=(2, 2),
    decoder_dim=32,
)
FORM = CodecFormat(PayloadForm(SMALL.num_quantizers), frame_samples=24, sample_rate=24000, limits=SMALL.codebook_size)

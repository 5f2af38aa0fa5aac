"""Voice cloning for Triton Inference Server: the code behind the models of `model_repository/`.

Layers, each knowing only those to its left:
`errors`, `settings`, `versions`, `audio` <- `layers` <- `speakers`, `batching`, `qwen3_tts` <- `triton_io` <- model.py.
"""

__version__ = "0.1.0"

"""Tools of Qwen3-TTS: random checkpoints, ONNX graphs, and what a built repository has of them."""

DEFAULT = True  # the family of a tool that needs one and is given none

"""Tools of Qwen3-TTS: random checkpoints, ONNX graphs, and what a built repository has of them."""

"""Ours and other engines that speak a checkpoint of Qwen3-TTS, each in a process of its own environment."""

"""The code behind the model repository.

Rooms, the upper ones import the lower ones alone (docs/architecture.md; pyproject.toml states it, a test checks it):

    triton, families          Triton's tensors and processes; what one family alone has
    stages                    what a family implements
    autoregressive, codec     any talker; any decoder
    batching, compute         the engine; devices, precisions, threads
    speakers, layers, native, onnx
    audio, checkpoint, settings, speech, ...
"""

import sys

from voice_clone.model_start import prepare_imports

__version__ = "0.1.0"

if "c_python_backend_utils" in sys.builtin_module_names:  # built into the program of Triton that serves a model
    prepare_imports()

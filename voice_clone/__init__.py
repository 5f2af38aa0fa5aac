"""The code behind the model repository.

Each package imports only those below it (docs/architecture.md). pyproject.toml has the layers, and a test checks them:

    triton, families          Triton's tensors and processes; what only one family has
    stages                    what a family implements
    mask_predict              any talker that unmasks all frames of an utterance together
    autoregressive, codec     any other talker; any decoder
    batching, compute         the engine; devices, precisions, threads
    appended_text, marking, speakers, native, onnx, layers
    audio, checkpoint, settings, speech, ...
"""

import sys

from voice_clone.model_start import prepare_imports

__version__ = "0.2.0"

if "c_python_backend_utils" in sys.builtin_module_names:  # built into the program of Triton that serves a model
    prepare_imports()

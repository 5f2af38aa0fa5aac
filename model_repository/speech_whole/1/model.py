"""A whole speech of any family in one answer."""

import faulthandler, sys
faulthandler.dump_traceback_later(6, repeat=True, file=open("/tmp/whole_stack","w"))
from voice_clone.triton.stages.speech_whole import WholeSpeechModel


class TritonPythonModel(WholeSpeechModel):
    """The model that Triton loads."""

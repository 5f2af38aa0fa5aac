"""What to do when the GPU is lost to this process: it ends.

After an illegal access, an uncorrectable memory error, or a fault of another process under MPS each further call to the
GPU fails, until the process ends. The models of the server notice its end, and the server ends, too, for its supervisor
to start it anew: `voice_clone/triton/lost_models.py`.
"""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger(__name__)


def is_fatal(error: BaseException) -> bool:
    """Whether an error says that this process can use its GPU no more."""
    torch = sys.modules.get("torch")  # a process that has not imported it uses no GPU
    if torch is None or not isinstance(error, torch.AcceleratorError) or isinstance(error, torch.OutOfMemoryError):
        return False
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except Exception:
            return True
        return False
    return True


def end_if_fatal(error: BaseException) -> None:
    """End this process if it can use its GPU no more."""
    if is_fatal(error):
        log.critical("this process has lost its GPU and ends; the server ends, too, and must be started anew")
        end_process()


def log_failure(to: logging.Logger, error: BaseException, message: str, *values: object) -> None:
    """Log why some work failed; end this process if it can do no more of it."""
    to.error(message, *values, exc_info=error)
    end_if_fatal(error)


def end_process() -> None:
    """At once, without the clean-up of the interpreter and of CUDA, which may hang."""
    os._exit(1)

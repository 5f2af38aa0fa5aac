"""The base of every model: requests in, responses out.

A model subclasses `Model`, loads in `load`, and implements `handle`. One that gives its memory back at rest loads that
in `load_heavy`; see `triton.rest`. `Model` guarantees:

- inputs are read and copied once, in `execute` (`Request`): the buffers belong to the server and go with the request;
- every request is answered exactly once to the end, whatever is raised (`Responder`): a response sender that is
  dropped without its FINAL flag hangs the client for ever and keeps the model from unloading;
- only errors of `voice_clone.errors` reach a caller, with their slug; anything else becomes `internal` with the
  request's id, and its traceback goes to the log alone.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import triton_python_backend_utils as pb_utils

from voice_clone.errors import NO_TORCH, Cancelled, InvalidArgument, Overloaded, VoiceCloneError
from voice_clone.gpu import end_if_fatal
from voice_clone.metrics import SERIES
from voice_clone.model_start import imported, loaded, trim
from voice_clone.settings import ComputeSettings, Settings, StageSettings
from voice_clone.triton.calls import passed_on, release_answers
from voice_clone.triton.lost_models import LostModels
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder, oldest_send, open_requests
from voice_clone.triton.shared_memory import make_private
from voice_clone.triton.telemetry import Metric, log_to_triton
from voice_clone.triton.tensors import DTYPES, Value
from voice_clone.triton.versions import check_backend, check_versions
from voice_clone.turn_pool import TurnPool
from voice_clone.turns import Caller

if TYPE_CHECKING:  # a model that never rests does without native code
    from voice_clone.triton.rest import Rest

log = logging.getLogger(__name__)

Steps = Generator[None, None, Mapping[str, Value]]
T = TypeVar("T")
YIELD = 1e-6  # seconds; a sleep releases the GIL for 0.1 ms, or until a busy thread releases it

WORTH_ASKING = 0.02  # seconds of waiting after which we ask whether the client has left; that takes half a millisecond


class Model(ABC):
    """Base of every `TritonPythonModel`.

    Class attributes:
        threads: how many requests `handle` works on at once; 0 runs it in `execute` itself (for a model that only
            hands requests on). `load` may set it.
        large_at_once: how many `large` requests it works on at once, in threads of their own; 0 means that no request
        is large. Each needs a multiple of its bytes.
        single: whether the model keeps state that all requests must share, so that a second instance (a process
            of its own) would be wrong.
        stage: the model's name without its family's; empty for a model of no family.
        rests_with: the setting with the folder of the checkpoint that `load_heavy` reads; empty: the model never rests.

    Attributes:
        family: of the model, from its name.
    """

    threads = 0
    large_at_once: ClassVar[int] = 0
    single: ClassVar[bool] = False
    stage: ClassVar[str] = ""
    rests_with: ClassVar[str] = ""

    rest: Rest | None = None

    def initialize(self, args: Mapping[str, str]) -> None:
        """Called by Triton once at load."""
        make_private()
        server = os.getppid()  # read now: if the server ends during the load, this process gets another parent
        config = json.loads(args["model_config"])
        log_to_triton(args["model_name"])
        self.family = args["model_name"].removesuffix(f"_{self.stage}") if self.stage else ""
        self._required = [entry["name"] for entry in config["input"] if not entry.get("optional")]
        self._dtypes = {entry["name"]: DTYPES[entry["data_type"]] for entry in config["output"]}
        self._pool: TurnPool | None = None
        self._large_pool: TurnPool | None = None
        self._here = threading.local()
        self._no_service: VoiceCloneError | None = None
        self._lost_models: LostModels | None = None
        try:
            if self.single and not args["model_instance_name"].endswith("_0_0"):
                raise InvalidArgument("this model keeps shared state: its instance_group must have count 1")
            check_backend(pb_utils)
            check_versions()
            settings = Settings(config, family=self.family)
            self._caller_token = settings.secret("write_token")
            general = StageSettings.of(settings)
            imported()
            self.load(settings)
            if self.rests_with:
                self.rest = self._rest(args["model_name"], settings)
            loaded()
            trim()
            if self.threads:
                self._pool = TurnPool(self.threads, args["model_name"], after=self._after)
            if self.large_at_once:
                self._large_pool = TurnPool(self.large_at_once, f"{args['model_name']}_large", more=0, after=trim)
            self._lost_models = LostModels(
                server,
                self.family,
                busy=lambda: bool(open_requests),
                lost=self._lost,
                patience=general.lost_model_seconds,
                standstill=general.standstill_seconds,
                sending=oldest_send,
            )
            return
        except VoiceCloneError as error:
            reason = str(error)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name == "torch":
                reason = f"it needs torch, {NO_TORCH}"
            else:
                log.exception("loading failed")
                reason = "loading failed; the server's log says why"
        raise pb_utils.TritonModelException(f"{args['model_name']}: {reason}")

    def execute(self, requests: Sequence[Any]) -> None:
        """Called by Triton with each request; answers come through the response sender, now or later."""
        for raw in requests:
            responder = Responder(raw.get_response_sender(), _id_of(raw), self._dtypes)
            try:
                request = Request(raw, self._required)
                pool = self._large_pool if self._large_pool is not None and self.large(request) else self._pool
                if pool is None:
                    self._run(request, responder, None)
                else:
                    pool.submit(self.caller(request), partial(self._run, request, responder, pool))
            except BaseException as error:
                responder.fail(error)
        # Triton holds the GIL until the server has noticed the return, 0.2 ms or more. The thread that works on the
        # request can begin before that.
        time.sleep(YIELD)

    def finalize(self) -> None:
        """Called by Triton at unload, when no request is open any more."""
        for pool in filter(None, (self._pool, self._large_pool)):
            pool.shutdown()
        if self._lost_models is not None:
            self._lost_models.close()
        self.close()
        if self.rest is not None:
            self.rest.close()
        # A metric that is destroyed later, when the interpreter ends, crashes the process (fault: metric-at-exit).
        vars(self).clear()
        Metric.forget()
        release_answers()

    def _lost(self) -> None:
        """End all requests, and all that come, with an error, because a model that they need has died."""
        self._no_service = Overloaded("a model of this server has died, and the server starts again; try again later")
        for responder in list(open_requests):
            responder.fail(self._no_service)

    def _run(self, request: Request, responder: Responder, pool: TurnPool | None, steps: Steps | None = None) -> None:
        """Work on a request, or on the next of its steps."""
        passed_on.set(request.passed_on)
        try:
            if self._no_service is not None:
                raise self._no_service
            # A model without a thread pool hands requests on, and handles a cancelled one itself.
            waited = pool is not None and time.monotonic() - request.came > WORTH_ASKING
            if waited and responder.cancelled():
                raise Cancelled("the client cancelled the request")
            outputs = steps or self._handled(request, responder)
            if isinstance(outputs, Generator):
                assert pool is not None
                try:
                    self._run_awake(partial(next, outputs))
                except StopIteration as ended:
                    outputs = ended.value
                else:
                    pool.submit(self.caller(request), partial(self._run, request, responder, pool, outputs))
                    return
            if outputs is not None:
                responder.send(outputs, final=True)
        except BaseException as error:
            self.refuse(request, responder, error)
            end_if_fatal(error)

    def _handled(self, request: Request, responder: Responder) -> Mapping[str, Value] | Steps | None:
        """As `handle`, of a model that is awake, or is not needed."""
        return self._run_awake(partial(self.handle, request, responder), self.serves_at_rest(request))

    def _run_awake(self, work: Callable[[], T], needs_nothing: bool = False) -> T:
        return work() if self.rest is None else self.rest.run(work, needs_nothing=needs_nothing)

    def _rest(self, name: str, settings: Settings) -> Rest:
        """Load all that a rest gives back."""
        from voice_clone.triton.rest import Rest

        minutes = ComputeSettings.of(settings).rest_minutes
        folder = settings.text(self.rests_with)
        form = SERIES["wakes_total"]
        wakes = Metric("voice_clone_model_wakes_total", form.meaning, form.kind, {"model": name}) if minutes else None
        return Rest(
            partial(self.load_heavy, settings),
            vars(self),
            busy=self.busy,
            pending=lambda: bool(open_requests),
            seconds=60 * minutes,
            folder=Path(folder).expanduser() if folder else None,
            wakes=wakes,
        )

    def trim_afterwards(self) -> None:
        """Give freed memory back to the system when the request that this thread handles is over."""
        self._here.trims = True

    def _after(self) -> None:
        if vars(self._here).pop("trims", False):
            trim()

    def caller(self, request: Request) -> Caller:
        """For whom a request is. Raises: as `Request.caller`."""
        return request.caller(self._caller_token)

    def large(self, request: Request) -> bool:
        """Whether a request or its answer is large."""
        return False

    @property
    def awake(self) -> bool:
        """Whether all is loaded; False at rest."""
        return self.rest is None or self.rest.awake

    def serves_at_rest(self, request: Request) -> bool:
        """Whether `handle` answers a request at rest, too. Such a request is no work."""
        return False

    def busy(self) -> bool:
        """Whether there is work, though no request is open, for which the model must not rest."""
        return False

    def went_on(self) -> float:
        """When the server or this process last stood still, on the monotonic clock; 0 if it never did."""
        return 0.0 if self._lost_models is None else self._lost_models.went_on()

    def gives(self, output: str) -> bool:
        """Whether config.pbtxt has this output."""
        return output in self._dtypes

    @abstractmethod
    def load(self, settings: Settings) -> None:
        """Make the model ready to serve, but for what `load_heavy` loads."""

    def load_heavy(self, settings: Settings) -> None:  # noqa: B027 - a model that never rests needs none
        """Load what a rest gives back, to attributes that nothing else sets. They are closed, if they have a `close`,
        and dropped, the last one first.
        """

    def refuse(self, request: Request, responder: Responder, error: BaseException) -> None:
        """End a request with an error."""
        responder.fail(error)

    @abstractmethod
    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value] | Steps | None:
        """Return the outputs, or return None and let `responder` end the request later. In a pool this may be a
        generator: at each `yield` other callers have their turns, and it goes on if the client is still there.
        """

    def close(self) -> None:  # noqa: B027 - a model that opens nothing needs none
        """Release what `load` opened."""


def _id_of(request: Any) -> str:
    """Return the caller's id of a request, or else one of our own. Over HTTP an id may be no text."""
    try:
        return request.request_id() or uuid.uuid4().hex
    except UnicodeDecodeError:
        return uuid.uuid4().hex


# Triton appends the file and line in which a failed load was raised to the message, which clients of the repository API
# read. A code object's file name is where Triton reads it from.
Model.initialize.__code__ = Model.initialize.__code__.replace(co_filename="voice_clone")

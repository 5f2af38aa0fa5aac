"""The model `text_front_end`: a text with pauses, several voices, SSML, pronunciations and numbers as one speech.

in    model       STRING [1]  optional: the family that speaks; without it the server's default
      input_type  STRING [1]  optional: auto (the default: SSML if the text begins with `<speak`), ssml, text
      settings    STRING [1]  optional: a JSON object, of the entries that `planned_speech.SETTINGS` has
      plan_only   BOOL [1]    optional: nothing is spoken, and info has the plan, as `voice_clone_text.shown` has it
      the inputs of the families' public models, but for `text_stream`
out   audio FP32 [n], sample_rate INT32 [1], chunk_index INT32 [1], final BOOL [1], info STRING [1]: as a public model
      has them. The last info has warnings, and says where each segment is heard.

Two threads of a speech wait at a time, so twice `max_planned_speeches` stays below the 32 that tritonserver has for
calls between models.
"""

from __future__ import annotations

from collections.abc import Mapping

from voice_clone.server_settings import TextSettings
from voice_clone.settings import Settings
from voice_clone.triton.model import Model
from voice_clone.triton.request import Request
from voice_clone.triton.responder import Responder
from voice_clone.triton.stages.speech_whole import REFUSING, Clients, Families, Places
from voice_clone.triton.tensors import Value


class TextFrontEndModel(Model):
    """Plans a text, and plays the plan by calls of the family's public model."""

    def load(self, given: Settings) -> None:
        settings = TextSettings.of(given)
        self._most_characters = settings.max_planned_characters
        most = settings.max_planned_speeches
        self._places = Places(most, f"{most} planned speeches are made already (max_planned_speeches); try again later")
        self.threads = most + REFUSING
        self._families = Families()
        self._clients = Clients()

    def handle(self, request: Request, responder: Responder) -> Mapping[str, Value]:
        # They take 26 MB, which a server that plans no text does not need.
        from voice_clone.triton.planned_speech import played, shown_plans, turns_of

        with self._places.taken(self.caller(request).name):
            turns = turns_of(request, self._most_characters)
            if request.number("plan_only"):
                return shown_plans(turns)
            family = self._families.choose(request.text("model"))
            return played(turns, request, responder, family, self._clients)

    def close(self) -> None:
        self._clients.close()

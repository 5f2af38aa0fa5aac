"""The report on a reference clip: what is measured of it, what is wrong with it, and the cutting of its silence.

`measures` holds the report. It is made of `spectrum`, `activity` (speech and noise) and `clipping`; `warnings` reads it
together with the transcript, whose length `syllables` estimates. `trimming` cuts the silence at the ends.
"""

from voice_clone.speakers.report.measures import ClipReport, measure
from voice_clone.speakers.report.trimming import trim_silence
from voice_clone.speakers.report.warnings import ClipWarning, of_file, speaking_rate, warnings_of

__all__ = ["ClipReport", "ClipWarning", "measure", "of_file", "speaking_rate", "trim_silence", "warnings_of"]

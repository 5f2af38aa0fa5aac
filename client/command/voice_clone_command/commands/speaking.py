"""The command that speaks a text: speak."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

from voice_clone_client.backends import now
from voice_clone_client.client import Client
from voice_clone_client.errors import InvalidArgument, Unsupported, VoiceCloneError, VoiceNotFound
from voice_clone_client.fields import SOURCES
from voice_clone_client.long_text.long_speech import LongSpeech
from voice_clone_client.requests import is_voiceless
from voice_clone_client.responses import missed_end
from voice_clone_client.sources import content
from voice_clone_client.speeches.speech import Speech
from voice_clone_client.types import Chunk
from voice_clone_client.word_times import BlockingWordTimes
from voice_clone_program.running import naming
from voice_clone_program.whole_file import WholeFile
from voice_clone_provenance.manifests import TYPES, FileSigner, consent_of
from voice_clone_provenance.statements import comment_of
from voice_clone_sound import MAX_LOUDNESS, MIN_LOUDNESS
from voice_clone_text.languages import spoken_in
from voice_clone_text.pieces import Style
from voice_clone_text.planner import Settings, plan
from voice_clone_text.sequence import Part, Planned, in_sequence
from voice_clone_text.tags import is_ssml
from voice_clone_words.captions import FORMATS
from voice_clone_words.words import Word

from ..audio_file import MISSING, SUFFIXES, has_codecs, refusal
from ..output import AudioOutput, progress
from ..parts import PartsSpeech, texts_of
from ..player import Player
from ..stdin import Tee, written
from .common import add_mark, command, complain, given, report
from .voicing import add_knobs, add_normalize, add_shape, add_voice, how_of, within


def add(commands: Any) -> None:
    speak = command(commands, "speak", _speak, "speak a text in a voice")
    speak.add_argument("text", help="the text, of any length; - speaks stdin while it is written, if the model can")
    add_voice(speak)
    speak.add_argument(
        "-o", "--output", metavar="FILE", help=f"a file ({', '.join(SUFFIXES)}); - for raw PCM16 on stdout"
    )
    speak.add_argument(
        "--subtitles",
        metavar="FILE",
        help=f"write when each word is spoken: captions, or for .json the words ({', '.join(FORMATS)})",
    )
    kind = speak.add_mutually_exclusive_group()
    kind.add_argument("--ssml", action="store_true", help="the text is SSML, as one that begins with <speak always is")
    kind.add_argument("--script", action="store_true", help="the text is a dialogue: lines such as Ada: Good morning.")
    add_normalize(speak)
    add_mark(speak)
    speak.add_argument("--sign-key", metavar="FILE", help="sign the file (C2PA) with this private key, EC P-256, PEM")
    speak.add_argument("--sign-certificates", metavar="FILE", help="its certificate and those of its authorities, PEM")
    speak.add_argument(
        "--sign-consent", action="store_true", help="the signed record has the id of the consent to --voice, too"
    )
    speak.add_argument("--play", action="store_true", help="play the speech while it arrives")
    add_shape(speak)
    speak.add_argument("--deadline", type=float, metavar="SECONDS", help="maximum time of the whole speech")
    speak.add_argument(
        "--loudness",
        type=partial(within, MIN_LOUDNESS, MAX_LOUDNESS),
        metavar="LUFS",
        help="such as -18: the voice gets this loudness; it first speaks two texts that are measured (-40 to -10)",
    )
    add_knobs(speak)


def _speak(client: Client, parsed: argparse.Namespace) -> None:
    if parsed.output is None and not parsed.play:
        parsed.parser.error("give -o FILE, --play or both")
    if parsed.output is not None and (reason := refusal(parsed.output)):
        parsed.parser.error(reason)
    if parsed.subtitles is not None and Path(parsed.subtitles).suffix.lower() not in FORMATS:
        parsed.parser.error(f"--subtitles takes a file of one of these kinds: {', '.join(FORMATS)}")
    if not has_codecs() and (parsed.speed != 1.0 or parsed.loudness is not None):
        parsed.parser.error(f"--speed and --loudness need a further package: {MISSING}")
    sign = _signing(parsed)
    how: Any = {**how_of(parsed), "deadline": parsed.deadline}
    if parsed.loudness is not None:
        if is_voiceless(how) and not parsed.script:
            parsed.parser.error("--loudness is that of a voice; give --voice, --reference, --embedding or --prompt")
        how |= {name: content(how[name]) for name in ("reference_audio", "voice_prompt") if how[name] is not None}
    with ExitStack() as stack:
        shown = stack.enter_context(progress(parsed.quiet))
        outputs: list[AudioOutput | Player] = []
        if parsed.play:  # it ends after the file, which does not depend on it
            outputs.append(stack.enter_context(Player(parsed.output)))
        times = None if parsed.subtitles is None else client.word_times("", parsed.language)
        speech, chunks = _begin(client, parsed, how, times)
        if parsed.output is not None:
            seal = sign and partial(sign, client, speech)
            saved = AudioOutput(parsed.output, partial(_comment, client, parsed), seal)
            outputs.insert(0, stack.enter_context(saved))
        stack.enter_context(speech)
        for chunk in chunks:
            for output in outputs:
                output.write(chunk)
            shown.update(chunk)
    if times is not None:
        _write_subtitles(parsed, times.wait(), times.text)
    if parsed.output not in (None, "-"):
        report(parsed, f"{parsed.output}\t{shown.audio:.2f} s{_frames(speech.info)}")
    if (speech.info or {}).get("mark") == "failed":
        complain("the speech could not be marked as synthetic, and was made without the mark")
    if not speech.whole:
        missed = missed_end(speech.info)
        if not parsed.allow_partial:
            raise missed  # the file is complete by now, and the player has played it
        complain(str(missed))


def _write_subtitles(parsed: argparse.Namespace, words: Sequence[Word], text: str) -> None:
    with naming(parsed.subtitles):
        file = WholeFile(parsed.subtitles)
        try:
            file.file.write(FORMATS[Path(parsed.subtitles).suffix.lower()](words, text).encode())
            file.keep()
        finally:
            file.drop()
    if any(word.estimated for word in words):
        complain("some times of words are estimated: the server has no model aligner, or it could not find them")


def _frames(info: Mapping[str, Any] | None) -> str:
    frames = (info or {}).get("frames")
    return "" if frames is None else f"\t{frames} frames"


def _comment(client: Client, parsed: argparse.Namespace, info: Mapping[str, Any] | None) -> str | None:
    return comment_of(client.family(parsed.model), info, signs=parsed.sign_key is not None)


def _signing(parsed: argparse.Namespace) -> Callable[[Client, Speech | PartsSpeech, bytes], bytes] | None:
    """Return what signs the whole file; None if that is not asked for."""
    if parsed.sign_key is None and parsed.sign_certificates is None:
        if parsed.sign_consent:
            parsed.parser.error("--sign-consent belongs to --sign-key and --sign-certificates")
        return None
    if None in (parsed.sign_key, parsed.sign_certificates):
        parsed.parser.error("--sign-key and --sign-certificates belong together")
    media_type = TYPES.get(Path(parsed.output or "-").suffix.lower(), "")
    if not media_type:
        parsed.parser.error(f"only files can be signed that end in {', '.join(TYPES)}; give such a -o FILE")
    signer = FileSigner(given(parsed.sign_certificates), given(parsed.sign_key))

    def sign(client: Client, speech: Speech | PartsSpeech, data: bytes) -> bytes:
        digest = (speech.info or {}).get("voice_digest")
        consent = _consent(client, parsed.voice, digest) if parsed.sign_consent and digest is not None else None
        return signer.sign(data, media_type, client.family(parsed.model), digest, consent)

    return sign


def _consent(client: Client, voice: str, digest: str) -> str | None:
    """Return the id of the consent to this generation; None if there is none, or the voice is another one by now."""
    try:
        return consent_of(client.get(voice), digest)
    except VoiceNotFound:
        return None


def _begin(
    client: Client, parsed: argparse.Namespace, how: dict[str, Any], times: BlockingWordTimes | None
) -> tuple[Speech | PartsSpeech, Iterator[Chunk]]:
    """A speech and its chunks, of a text or of stdin, for whose end a model that needs the whole text waits. `times`
    gets the text, and follows the chunks."""
    text = Tee(written(sys.stdin) if parsed.text == "-" else iter([parsed.text]))
    if parsed.ssml or parsed.script or parsed.inline_pauses or parsed.normalize or is_ssml(parsed.text, final=True):
        parts = _parts(client, text.rest(), parsed, how, times)
        return parts, parts
    if times is not None:
        text = Tee(_noted(text, times))
    speech: Speech | None = None
    if parsed.text == "-" and not how["non_streaming_mode"]:
        speech = client.speak_stream(text, **how)
        chunks: Iterator[Chunk] = speech
        try:
            chunks = chain(list(islice(speech, 1)), speech)
        except Unsupported:
            speech = None
    if speech is None:
        chunks = speech = _whole_text(client, text.rest(), parsed, how)
    chunks = _shaped(client, chunks, parsed.speed, parsed.loudness, how)
    return speech, chunks if times is None else map(times.took, chunks)


def _noted(pieces: Iterable[str], times: BlockingWordTimes) -> Iterator[str]:
    """The pieces, each of which the times get first."""
    for piece in pieces:
        times.write(piece)
        yield piece


def _whole_text(client: Client, text: str, parsed: argparse.Namespace, how: dict[str, Any]) -> LongSpeech:
    """The speech of a text that is there. A file gets each of many sentences when it is whole: one whose end the model
    missed is made again before that."""
    most = parsed.sentence_characters
    heard = parsed.play or parsed.output == "-"
    return client.speak_long(text, sentence_characters=most, hold=not heard and len(text) > most, **how)


def _shaped(
    client: Client, chunks: Iterator[Chunk], speed: float, loudness: float | None, how: Mapping[str, Any]
) -> Iterator[Chunk]:
    """The chunks at this speed and loudness."""
    if speed == 1.0 and loudness is None:
        return chunks
    from voice_clone_sound.shape import shaped  # needs the extra

    if loudness is None:
        return shaped(chunks, speed, None)
    return shaped(chunks, speed, lambda first: _gain(client, first.info or {}, loudness, how))


def _gain(client: Client, info: Mapping[str, Any], target: float, how: Mapping[str, Any]) -> Any:
    """The factor that a voice needs for this loudness; a voice that was never measured is measured now."""
    from voice_clone_sound.loudness import gain_of, kept_by, loudness_of, measured, voice_of

    figure = info.get("loudness")
    if figure is None:
        voice = {**voice_of(how), "model": client.family(how.get("model"))}
        spoken = now(measured(client, voice))
        figure = loudness_of(spoken.parts, spoken.rate)
        if (kept := kept_by(spoken, voice, figure)) is not None:
            with suppress(VoiceCloneError):  # of an older server
                client.keep_loudness(**kept)
    return gain_of(figure, target)


def _parts(
    client: Client, text: str, parsed: argparse.Namespace, how: dict[str, Any], times: BlockingWordTimes | None
) -> PartsSpeech:
    """The speech of a text that asks for voices, pauses or words of its own."""
    settings = Settings(
        input_type="ssml" if parsed.ssml else "auto",
        inline_pauses=parsed.inline_pauses,
        normalize=parsed.normalize or "off",
    )
    texts = texts_of(text, parsed.script)
    if times is not None:
        times.write("\n".join(words for _, words in texts))
    try:
        plans = [plan(words, replace(settings, style=Style(name, parsed.language))) for name, words in texts]
        sequence = in_sequence(Planned(each, parsed.speed) for each in plans)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    ignored = [warning for each in plans for warning in each.warnings]
    for part in sequence.parts:
        ignored += spoken_in(part.span.style.language, parsed.language)[1]
    for warning in dict.fromkeys(ignored):
        complain(warning)
    if any(part.rate != 1 for part in sequence.parts) and not has_codecs():
        complain(f"the rate of SSML needs a further package, so it is ignored: {MISSING}")
        sequence = replace(sequence, parts=tuple(replace(part, rate=1.0) for part in sequence.parts))

    def ask(part: Part) -> tuple[Speech, Iterator[Chunk]]:
        style = part.span.style
        own = {**dict.fromkeys((*SOURCES, "reference_text", "style")), "voice": style.voice} if style.voice else {}
        own |= {"style": style.clip} if style.clip else {}
        spoken = {**how, **own, "language": spoken_in(style.language, parsed.language)[0]}
        speech = _whole_text(client, part.span.text, parsed, spoken)
        return speech, _shaped(client, speech, 1.0, parsed.loudness, spoken)

    return PartsSpeech(sequence, ask, times, [0, *accumulate(len(words) + 1 for _, words in texts)])

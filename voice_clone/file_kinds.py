"""What a file is that is none of those that are read, by its first bytes: for the message that refuses it."""

from __future__ import annotations

import contextlib
import json

CONVERTED = (
    (4, b"ftyp", "an MP4 file (m4a, mp4, mov or 3gp)"),
    (4, b"moov", "a QuickTime file"),
    (4, b"mdat", "a QuickTime file"),
    (4, b"wide", "a QuickTime file"),
    (0, b"\x1aE\xdf\xa3", "a WebM or Matroska file"),
    (0, b"#!AMR", "an AMR file"),
    (0, b"caff", "a CAF file"),
    (8, b"AIFC", "an AIFF file"),
    (8, b"AIFF", "an AIFF file"),
    (0, b"\xff\xf1", "an AAC file"),
    (0, b"\xff\xf9", "an AAC file"),
)
"""Offset, first bytes and kind of files that the command and the gateway convert."""

_SOUNDS = (
    (28, b"Speex   ", "an OGG file with Speex"),
    (28, b"\x80theora", "an OGG video"),
    (28, b"PCM     ", "an OGG file with PCM"),
    (28, b"\x7fFLAC", "an OGG file with FLAC"),
    (8, b"AVI ", "an AVI video"),
    (8, b"RMID", "a MIDI file, which has notes and no sound"),
    (8, b"QLCM", "a QCP file"),
    (0, b"MThd", "a MIDI file, which has notes and no sound"),
    (0, b"BW64", "a BW64 file"),
    (0, b".snd", "an AU file"),
    (0, b"Creative Voice File", "a VOC file"),
    (0, b"NIST_1A", "a NIST SPHERE file"),
    (0, b"TTA1", "a True Audio file (TTA)"),
    (0, b"TTA2", "a True Audio file (TTA)"),
    (0, b"wvpk", "a WavPack file"),
    (0, b"MAC ", "a Monkey's Audio file (APE)"),
    (0, b"OFR ", "an OptimFROG file"),
    (0, b"MP+", "a Musepack file"),
    (0, b"MPCK", "a Musepack file"),
    (0, b"ajkg", "a Shorten file"),
    (0, b"DSD ", "a DSD file"),
    (0, b"FRM8", "a DSD file"),
    (0, b".RMF", "a RealMedia file"),
    (0, b".ra\xfd", "a RealAudio file"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "a Windows Media file (WMA, WMV or ASF)"),
    (0, b"\x02#!SILK", "a SILK file"),
    (0, b"#!SILK", "a SILK file"),
    (0, b"\x0b\x77", "an AC-3 file"),
    (0, b"\x7f\xfe\x80\x01", "a DTS file"),
    (0, b"ADIF", "an AAC file (ADIF)"),
    (0, b"FLV\x01", "a Flash video"),
    (0, b"\0\0\x01\xba", "an MPEG video"),
    (0, b"\0\0\x01\xb3", "an MPEG video"),
)
_OTHERS = (
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x89PNG", "a picture (PNG)"),
    (0, b"\xff\xd8\xff", "a picture (JPEG)"),
    (0, b"GIF8", "a picture (GIF)"),
    (8, b"WEBP", "a picture (WebP)"),
    (0, b"\x93NUMPY", "an array of NumPy"),
    (0, b"version https://git-lfs", "a pointer of Git LFS: fetch the file itself"),
    (0, b"#EXTM3U", "a playlist"),
    (0, b"[playlist]", "a playlist"),
)
_READ = (
    (8, b"WAVE", "WAV"),
    (0, b"fLaC", "FLAC"),
    (0, b"OggS", "OGG"),
    (0, b"ID3", "MP3"),
    (0, b"\xff\xfb", "MP3"),
    (0, b"\xff\xf3", "MP3"),
    (0, b"\xff\xf2", "MP3"),
    (0, b"\xff\xfa", "MP3"),
    (0, b"RIFF", "WAV"),
)
_TS, _SYNC = 188, 0x47  # a packet of an MPEG transport stream, and its first byte
_SEEN = 4096  # bytes that tell whether it is text


def converted(data: bytes) -> str | None:
    """The kind of a file that the command and the gateway convert."""
    return _named(data, CONVERTED)


def sound(data: bytes) -> str | None:
    """The kind of any other sound or video."""
    return _named(data, _SOUNDS) or ("an MPEG transport stream" if _is_transport_stream(data) else None)


def fault(data: bytes) -> str:
    """Why the rest cannot be decoded: it is damaged, no sound, or has no header."""
    if kind := _named(data, _READ):
        return f"it begins as a file of {kind} and is damaged or cut off; send an undamaged one"
    kind = _named(data, _OTHERS) or _text(data)
    if kind is not None:
        return f"it is {kind}; send the bytes of a WAV, FLAC, OGG or MP3 file"
    return (
        "it has no header of a WAV, FLAC, OGG or MP3 file; convert bare samples, such as those of a telephone line "
        "(G.711) or raw PCM, to WAV"
    )


def _named(data: bytes, kinds: tuple[tuple[int, bytes, str], ...]) -> str | None:
    return next((kind for offset, magic, kind in kinds if data.startswith(magic, offset)), None)


def _is_transport_stream(data: bytes) -> bool:
    """Also one whose packets have a time before them, as cameras make it."""
    return any(
        len(data) > begin + 2 * size and all(data[begin + size * each] == _SYNC for each in range(3))
        for begin, size in ((0, _TS), (4, _TS + 4))
    )


def _text(data: bytes) -> str | None:
    begin = data[:_SEEN]
    head = begin.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html", b"<head")):
        return "a web page: the download has failed"
    if head.startswith((b"<?xml", b"<svg")):
        return "an XML document"
    try:
        text = begin.decode()
    except UnicodeDecodeError as error:
        if error.end < len(begin):  # and not in the last character
            return None
        text = begin[: error.start].decode()
    if not text or not all(each.isprintable() or each.isspace() for each in text):
        return None
    if head.startswith((b"{", b"[")):
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(data)
            return "a JSON document"
    return "text"

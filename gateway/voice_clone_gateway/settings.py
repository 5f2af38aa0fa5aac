"""The settings of the gateway: one table that defines the command's options and the environment variables."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from voice_clone_client import __version__
from voice_clone_program.arguments import Parser

PREFIX = "VOICE_CLONE_GATEWAY_"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _setting(
    default: Any,
    text: str,
    choices: Sequence[str] | None = None,
    item: Callable[[str], Any] = str,
    zero: bool = False,
) -> Any:
    """A field; `item` converts each element of a list, `zero` says that a number may be 0."""
    return field(default=default, metadata={"help": text, "choices": choices, "item": item, "zero": zero})


def parse_alias(text: str) -> tuple[str, str | None]:
    """Name and family of `ALIAS=FAMILY`; None is the default family, of `ALIAS`.

    Raises:
        ValueError: the text has another form.
    """
    alias, separator, family = (part.strip() for part in text.partition("="))
    if not alias or bool(separator) != bool(family) or "=" in family:
        raise ValueError(f"{text!r} is neither ALIAS nor ALIAS=FAMILY")
    return alias, family or None


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"{text!r} is no port; one is 1 to 65535")
    return int(text)


_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")  # of a host, as browsers send it
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")  # the end of an IPv4 address, which browsers write in full
_DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_origin(text: str) -> str:
    """An origin as browsers send it; `*` and `null` are themselves.

    Raises:
        ValueError: the text is no origin.
    """
    if text.lower() in ("*", "null"):
        return text.lower()
    form = f"{text!r} is no origin; one is like https://app.example or http://localhost:8000, or * for all"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        if ":" in host:
            host = f"[{ipaddress.IPv6Address(host)}]"
        elif parts.scheme in _DEFAULT_PORTS and _NUMBER.fullmatch(host.rpartition(".")[2]):
            host = str(ipaddress.IPv4Address(host))
    except ValueError:
        raise ValueError(form) from None
    named = parts.scheme not in ("", "file", "ws", "wss") and (host.startswith("[") or _NAME.fullmatch(host))
    if not named or "@" in parts.netloc or parts.path not in ("", "/") or any(sign in text for sign in "?#%"):
        raise ValueError(form)
    return f"{parts.scheme}://{host}" + ("" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}")


def parse_host(text: str) -> str:
    """The name of a host, without a dot at its end; `*` is itself.

    Raises:
        ValueError: the text is none.
    """
    name = text.lower()
    if name != "*" and not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is no host name; one is like voices.example, without a port, or * for all")
    return name.rstrip(".")


def _checked(parser: Callable[[str], object]) -> Callable[[str], str]:
    """Checks an element of a list with `parser`, which raises ValueError."""

    def check(text: str) -> str:
        parser(text)
        return text

    return check


@dataclass(frozen=True)
class Settings:
    """All settings. The field `retry_after` is the option `--retry-after` and the variable
    `VOICE_CLONE_GATEWAY_RETRY_AFTER`; the option takes precedence. The elements of a list are separated by commas. An
    empty variable counts as not set, unless it is a list.
    """

    triton: str = _setting(
        "localhost:8001",
        "host:port of the gRPC endpoint of the Triton server; several of a fleet, separated by commas; or "
        "dns:///name:port for all servers that the name has",
    )
    triton_token: str = _setting("", "the server's write token; prefer the variable, which other users cannot see")
    triton_tls: bool = _setting(False, "connect to the server by TLS, verified with the authorities of gRPC")
    triton_ca: str = _setting("", "connect to the server by TLS, verified with the authority in this PEM file")
    triton_proxy: str = _setting(
        "", "http://host:port of an HTTP proxy to the server; http_proxy and the like are not used"
    )
    model: str = _setting("", "the model family of requests that name none; empty: the server's default")
    model_aliases: tuple[str, ...] = _setting(
        ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15"),
        "further names of models: ALIAS for the default family, or ALIAS=FAMILY",
        item=_checked(parse_alias),
    )
    default_voice: str = _setting(
        "", "the voice of requests that name none, or one of OpenAI's or Deepgram's own voices"
    )
    voice_list: str = _setting(
        "names",
        "the form of `voices` in GET /v1/audio/voices: names, as of vLLM-Omni, or objects with id and name, which Open "
        "WebUI reads",
        ("names", "objects"),
    )
    strict: bool = _setting(False, "refuse what the model would ignore, such as instructions; false: a header warns")
    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(8080, "port to listen on", zero=True)
    tls_certificate: str = _setting("", "PEM file of a certificate and its authorities: listen by TLS (https, wss)")
    tls_key: str = _setting("", "PEM file of its private key, unless that is in the same file")
    sockets: tuple[int, ...] = _setting(
        (),
        "numbers of open sockets to listen on, from the program that starts the gateway, in place of host and port",
        item=int,
    )
    server_lock: str = _setting("", "file of a lock, from the program that starts the gateway and ends an idle server")
    wake_seconds: float = _setting(60.0, "longest seconds that a request waits until an idle server is ready again")
    standby: bool = _setting(False, "load all code, then wait for a byte on the standard input before serving")
    api_keys_file: str = _setting("", "file of bearer keys, each line: KEY speak, or KEY speak,manage; empty: no keys")
    audit_log: str = _setting(
        "", "file of one JSON line for each upload, delete, export, import and speech; log: into the gateway's own log"
    )
    signing_certificates: str = _setting(
        "", "PEM file of a certificate and its authorities: whole WAV, MP3 and FLAC files carry a signed C2PA manifest"
    )
    signing_key: str = _setting("", "PEM file of its private key, EC P-256 (ES256)")
    signing_consent: bool = _setting(False, "put the consent to the voice into the manifest, too")
    vendors_consent: str = _setting(
        "",
        "the consent to each voice that is added by the APIs of ElevenLabs and Cartesia, which have no field for it; "
        "empty: such a call must have the field consent",
    )
    measure_voices: bool = _setting(
        False, "measure how loud each new voice is, so its first speech with `loudness` does not wait for that"
    )
    cors_origins: tuple[str, ...] = _setting(
        (),
        "origins whose pages may call the gateway, e.g. https://app.example,http://localhost:8000, or *; null is that "
        "of pages from files; empty: none",
        item=parse_origin,
    )
    hosts: tuple[str, ...] = _setting(
        (),
        "host names with a dot under which a gateway without keys may be reached, or *; IP addresses always may",
        item=parse_host,
    )
    page: bool = _setting(True, "serve the web page at /")
    max_body_bytes: int = _setting(16 << 20, "maximum size of a request body; a clip of 10 MiB in base64 fits")
    max_answer_bytes: int = _setting(128 << 20, "maximum size of a speech that is answered as a whole")
    memory_bytes: int = _setting(
        512 << 20,
        "bytes that all bodies, messages, whole answers and exports may hold at once; beyond that, who "
        "holds most gives",
    )
    max_bundle_bytes: int = _setting(512 << 20, "maximum size of a bundle of voices to import")
    max_requests: int = _setting(
        256, "maximum number of concurrent speeches; more are refused, but not a caller that has less than its share"
    )
    max_input_characters: int = _setting(100_000, "maximum length of the text of one request")
    sentence_characters: int = _setting(300, "maximum length of a piece of text that is spoken at once")
    batch_items: int = _setting(32, "maximum number of items of a batch")
    batch_parallel: int = _setting(4, "items of a batch that are spoken concurrently")
    jobs_dir: str = _setting(
        "", "folder of this gateway's jobs (/v1/audio/jobs) and their speech; empty: it takes none"
    )
    jobs_database: str = _setting(
        "", "address of a PostgreSQL database in which gateways share their jobs instead; better as a variable"
    )
    jobs_database_tls: str = _setting(
        "verify", "off lets such a database on another machine not prove its identity", ("verify", "off")
    )
    job_characters: int = _setting(1_000_000, "maximum length of the text of a job")
    job_parallel: int = _setting(4, "sentences of all jobs that are made at once")
    max_jobs: int = _setting(100, "maximum number of jobs of a key that have not ended")
    job_bytes: int = _setting(10 << 30, "maximum size of the files of all jobs of a key")
    job_days: float = _setting(7.0, "days after its end in which a job and its file are deleted")
    sentence_bytes: int = _setting(10 << 30, "bytes of speech of jobs that are kept for other jobs")
    sentence_days: float = _setting(30.0, "days after its last use in which such speech is deleted")
    webhook_urls: str = _setting("https", "webhooks of jobs", ("off", "https", "http"))
    webhook_ports: tuple[int, ...] = _setting((80, 443), "ports to which webhooks may be sent", item=_port)
    webhook_networks: tuple[Network, ...] = _setting(
        (), "private networks to which they may be sent, too, e.g. 10.1.0.0/16", item=ipaddress.ip_network
    )
    prefetch_sentences: int = _setting(
        2, "sentences of a long text that are made ahead of the one that is sent", zero=True
    )
    parallel_sentences: int = _setting(1, "sentences of a long text that are made concurrently")
    session_utterances: int = _setting(8, "maximum number of utterances that wait in a WebSocket session")
    session_idle_seconds: float = _setting(60.0, "seconds after which an idle WebSocket session is closed")
    allow_partial: bool = _setting(False, "the value of allow_partial in requests without it")
    missed_end_retries: int = _setting(
        2,
        "further attempts at a file or a batch item whose end the model missed, if the request has no seed",
        zero=True,
    )
    status_speeches: int = _setting(
        1000, "how many ended speeches of a key, the latest ones, GET /v1/audio/speech/{id} knows", zero=True
    )
    status_seconds: float = _setting(600.0, "seconds for which it knows a speech that has ended", zero=True)
    speech_seconds: float = _setting(600.0, "maximum seconds of a speech; of a long text, of each of its sentences")
    otlp_endpoint: str = _setting(
        "",
        "URL that takes traces by OpenTelemetry over HTTP, such as http://localhost:4318/v1/traces; empty: no traces",
    )
    head_seconds: float = _setting(30.0, "maximum seconds until the head of a request is complete")
    stall_seconds: float = _setting(120.0, "seconds after which a client that reads nothing loses its connection")
    retry_after: int = _setting(1, "seconds in the Retry-After header of an overloaded gateway", zero=True)
    reference_urls: str = _setting("https", "reference audio by URL", ("off", "https", "http"))
    reference_ports: tuple[int, ...] = _setting(
        (80, 443), "ports from which reference audio may be fetched", item=_port
    )
    reference_networks: tuple[Network, ...] = _setting(
        (), "private networks from which it may be fetched too, e.g. 10.1.0.0/16", item=ipaddress.ip_network
    )
    reference_bytes: int = _setting(10 << 20, "maximum size of reference audio that is fetched")
    reference_seconds: float = _setting(10.0, "maximum seconds of the fetch, including redirects")
    reference_proxy: str = _setting(
        "", "http://host:port of an HTTP proxy for these fetches, which looks names up itself"
    )
    reference_redirects: int = _setting(3, "maximum number of redirects", zero=True)
    log_level: str = _setting("info", "least severe level that is logged", ("debug", "info", "warning", "error"))


def parse(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    prog: str = "voice-clone-gateway",
    prefix: str = "",
) -> Settings:
    """The settings of a command line and an environment; exits with a usage message if one is invalid.

    Args:
        prog: the command that has these options.
        prefix: which it puts before the name of each.
    """
    environment = os.environ if environment is None else environment
    parser = Parser(
        prog=prog,
        usage=f"{prog} ... [--{prefix}NAME VALUE ...]" if prefix else None,
        description="Serve the OpenAI speech API in front of a voice-clone Triton server.",
        epilog=f"Each option is also a variable: --max-body-bytes is {PREFIX}MAX_BODY_BYTES. "
        f"Keys may be given in {PREFIX}API_KEYS too, separated by ;",
    )
    if not prefix:
        parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    if mistyped := _mistyped(environment):
        parser.error(mistyped)
    for each in fields(Settings):
        option = f"--{prefix}{each.name.replace('_', '-')}"
        variable = environment.get(PREFIX + each.name.upper())
        if not isinstance(each.default, tuple):  # an empty list is one
            variable = variable or None
        shown = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
        help_text = f"{each.metadata['help']} (default: {'none' if shown == '' else shown})"
        convert = _converter(str(each.type), each.metadata["item"])
        # argparse converts a default that is a string, so it reports an invalid variable like an invalid option.
        default = each.default if variable is None else variable
        parser.add_argument(
            option, type=convert, default=default, help=help_text, choices=each.metadata["choices"], dest=each.name
        )
    parsed = parser.parse_args(arguments)
    for each in fields(Settings):  # argparse does not check defaults against the choices
        choices = each.metadata["choices"]
        if choices and getattr(parsed, each.name) not in choices:
            parser.error(f"{PREFIX}{each.name.upper()} must be one of {', '.join(choices)}")
        value, zero = getattr(parsed, each.name), each.metadata["zero"]
        if each.type in ("int", "float") and not (value > 0 or (zero and value == 0)):
            least = "0 or more" if zero else "more than 0"
            parser.error(f"argument --{prefix}{each.name.replace('_', '-')}: it must be {least}, not {value}")
    return Settings(**vars(parsed))


def _mistyped(environment: Mapping[str, str]) -> str | None:
    """What is wrong with a variable whose name is almost a setting's. Other names may be set by Kubernetes."""
    known = {each.name.upper() for each in fields(Settings)} | {"API_KEYS"}
    for name in sorted(environment):
        word = name.removeprefix(PREFIX)
        if word != name and word not in known and (meant := get_close_matches(word, known, 1, 0.8)):
            return f"there is no setting {name}; did you mean {PREFIX}{meant[0]}?"
    return None


def _converter(kind: str, item: Callable[[str], Any]) -> Any:
    if kind == "bool":
        return _boolean
    if kind.startswith("tuple"):
        return lambda text: _list(text, item)
    return {"str": str, "int": int, "float": float}[kind]


def _list(text: str, item: Callable[[str], Any]) -> tuple[Any, ...]:
    try:
        return tuple(item(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:  # argparse would not say what is wrong
        raise argparse.ArgumentTypeError(str(error)) from None


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.strip().lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None

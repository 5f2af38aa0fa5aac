"""A model refuses to load with packages outside the ranges of ours, and says which."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from voice_clone.errors import Unsupported
from voice_clone.triton.versions import BACKEND, check_backend, check_versions


def test_this_environment_is_within_the_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # C17
    check_versions()
    needs = [re.split(r"[^\w.-]", each)[0] for each in metadata.requires("voice-clone-server") or [] if ";" not in each]
    assert "numpy" in needs
    ours = tmp_path / "voice_clone_server-0.2.0.dist-info"
    ours.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in needs:  # each is found, in the version that Python finds
        (ours / "METADATA").write_text(f"Requires-Dist: {name}==0.0.1\n", encoding="utf-8")
        with pytest.raises(Unsupported, match=re.escape(f"{name} is {metadata.version(name)}; ")):
            check_versions()


State = Callable[[str, str], None]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """Install a package, as NAME-VERSION, and ours with one requirement; nothing else is installed."""

    def install(requirement: str, found: str) -> None:
        for name in filter(None, ("voice_clone_server-0.2.0", found)):
            (tmp_path / f"{name}.dist-info").mkdir()
        about = f"Metadata-Version: 2.4\nRequires-Dist: {requirement}\n\nRequires-Dist: nothing>=1\n"
        (tmp_path / "voice_clone_server-0.2.0.dist-info" / "METADATA").write_text(about, encoding="utf-8")
        monkeypatch.setattr("sys.path", [str(tmp_path)])

    return install


def folder_of(wanted: str, found: str) -> str:
    name = re.split("[<>=]", wanted)[0]
    return f"{name.replace('-', '_')}-{found}"


def test_torch_may_be_missing(state: State) -> None:
    state("torch<3,>=2.11; extra == 'torch'", "")
    check_versions()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("numpy<2,>=1.26", "1.26"),
        ("numpy<2,>=1.26", "1.26.4"),
        ("numpy<2,>=1.26", "1.100"),
        ("numpy<2,>=1.26.0", "1.26"),
        ("torch<3,>=2.11; extra == 'torch'", "2.13.0+cu130"),
        ("voice-clone-client==0.2", "0.2.0"),
    ],
)
def test_a_version_within_its_range_is_taken(state: State, wanted: str, found: str) -> None:
    state(wanted, folder_of(wanted, found))
    check_versions()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("numpy<2,>=1.26", "2.0.0"),
        ("numpy<2,>=1.26", "1.25.9"),
        ("numpy<2,>=1.26", "unknown"),
        ('torch<3,>=2.11; extra == "torch"', "2.2.0"),
        ("voice-clone-client==0.2.0", "0.2.1"),
    ],
)
def test_another_version_is_named(state: State, wanted: str, found: str) -> None:  # C17
    state(wanted, folder_of(wanted, found))
    name, needed = re.findall(r"^([a-z-]+)([^;]+)", wanted)[0]
    with pytest.raises(Unsupported, match=re.escape(f"{name} is {found}; this version needs {name}{needed}: ")):
        check_versions()


def test_what_another_extra_needs_does_not_matter(state: State) -> None:
    state("onnxruntime>=1.19; extra == 'onnx'", "onnxruntime-1.0")
    check_versions()


def test_a_missing_package_is_named(state: State) -> None:
    state("soxr>=0.3", "")
    with pytest.raises(Unsupported, match="soxr is not installed"):
        check_versions()


def test_a_source_folder_pins_nothing() -> None:
    check_versions("no-such-package-at-all")


@pytest.mark.parametrize("missing", ["MetricFamily.HISTOGRAM", "Logger"])
def test_the_error_for_an_older_server_says_what_it_lacks(missing: str) -> None:
    backend = SimpleNamespace()
    for name in BACKEND:
        owner, _, attribute = name.rpartition(".")
        if owner and not hasattr(backend, owner):
            setattr(backend, owner, SimpleNamespace())
        setattr(getattr(backend, owner) if owner else backend, attribute, object())
    check_backend(backend)
    owner, _, attribute = missing.rpartition(".")
    delattr(getattr(backend, owner) if owner else backend, attribute)
    with pytest.raises(Unsupported, match=rf"has no {missing}: Triton 2\.51 .* or a newer one is needed"):
        check_backend(backend)

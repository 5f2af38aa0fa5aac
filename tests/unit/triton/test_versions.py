"""A model refuses to load with packages outside the ranges of ours, and says which."""

from __future__ import annotations

import re
from importlib import metadata
from types import SimpleNamespace

import pytest

from voice_clone.errors import Unsupported
from voice_clone.triton.versions import BACKEND, check_backend, check_versions


def test_this_environment_is_within_the_ranges() -> None:  # C17
    assert any(requirement.startswith("torch") for requirement in metadata.requires("voice-clone-server") or [])
    check_versions()


def test_torch_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def without_torch(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", without_torch)
    check_versions()


def stated(monkeypatch: pytest.MonkeyPatch, requirement: str, found: str) -> None:
    """One requirement, and the version of it that is installed."""
    monkeypatch.setattr(metadata, "requires", lambda name: [requirement])
    monkeypatch.setattr(metadata, "version", lambda name: found)


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
def test_a_version_within_its_range_is_taken(monkeypatch: pytest.MonkeyPatch, wanted: str, found: str) -> None:
    stated(monkeypatch, wanted, found)
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
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, wanted: str, found: str) -> None:  # C17
    stated(monkeypatch, wanted, found)
    name, needed = re.findall(r"^([a-z-]+)([^;]+)", wanted)[0]
    with pytest.raises(Unsupported, match=re.escape(f"{name} is {found}; this version needs {name}{needed}: ")):
        check_versions()


def test_what_another_extra_needs_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    stated(monkeypatch, "onnxruntime>=1.19; extra == 'onnx'", "1.0")
    check_versions()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def without_soxr(name: str) -> str:
        if name == "soxr":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", without_soxr)
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

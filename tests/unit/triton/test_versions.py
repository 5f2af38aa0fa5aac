"""A model refuses to load with other packages than the pinned ones, and says which."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest

from voice_clone.errors import Unsupported
from voice_clone.triton.versions import BACKEND, check_backend, check_versions


def test_this_environment_is_the_pinned_one() -> None:  # C17
    assert any(requirement.startswith("torch==") for requirement in metadata.requires("voice-clone-server") or [])
    check_versions()


def test_torch_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def without_torch(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", without_torch)
    check_versions()


@pytest.mark.parametrize("found", ["2.12.0", "2.13.0.dev1", "2.130.0"])
def test_another_version_is_named(monkeypatch: pytest.MonkeyPatch, found: str) -> None:  # C17
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: found if name == "torch" else real(name))
    with pytest.raises(Unsupported, match=rf"torch is {found}; .* torch==2.13.0"):
        check_versions()


def test_a_build_suffix_does_not_matter_and_a_missing_package_does(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.0+cu130" if name == "torch" else real(name))
    check_versions()

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

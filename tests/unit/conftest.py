"""For client, command and gateway: a double of Triton, and what signs files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from voice_clone_provenance.manifests import FileSigner

from tests.support.doubles.triton_double import Server, listening
from tests.support.official.certificates import SigningFiles, signing_files


@pytest.fixture
def triton() -> Iterator[Server]:
    """The double, listening on a free port."""
    with listening() as server:
        yield server


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> SigningFiles:
    """A private key, and its certificates."""
    return signing_files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def signer(files: SigningFiles) -> FileSigner:
    """Signs with that key."""
    return FileSigner(files.certificates, files.key)

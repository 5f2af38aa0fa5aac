"""With what a client connects: the server's address, a token, a certificate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import voice_clone_client as vc

from tests.support.doubles.triton_double import Server


def test_the_write_token_travels_in_its_header(triton: Server) -> None:
    async def delete() -> None:
        async with vc.AsyncClient(triton.url, token="s3cret") as client:
            await client.delete("Ada")

    asyncio.run(delete())
    with vc.Client(triton.url, token="s3cret") as client:
        client.delete("Ada")
    assert [sent["x-voice-token"] for sent in triton.metadata] == ["s3cret", "s3cret"]


@pytest.mark.parametrize("kind", [vc.Client, vc.AsyncClient])
@pytest.mark.parametrize("token", ["two words", "line\n", "s3crét"])
def test_a_token_that_no_header_carries(kind: Any, token: str) -> None:
    with pytest.raises(vc.InvalidArgument, match="the token must be printable ASCII") as caught:
        kind("localhost:1", token=token)
    assert token not in str(caught.value)


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(vc.InvalidArgument, match="holds no certificate"):
        vc.tls_credentials(str(tmp_path / "ca.pem"))
    with pytest.raises(FileNotFoundError):
        vc.tls_credentials(str(tmp_path / "absent.pem"))


@pytest.mark.parametrize("kind", [vc.Client, vc.AsyncClient])
def test_url_with_a_scheme(kind: Any) -> None:
    with pytest.raises(vc.InvalidArgument, match="give host:port"):
        kind("http://localhost:8000")

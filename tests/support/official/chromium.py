"""The page at `/` in a real Chromium."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

WAIT = 60_000.0  # milliseconds
FLAGS = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]  # a microphone that beeps


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. Use it no longer than for a module: playwright's event loop would be in the way of other tests."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root has none
    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        expect.set_options(timeout=WAIT)  # of its own it waits for 5 s
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, *sandbox])
        yield browser
        browser.close()


@contextlib.contextmanager
def tab(browser: Browser, width: int = 1200, height: int = 900, **options: Any) -> Iterator[Page]:
    """A tab of its own. Whatever goes wrong in its scripts, or comes from elsewhere, fails the test."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(WAIT)
    page = context.new_page()
    faults: list[str] = []
    origins: set[str] = set()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: origins.add("/".join(request.url.split("/")[:3])))
    yield page
    context.close()
    assert not faults
    assert len({origin for origin in origins if not origin.startswith("blob:")}) == 1

"""Webhooks: messages to callers that their jobs have ended, as OpenAI's API sends them.

They follow Standard Webhooks (https://www.standardwebhooks.com).

An event waits in the tables from the moment at which its job ends, so none is lost; it is sent until its receiver has
taken it, for a day. Each attempt has the same id. A receiver may get one twice, if the gateway is killed between.

A URL makes the gateway a client on behalf of an untrusted caller: its host is looked up and checked at each attempt,
see `http.outgoing`. No redirect is followed, and no answer is read.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

from standardwebhooks import Webhook as Signer
from voice_clone_client import Overloaded

from ..http.errors import HTTPFailure
from ..http.outgoing import FAILURES, SCHEMES, Outgoing, Resolve
from ..settings import Settings
from .database import DatabaseFailed
from .deliveries import Deliveries, Delivery
from .tables import Status

log = logging.getLogger(__name__)

SECONDS = 15.0
"""Within which a receiver must have answered."""
FIRST_WAIT, LONGEST_WAIT, FOR_SECONDS = 5.0, 4 * 3600.0, 24 * 3600.0
_LOOK = 0.5  # seconds between two looks for events that are due


def event_of(job: str, status: Status) -> dict[str, Any]:
    """The event of a job that has ended."""
    return {
        "id": f"evt_{uuid.uuid4().hex}",
        "object": "event",
        "type": f"audio.job.{status}",
        "created_at": int(time.time()),
        "data": {"id": job},
    }


class Webhooks:
    """Sends them.

    Args:
        settings: the fields `webhook_*`.
        resolve: looks a host up; by default the system's resolver.
    """

    def __init__(self, settings: Settings, resolve: Resolve | None = None) -> None:
        self._outgoing = Outgoing(
            SCHEMES[settings.webhook_urls], settings.webhook_ports, settings.webhook_networks, _refusal, resolve
        )

    async def check(self, url: str) -> None:
        """See whether a URL may be used now.

        Raises:
            HTTPFailure: 400, it may not.
        """
        await self._outgoing.addresses_of(self._outgoing.parts(url))

    async def serve(self, deliveries: Deliveries, aside: Callable[..., Awaitable[Any]]) -> None:
        """Send the events that are due, for ever; `aside` calls the methods of `deliveries`."""
        busy, tasks = Counter[str](), set[asyncio.Task[None]]()

        async def attempt(delivery: Delivery) -> None:
            over = False
            try:
                try:
                    over = await self.deliver(delivery)
                except Exception:  # one that cannot be sent waits like the others, and does not hold them up
                    log.exception("the webhook of %s was not sent", delivery.job)
                if over or time.time() - delivery.created_at > FOR_SECONDS:
                    await aside(deliveries.delivered, delivery.id)
                    return
                wait = min(FIRST_WAIT * 3 ** min(delivery.attempts, 9), LONGEST_WAIT)
                await aside(deliveries.postpone, delivery.id, wait * random.uniform(0.8, 1.2))
            except DatabaseFailed:
                log.warning("it could not be written what became of the webhook of %s; it is sent again", delivery.job)
            finally:
                busy[delivery.owner] -= 1

        try:
            while True:
                if tasks:  # the next one takes the place of one that is over
                    await asyncio.wait(tasks, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(_LOOK)
                try:
                    due = await aside(deliveries.due, busy)
                except DatabaseFailed as error:
                    log.warning("the webhooks of jobs could not be read: %s", error)
                    await asyncio.sleep(FIRST_WAIT)
                    continue
                for each in due:
                    busy[each.owner] += 1
                    tasks.add(task := asyncio.create_task(attempt(each)))
                    task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()

    async def deliver(self, delivery: Delivery) -> bool:
        """Send an event once; whether no further attempt is wanted."""
        now = datetime.now(timezone.utc)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "voice-clone-gateway",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Signer(delivery.secret).sign(delivery.id, now, delivery.body),
        }
        try:
            status = await asyncio.wait_for(self._post(delivery.url, headers, delivery.body.encode()), SECONDS)
        except (*FAILURES, HTTPFailure, Overloaded, asyncio.TimeoutError) as error:
            log.info("the webhook of %s was not delivered: %s", delivery.job, type(error).__name__)
            return False
        if status == 410:
            log.info("the webhook of %s is wanted no more", delivery.job)
        elif not 200 <= status < 300:
            log.info("the webhook of %s was answered with status %d", delivery.job, status)
        return status == 410 or 200 <= status < 300

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> int:
        parts = self._outgoing.parts(url)
        async with (
            await self._outgoing.pool(parts) as pool,
            pool.stream("POST", parts._replace(fragment="").geturl(), headers=headers, content=body) as response,
        ):
            return int(response.status)


def _refusal(why: str) -> HTTPFailure:
    return HTTPFailure(400, f"webhook_url cannot be used: {why}", "invalid_webhook", param="webhook_url")

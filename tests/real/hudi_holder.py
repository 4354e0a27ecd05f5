"""A foreign writer's process: it holds a table's lock object by the rules of Hudi 1.2.0's storage lock provider.

    python -m tests.real.hudi_holder --endpoint URL --uri s3://…/table_lock.json --seed N --evidence FILE

Nothing of the product is in here. The rules (`reference/hudi.md` §1.3):

- *tryLock*: GET; held and not past `validUntil` + 500 ms → no, whoever the owner is. Else PUT if-absent or if-match, with
  `validUntil` counted from before the write. Only a 200 is a yes; all else is a no, tried again a second later.
- *renewLock*, every renew interval: PUT if-match with the last ETag. 412 → the lock is gone; a 5xx or no answer → go on.
- *unlock*: PUT `expired: true`, `validUntil` kept; throttled → tried again up to three times; any other answer ends it.
- The holder trusts its lease until `validUntil` + 500 ms by its wall clock.

A new owner for each lock, as Hudi's LockManager makes. Two defects of Hudi's are left out, because either alone makes two holders
whatever the others do: taking a lock again from local memory after its release went unanswered, and working on when all
renewals of a whole validity failed.

Evidence, two JSON objects a lock: `{"from", "owner"}` when the answer gave it, and `{"from", "to", "owner", "end"}`, `to` being
the last moment at which the holder relied on it, both on CLOCK_MONOTONIC. Every fifth lock is neither renewed nor released,
as if the heartbeat's thread had died: the holder relies on it as long as its rules let it. SIGTERM ends it after the lock in
hand.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

VALIDITY_SECONDS: Final = 10.0
"""The shortest that Hudi accepts."""
RENEW_SECONDS: Final = 1.0
TRUST_MS: Final = 500
CALL_SECONDS: Final = VALIDITY_SECONDS / 5
POLL_SECONDS: Final = 1.0
RELEASE_PAUSES: Final = (1.0, 2.0, 4.0)
STEP_SECONDS: Final = 0.02
FORSAKEN_EVERY: Final = 5


@dataclass(slots=True)
class Lock:
    """A lock in hand."""

    owner: str
    valid_until: int
    etag: str

    def relied_on(self) -> bool:
        """Hudi's own view of its lease."""
        return _wall_ms() <= self.valid_until + TRUST_MS


class Holder:
    """One foreign writer."""

    def __init__(self, client: Any, uri: str, seed: int, evidence: Path) -> None:
        location = urlsplit(uri)
        self._client = client
        self._where = {"Bucket": location.netloc, "Key": location.path.removeprefix("/")}
        self._chance = random.Random(seed)
        self._evidence = evidence.open("a", buffering=1)
        self._stopping = False

    def stop(self, *_: object) -> None:
        """Take no further lock."""
        self._stopping = True

    def run(self) -> None:
        """Take the lock, work under it, give it back; until stopped."""
        taken = 0
        while not self._stopping:
            lock = self._try_lock()
            if lock is None:
                time.sleep(POLL_SECONDS)
                continue
            taken += 1
            began = time.monotonic()
            self._write_evidence({"from": began, "owner": lock.owner})
            forsaken = taken % FORSAKEN_EVERY == 0
            seconds = 2 * VALIDITY_SECONDS if forsaken else self._chance.uniform(0.2, 2.0)
            last, lost = self._work(lock, began, seconds, renew=not forsaken)
            end = "lapsed" if forsaken else "lost" if lost else "released"
            self._write_evidence({"from": began, "to": last, "owner": lock.owner, "end": end})
            if end == "released":
                self._unlock(lock)
            time.sleep(self._chance.uniform(1.0, 3.0))

    def _work(self, lock: Lock, began: float, seconds: float, *, renew: bool) -> tuple[float, bool]:
        """The last moment at which the lock was relied upon, and whether it turned out to be somebody else's."""
        last = renewed = began
        while True:
            now = time.monotonic()
            if not lock.relied_on() or now > began + seconds:
                return last, False
            last = now
            if renew and now >= renewed + RENEW_SECONDS:
                renewed = now
                if self._renew(lock) == "lost":
                    return last, True
            time.sleep(STEP_SECONDS)

    def _try_lock(self) -> Lock | None:
        condition: dict[str, str] = {"IfNoneMatch": "*"}
        try:
            found = self._client.get_object(**self._where)
            record = json.loads(found["Body"].read())
            if not record["expired"] and _wall_ms() <= record["validUntil"] + TRUST_MS:
                return None
            condition = {"IfMatch": found["ETag"]}
        except ClientError as error:
            if _status(error) != 404:
                return None
        except (BotoCoreError, HTTPClientError, ValueError):
            return None
        lock = Lock(str(uuid.uuid4()), _valid_until(), "")
        return lock if self._put(lock, condition, expired=False) == "won" else None

    def _renew(self, lock: Lock) -> str:
        renewed = Lock(lock.owner, max(_valid_until(), lock.valid_until + 1), lock.etag)
        outcome = self._put(renewed, {"IfMatch": lock.etag}, expired=False)
        if outcome == "won":
            lock.valid_until, lock.etag = renewed.valid_until, renewed.etag
        return outcome

    def _unlock(self, lock: Lock) -> None:
        for pause in (*RELEASE_PAUSES, None):
            if self._put(lock, {"IfMatch": lock.etag}, expired=True) != "throttled" or pause is None:
                return
            time.sleep(pause)

    def _put(self, lock: Lock, condition: dict[str, str], *, expired: bool) -> str:
        fields = {"expired": expired, "validUntil": lock.valid_until, "owner": lock.owner}
        body = json.dumps(fields, separators=(",", ":")).encode()
        try:
            answer = self._client.put_object(**self._where, Body=body, **condition)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            known = {412: "lost", 429: "throttled"}
            return "throttled" if code == "SlowDown" else known.get(_status(error), "unknown")
        except (BotoCoreError, HTTPClientError):
            return "unknown"
        lock.etag = answer["ETag"]
        return "won"

    def _write_evidence(self, fields: dict[str, Any]) -> None:
        self._evidence.write(json.dumps(fields) + "\n")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _valid_until() -> int:
    return _wall_ms() + round(VALIDITY_SECONDS * 1000)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _expect_nothing(params: dict[str, Any], **_: Any) -> None:
    params["headers"].pop("Expect", None)


def client(endpoint: str) -> Any:
    """As the released provider builds its own: no hidden retries, one bound for a call."""
    config = Config(
        s3={"addressing_style": "path"},
        retries={"total_max_attempts": 1},
        connect_timeout=CALL_SECONDS,
        read_timeout=CALL_SECONDS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    made = botocore.session.Session().create_client("s3", endpoint_url=endpoint, config=config)
    made.meta.events.register_last("before-call.s3", _expect_nothing)
    return made


def main() -> None:
    """Hold until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    given = parser.parse_args()
    holder = Holder(client(given.endpoint), given.uri, given.seed, given.evidence)
    handler: Callable[..., None] = holder.stop
    signal.signal(signal.SIGTERM, handler)
    holder.run()


if __name__ == "__main__":
    main()

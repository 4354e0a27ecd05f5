"""A foreign writer's process: it uses a table's lock object by the rules of Hudi 1.2.0's storage lock provider.

    python -m tests.real.hudi_holder --endpoint URL --uri s3://…/table_lock.json --seed N --evidence FILE

This file uses no code of the product. The rules (`reference/hudi.md` §1.3):

- *tryLock*: GET. If the lock is held and `validUntil` + 500 ms has not passed, the try fails, even if the owner is the same. Else
  PUT if-absent or if-match, with `validUntil` counted from before the write. Only a 200 is a success. The next try is a second
  later.
- *renewLock*, once per renew interval: PUT if-match with the last ETag. After a 412 the lock is lost; after a 5xx or a timeout
  the holder continues.
- *unlock*: PUT `expired: true` with the same `validUntil`. If throttled, up to three retries; any other answer ends it.
- The holder relies on its lease until `validUntil` + 500 ms by its wall clock.

Each lock has a new owner, as with Hudi's LockManager. Two defects of Hudi are not implemented, because each alone causes two
holders whatever the other contenders do: re-entering a lock from local memory after an unanswered release, and continuing when
all renewals of a whole validity have failed.

The evidence has two JSON objects per lock, with times on CLOCK_MONOTONIC: `{"from", "owner"}` at the acquisition, and `{"from",
"to", "owner", "end"}`, where `to` is the last moment at which the holder relied on the lock. Every fifth lock is neither
renewed nor released, as if the heartbeat thread had died. SIGTERM ends the process after its current lock.
"""

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
ABANDONED_EVERY: Final = 5


@dataclass(slots=True)
class Lock:
    """A lock that this process holds."""

    owner: str
    valid_until: int
    etag: str

    def relied_on(self) -> bool:
        """Whether Hudi would rely on its lease."""
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
        """Acquire no further lock."""
        self._stopping = True

    def run(self) -> None:
        """Acquire the lock, work under it, release it; until stopped."""
        acquired = 0
        while not self._stopping:
            lock = self._try_lock()
            if lock is None:
                time.sleep(POLL_SECONDS)
                continue
            acquired += 1
            began = time.monotonic()
            self._write_evidence({"from": began, "owner": lock.owner})
            abandoned = acquired % ABANDONED_EVERY == 0
            seconds = 2 * VALIDITY_SECONDS if abandoned else self._chance.uniform(0.2, 2.0)
            last, lost = self._work(lock, began, seconds, renew=not abandoned)
            end = "lapsed" if abandoned else "lost" if lost else "released"
            self._write_evidence({"from": began, "to": last, "owner": lock.owner, "end": end})
            if end == "released":
                self._unlock(lock)
            time.sleep(self._chance.uniform(1.0, 3.0))

    def _work(self, lock: Lock, began: float, seconds: float, *, renew: bool) -> tuple[float, bool]:
        """Rely on the lock. Return the last moment of it, and whether another owner has the lock now."""
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
    """A client as the released provider creates it: no retries inside the client, and one timeout per call."""
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
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    options = parser.parse_args()
    holder = Holder(client(options.endpoint), options.uri, options.seed, options.evidence)
    handler: Callable[..., None] = holder.stop
    signal.signal(signal.SIGTERM, handler)
    holder.run()


if __name__ == "__main__":
    main()

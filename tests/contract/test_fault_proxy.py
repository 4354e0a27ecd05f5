"""The faults of the chaos tests are what they say they are: seen by the client on one side, by the store on the other."""

from __future__ import annotations

import pytest

from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.handlers.lease.conditional import Absent, Found, IfAbsent, Throttled, Unknown, Won
from tests.servers.fault_proxy import CALM, CHANCE_FAULTS, Fault, Weather, fault_proxy
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.real

TIMEOUT_SECONDS = 2.0
"""Long, so that a short delay is one on a slow machine too."""
HANG_SECONDS = 0.5
SEEN = {
    Fault.CUT_BEFORE: (Unknown, False),
    Fault.CUT_AFTER: (Unknown, True),
    Fault.RESET_MID: (Unknown, True),
    Fault.DELAY_SHORT: (Won, True),
    Fault.DELAY_LONG: (Unknown, True),
    Fault.SLOW_DOWN: (Throttled, False),
    Fault.ERROR_BEFORE: (Unknown, False),
    Fault.ERROR_AFTER: (Unknown, True),
}


@pytest.mark.parametrize("fault", CHANCE_FAULTS)
async def test_a_fault_strikes_on_the_side_of_the_act_that_it_names(
    fault: Fault, s3_credentials: S3Server
) -> None:
    uri = f"s3://{s3_credentials.bucket()}/lock.json"
    outcome, acted = SEEN[fault]
    async with (
        fault_proxy(s3_credentials.endpoint, seed=1, request_timeout_seconds=TIMEOUT_SECONDS) as proxy,
        S3Store(S3Options(endpoint_url=s3_credentials.endpoint), request_timeout_seconds=5) as direct,
        S3Store(S3Options(endpoint_url=proxy.endpoint), request_timeout_seconds=TIMEOUT_SECONDS) as faulty,
    ):
        proxy.weather = Weather(share=1, faults=(fault,))
        written = await faulty.write(uri, b"{}", IfAbsent())
        proxy.weather = CALM

        assert isinstance(written, outcome), written
        assert proxy.injected == {fault: 1}
        assert proxy.requests == 1
        if acted:
            while not isinstance(await direct.read(uri), Found):  # a delayed request lands later
                pass
        else:
            assert await direct.read(uri) == Absent()
        assert isinstance(await faulty.read(uri), Found if acted else Absent)


async def test_what_hangs_is_answered_never_and_may_be_done_afterwards(s3_credentials: S3Server) -> None:
    bucket = s3_credentials.bucket()
    async with (
        fault_proxy(s3_credentials.endpoint, seed=1, request_timeout_seconds=TIMEOUT_SECONDS) as proxy,
        S3Store(S3Options(endpoint_url=proxy.endpoint), request_timeout_seconds=HANG_SECONDS) as hasty,
        S3Store(S3Options(endpoint_url=proxy.endpoint), request_timeout_seconds=5) as store,
    ):
        uris = [f"s3://{bucket}/hanging-{number}.json" for number in range(12)]
        with proxy.hanging(lambda request: "hanging" in request.path) as hang:
            for uri in uris:
                assert isinstance(await hasty.write(uri, b"{}", IfAbsent()), Unknown)
            assert isinstance(await store.write(f"s3://{bucket}/other.json", b"{}", IfAbsent()), Won)
            assert 0 < len(hang.caught) == proxy.injected[Fault.HANG] <= len(uris)
        late = 0
        while late == 0:
            late = len([uri for uri in uris if isinstance(await store.read(uri), Found)])
        assert late < len(uris)

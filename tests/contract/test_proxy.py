"""Each fault of the proxy has the effect that its name promises, on the client and on the store."""

import pytest

from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.handlers.lease.conditional import Absent, Found, IfAbsent, Refused, Throttled, Unknown, Won
from tests.servers.proxy import CALM, CHANCE_FAULTS, Fault, Proxy, Weather
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.real

TIMEOUT_SECONDS = 2.0
"""The proxy's delays are fractions or multiples of it."""
PATIENT_SECONDS = 60.0
"""The client's timeout where the proxy answers. The limit only ends a hang."""
HANG_SECONDS = 0.5
EFFECTS = {
    Fault.CUT_BEFORE: (Unknown, False),
    Fault.CUT_AFTER: (Unknown, True),
    Fault.RESET_MID: (Unknown, True),
    Fault.DELAY_SHORT: (Won, True),
    Fault.DELAY_LONG: (Unknown, True),
    Fault.SLOW_DOWN: (Throttled, False),
    Fault.EXPIRED: (Refused, False),
    Fault.ERROR_BEFORE: (Unknown, False),
    Fault.ERROR_AFTER: (Unknown, True),
}


@pytest.mark.parametrize("fault", CHANCE_FAULTS)
async def test_a_fault_occurs_before_or_after_the_store_acts_as_its_name_says(
    fault: Fault, s3_credentials: S3Server
) -> None:
    uri = f"s3://{s3_credentials.bucket()}/lock.json"
    outcome, acted = EFFECTS[fault]
    seconds = TIMEOUT_SECONDS if fault is Fault.DELAY_LONG else PATIENT_SECONDS
    with Proxy(s3_credentials.endpoint, seed=1, timeout_seconds=TIMEOUT_SECONDS, keep_alive=False) as proxy:
        async with (
            S3Store(
                S3Options(endpoint_url=s3_credentials.endpoint), request_timeout_seconds=PATIENT_SECONDS
            ) as direct,
            S3Store(S3Options(endpoint_url=proxy.endpoint), request_timeout_seconds=seconds) as faulty,
        ):
            proxy.weather = Weather(share=1, faults=(fault,))
            written, calls = await faulty.write(uri, b"{}", IfAbsent()), 1
            while (
                proxy.requests.total() == 0
            ):  # on a busy machine the timeout may end before the request was sent
                written, calls = await faulty.write(uri, b"{}", IfAbsent()), calls + 1
            proxy.weather = CALM

            assert isinstance(written, outcome), written
            assert proxy.injected == {fault: proxy.requests.total()}
            assert proxy.requests.total() <= calls
            if acted:
                while not isinstance(await direct.read(uri), Found):  # a delayed request is applied later
                    pass
            else:
                assert await direct.read(uri) == Absent()


async def test_a_hanging_request_gets_no_answer_and_may_be_applied_afterwards(
    s3_credentials: S3Server,
) -> None:
    bucket = s3_credentials.bucket()
    with Proxy(s3_credentials.endpoint, seed=1, timeout_seconds=TIMEOUT_SECONDS, keep_alive=False) as proxy:
        async with (
            S3Store(S3Options(endpoint_url=proxy.endpoint), request_timeout_seconds=HANG_SECONDS) as hasty,
            S3Store(S3Options(endpoint_url=proxy.endpoint), request_timeout_seconds=PATIENT_SECONDS) as store,
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

"""Which combinations of options are valid."""

from __future__ import annotations

from typing import Any

import pytest

from lakewarden.events.access import Access, AccessError

CLIENT: dict[str, Any] = {
    "oauth_token_url": "https://id/token",
    "oauth_client_id": "me",
    "oauth_client_secret_file": "/secret",
}
SASL: dict[str, Any] = {"security_protocol": "SASL_SSL"}
OAUTH: dict[str, Any] = {**SASL, "sasl_mechanism": "OAUTHBEARER"}
USER: dict[str, Any] = {"sasl_username": "me", "sasl_password": "hush"}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"security_protocol": "SSL"},
        {"security_protocol": "SSL", "ssl_certfile": "/c"},
        {
            "security_protocol": "SSL",
            "ssl_certfile": "/c",
            "ssl_keyfile": "/k",
            "ssl_key_password_file": "/p",
        },
        {**SASL, **USER},
        {**SASL, "sasl_username": "me", "sasl_password_file": "/p", "ssl_certfile": "/c"},
        {**OAUTH, **CLIENT},
        {**OAUTH, **CLIENT, "oauth_token_url": "http://localhost:8080/token"},
        {**OAUTH, "oauth_token_provider": "module:function?region=x"},
        {**OAUTH, "oauth_token_file": "/t"},
        {**OAUTH, **CLIENT, "oauth_extensions": "logicalCluster=lkc-1, identityPoolId=pool=1"},
    ],
)
def test_valid_combinations(values: dict[str, Any]) -> None:
    Access(**values).check()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"security_protocol": "TLS"}, "x_security_protocol must be one of PLAINTEXT, SSL"),
        ({**SASL, **USER, "sasl_mechanism": "GSSAPI"}, "x_sasl_mechanism must be one of PLAIN, SCRAM"),
        ({"ssl_cafile": "/c"}, "x_ssl_cafile is set, but x_security_protocol is PLAINTEXT"),
        ({"security_protocol": "SSL", "ssl_keyfile": "/k"}, "x_ssl_keyfile needs x_ssl_certfile"),
        ({**SASL, "sasl_username": "me"}, "x_sasl_password or x_sasl_password_file missing"),
        ({**SASL, "sasl_password": "hush"}, "x_sasl_username missing"),
        ({**SASL, **USER, "sasl_password_file": "/p"}, "are both set; remove one"),
        (OAUTH, "x_oauth_token_url and x_oauth_client_id and x_oauth_client_secret_file missing"),
        ({**OAUTH, **CLIENT, "oauth_client_id": None}, "x_oauth_client_id missing"),
        ({**OAUTH, **CLIENT, "oauth_token_provider": "m:f"}, "use a provider or client credentials"),
        ({**OAUTH, "oauth_token_provider": "m.f"}, "x_oauth_token_provider must be module:function"),
        (
            {**OAUTH, **CLIENT, "oauth_token_file": "/t"},
            "x_oauth_token_file and x_oauth_token_url are both set",
        ),
        ({**OAUTH, "oauth_token_provider": "m:f", "oauth_token_file": "/t"}, "are both set; remove one"),
        *(
            ({**OAUTH, **CLIENT, "oauth_extensions": wrong}, f"x_oauth_extensions: {why}")
            for wrong, why in (
                ("logicalCluster", "the SASL extension logicalCluster needs a value"),
                ("logicalCluster=", "the SASL extension logicalCluster needs a value"),
                ("auth=Bearer hush", "'auth' can't be the name"),
                ("a-b=1", "'a-b' can't be the name"),
                ("=1", "'' can't be the name"),
                ("pool=\x01auth=Bearer hush", "the SASL extension pool needs a value"),
                ("pool=é", "the SASL extension pool needs a value"),
            )
        ),
        ({**OAUTH, **CLIENT, "oauth_token_url": "http://id/token"}, "must be an https:// URL"),
        ({**OAUTH, **CLIENT, "oauth_token_url": "https://a:hush@id/token"}, "must not contain credentials"),
    ],
)
def test_an_invalid_combination_names_the_options_as_the_caller_does(
    values: dict[str, Any], why: str
) -> None:
    with pytest.raises(AccessError) as caught:
        Access(**values).check(lambda option: f"x_{option}")

    assert why in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "given, found",
    [
        (None, {}),
        ("logicalCluster=lkc-1,", {"logicalCluster": "lkc-1"}),
        (
            "identityPoolId=pool-1, pool-2 ,logicalCluster=lkc-1",
            {"identityPoolId": "pool-1,pool-2", "logicalCluster": "lkc-1"},
        ),
        ("a=x=1,b=", {"a": "x=1", "b": ""}),
        ("a=1,pool", {"a": "1", "pool": ""}),
    ],
)
def test_a_part_that_is_no_name_belongs_to_the_value_before_it(
    given: str | None, found: dict[str, str]
) -> None:
    """A Confluent client may name several identity pools."""
    assert Access(oauth_extensions=given).extensions == found

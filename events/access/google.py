"""Credentials of Google that obstore can't use itself, through google-auth: workload identity federation and impersonation.

obstore uses the key of a service account, gcloud's own login, and the metadata service. If the file that
`GOOGLE_APPLICATION_CREDENTIALS` names (or gcloud's) is of another type, obstore's error names the type. google-auth exchanges
tokens by such a file, and reads again what the file refers to whenever it needs a new one.
"""

import re
from collections.abc import Callable
from typing import Any

SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_UNKNOWN_TYPE = re.compile(r"unknown variant `(\w+)`")


class GoogleCredentialsError(ValueError):
    """The credentials can't be used. The message says what is missing, and what works instead."""


def google_client(connect: Callable[..., Any]) -> Any:
    """What `connect` makes, with a `credential_provider` of google-auth if obstore can't use the credentials itself."""
    from obstore.exceptions import BaseError

    try:
        return connect()
    except BaseError as error:
        provider = _provider(str(error))
        if provider is None:
            raise
        return connect(credential_provider=provider)


def _provider(refusal: str) -> Any:
    """The provider for obstore after this refusal of its own, or None if the refusal is not about the type of the credentials."""
    found = _UNKNOWN_TYPE.search(refusal)
    if found is None:
        return None
    kind = f"the Google credentials are of type {found[1]}"
    try:
        import google.auth
        from google.auth.credentials import with_scopes_if_required
        from google.auth.exceptions import GoogleAuthError
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError as error:
        raise GoogleCredentialsError(
            f"{kind}, which needs the packages google-auth and requests (the extra google): {error}; without them, the key of a "
            "service account, gcloud's login and the metadata service (GKE's workload identity) work"
        ) from None
    try:
        # With scopes, it would ask Google for the project's id first, on this thread and for up to two minutes.
        credentials, _ = google.auth.default()
        scoped: Any = with_scopes_if_required(credentials, SCOPES)  # type: ignore[no-untyped-call, unused-ignore]
        return GoogleCredentialProvider(scoped)
    except Exception as error:  # google-auth raises whatever a wrong field leads to
        why = str(error) if isinstance(error, GoogleAuthError) else f"{type(error).__name__}: {error}"
        raise GoogleCredentialsError(f"{kind}, and google-auth can't use them: {why}") from error

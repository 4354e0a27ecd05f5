"""Connect: how a client of Kafka authenticates, for the agent and for writers alike (docs/decisions/0012).

| file | what it holds |
| --- | --- |
| `options.py` | the options, and which combinations are valid |
| `files.py` | certificates, keys and passwords, read again when their files change |
| `tokens.py` | access tokens for OAUTHBEARER: client credentials, or a provider of the user's own |
| `clients.py` | the options as arguments of aiokafka's clients, their end, and the partition of a table |
| `codes.py` | the error codes of Kafka that aiokafka doesn't know |
| `google.py` | credentials of Google's storage that obstore can't use itself; here for agent and sinks alike |
| `batches.py` | every batch that a broker accepts, in a form that can be read |

- **Secrets are read from files at each connect.** A certificate, password or token that was rotated is used by the next
  connection. Open connections stay as they are; the broker decides how long they are accepted.
- **A file that can't be read doesn't stop a running client.** The last content is used, and an error is logged.
- **No secret leaves this package**, except into aiokafka's arguments: not into a `repr`, a log or an error.
- **No connection is used after a long pause.** Load balancers drop idle ones without a word, so a client closes them before.
- **An error of a token provider is a `KafkaError`** (`TokenError`), because aiokafka's background tasks end at any other.
"""

from lakewarden.events.access.batches import read_every_batch as read_every_batch
from lakewarden.events.access.clients import (
    IDLE_SECONDS as IDLE_SECONDS,
    check_files as check_files,
    client_arguments as client_arguments,
    connections_of as connections_of,
    partition_of as partition_of,
    read_password_again as read_password_again,
    repeat_requests as repeat_requests,
    stop_client as stop_client,
    token_problem as token_problem,
)
from lakewarden.events.access.options import OAUTH as OAUTH, Access as Access, AccessError as AccessError
from lakewarden.events.access.tokens import (
    TokenError as TokenError,
    guarded_provider as guarded_provider,
    in_thread as in_thread,
)

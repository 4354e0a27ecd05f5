"""The Python of a Connect server, for machines so busy that Spark's ten seconds for a worker to connect back are too short.

The process of a query's function connects back to Spark first, and imports PySpark then. Others are Python as it is.
"""

import os
import sys
from typing import Any

FUNCTION = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"


def main() -> None:
    if FUNCTION not in sys.argv:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606
    import socket

    connection = socket.create_connection(("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"])))
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    connection.sendall(len(secret).to_bytes(4, "big") + secret)
    length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    assert connection.recv(length, socket.MSG_WAITALL) == b"ok"
    connection.sendall(os.getpid().to_bytes(4, "big"))
    file: Any = connection.makefile("rwb", 65536)

    from pyspark.sql.connect.streaming.worker.foreach_batch_worker import main as serve

    try:
        serve(file, file)
    finally:
        file.close()


if __name__ == "__main__":
    main()

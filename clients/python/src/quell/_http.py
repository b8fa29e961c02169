"""The transport: HTTP/1.1 with keep-alive, and failures as `QuellError`.

Threads share one pool of connections. The transport never repeats a request: it only reports
whether a failed one may have had an effect. Its callers decide on retries.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import ssl
import threading
import time
from urllib.parse import urlsplit

from . import errors
from ._json import loads
from .errors import QuellError

VERSION = "quell-python/0.1.0"
CONNECT_TIMEOUT = 5.0
MAX_IDLE = 32
REUSE_FOR = 5.0
"""The seconds for which an idle connection is reused: the server closes it after 10 s."""


class Call:
    """A handle on a request in flight, with which another thread can end it."""

    def __init__(self) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self._aborted = False
        self._lock = threading.Lock()

    def attach(self, connection: http.client.HTTPConnection | None) -> None:
        """Names the connection of the request, or None at its end. Raises QuellError after `abort`.

        From then on, an `abort` leaves the connection alone: another request may use it.
        """
        with self._lock:
            self._connection = connection
            if self._aborted:
                raise QuellError("the request was cancelled", kind="cancelled")

    def abort(self) -> None:
        """Ends the request; the thread that waits for it fails with a `QuellError`."""
        with self._lock:
            self._aborted = True
            if self._connection is not None:
                _shut(self._connection)


class Transport:
    """A pool of connections to one server. Threads may share it, and it survives a fork."""

    def __init__(
        self, url: str, token: str | None, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no server: give a URL such as http://127.0.0.1:7777")
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl_context or ssl.create_default_context()
        self._headers = {"user-agent": VERSION, "accept": "application/json"}
        if token:
            if not (token.isascii() and token.isprintable()):
                raise ValueError("the token has characters that a header cannot hold")
            self._headers["authorization"] = f"Bearer {token}"
        self._lock = threading.Lock()
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._pid = os.getpid()
        self._closed = False

    def exchange(
        self, method: str, path: str, body: str | None, timeout: float, call: Call | None = None
    ) -> str:
        """Sends one request and returns the text of its successful response.

        `timeout` limits the seconds without progress. Raises `Unavailable` where the request had
        no effect, `UnknownOutcome` where its response is missing, else by the response's status.
        """
        connection = self._take(timeout)
        try:
            if call is not None:
                call.attach(connection)
            status, retry_after, text = self._send(connection, method, path, body)
            if call is not None:
                call.attach(None)
        except BaseException:
            self._drop(connection)
            raise
        self._give(connection)
        if 200 <= status < 300:
            return text
        raise problem(status, text, retry_after)

    def close(self) -> None:
        """Closes all connections and ends the requests in flight."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                _shut(connection)
        for connection, _ in idle:
            connection.close()

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> tuple[int, str | None, str]:
        headers = dict(self._headers)
        if body is not None:
            headers["content-type"] = "application/json"
        data = body.encode() if body is not None else None
        try:
            # A server that refuses a large body may close before it has read all of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._prefix + path, data, headers)
            response = connection.getresponse()
            content = response.read()
            return response.status, response.getheader("retry-after"), content.decode()
        except (OSError, http.client.HTTPException, ValueError) as error:
            name = type(error).__name__
            raise errors.UnknownOutcome(f"{method} {path}: no valid response: {name}: {error}") from error

    def _take(self, timeout: float) -> http.client.HTTPConnection:
        while (popped := self._pop()) is not None:
            connection, idle_since = popped
            if time.monotonic() < idle_since + REUSE_FOR and _is_open(connection):
                with contextlib.suppress(OSError, AttributeError):
                    connection.sock.settimeout(timeout)
                    return self._mark(connection)
            connection.close()
        connection = self._new(min(timeout, CONNECT_TIMEOUT))
        try:
            connection.connect()
            connection.sock.settimeout(timeout)
            return self._mark(connection)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            server = f"{self._host}:{connection.port}"
            raise errors.Unavailable(f"cannot connect to {server}: {error}") from error
        except BaseException:
            connection.close()
            raise

    def _new(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout, context=self._tls
        )

    def _pop(self) -> tuple[http.client.HTTPConnection, float] | None:
        with self._lock:
            if self._pid != os.getpid():
                # The parent process owns the connections that a fork copied.
                self._idle, self._busy, self._pid = [], set(), os.getpid()
            return self._idle.pop() if self._idle else None

    def _mark(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        with self._lock:
            if self._closed:
                raise QuellError("the client is closed", kind="closed")
            self._busy.add(connection)
        return connection

    def _give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._busy.discard(connection)
            # http.client drops the socket where the response ended the connection.
            if connection.sock is not None and not self._closed and len(self._idle) < MAX_IDLE:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """Returns whether an idle connection still is: one that can be read has ended."""
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            return not poll.poll(0)
        return not select.select([connection.sock], [], [], 0)[0]
    except (OSError, ValueError, TypeError):
        return False


def _shut(connection: http.client.HTTPConnection) -> None:
    """Ends a connection that another thread reads: `close` would not wake that thread."""
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def problem(status: int, text: str, retry_after: str | None = None) -> QuellError:
    """Returns the error of a response whose status is not 2xx."""
    cause: dict[str, object] = {}
    with contextlib.suppress(ValueError, TypeError, KeyError):
        found = loads(text)["error"]
        cause = found if isinstance(found, dict) else {}
    field, id = cause.get("field"), cause.get("id")
    return _class_of(status)(
        str(cause.get("message") or f"the server answered with status {status}"),
        kind=str(cause.get("kind") or "http"),
        field=str(field) if field is not None else None,
        status=status,
        id=str(id) if id is not None else None,
        retry_after=float(retry_after) if retry_after and retry_after.isdecimal() else None,
    )


def _class_of(status: int) -> type[QuellError]:
    if status in (429, 503):
        return errors.Unavailable
    if status in (408, 502, 504):
        return errors.UnknownOutcome
    if status in (401, 403):
        return errors.Unauthorized
    if status == 404:
        return errors.NotFound
    return errors.Refused if 400 <= status < 500 else errors.ServerError

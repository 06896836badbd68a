"""Addresses, tokens and connections between a learner and its actors."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from offline_rl.online.actors.frames import MAX_BODY, Frame, FrameError, Kind, encode, read_frame
from offline_rl.utils.errors import UserError

HANDSHAKE_S = 20.0  # time limit of the first frames of a connection
HANDSHAKE_BYTES = 1 << 16  # maximum body of a frame before the token is verified
MIN_TOKEN = 16  # minimum number of characters of a token


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`. Raises UserError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UserError(
            f"actor_address={address} is not <host>:<port>. Use, for example, 127.0.0.1:7000."
        )
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return True if only processes of this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name
        return host == "localhost"


def read_token(file: str | None) -> bytes:
    """Return the token in a file, or b"" for None. Raises UserError."""
    if file is None:
        return b""
    path = Path(file)
    try:
        token, mode = path.read_bytes().strip(), path.stat().st_mode
    except OSError as error:
        raise UserError(f"token_file={file} cannot be read: {error.strerror}") from None
    if len(token) < MIN_TOKEN:
        raise UserError(
            f"token_file={file} has fewer than {MIN_TOKEN} characters. Create it with: "
            f"(umask 077; openssl rand -hex 32 > {file})"
        )
    if mode & 0o077:
        raise UserError(f"token_file={file} is open to other users. Run: chmod 600 {file}")
    return token


def proof_of(token: bytes, nonce: str) -> str:
    """Return the proof that an actor knows the token, for the learner's `nonce`."""
    return hmac.new(token, nonce.encode(), hashlib.sha256).hexdigest()


def listen(address: str) -> socket.socket:
    """Return a listening socket. Raises UserError, for example if the address is in use."""
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen()
    except OSError as error:
        server.close()
        reason = f"{error.strerror or error}"
        raise UserError(
            f"actor_address={address} is not available ({reason}). Stop the learner that uses it, "
            "or use another address."
        ) from None
    return server


class Connection:
    """A connection that sends and receives frames. Several threads may send."""

    def __init__(self, channel: socket.socket) -> None:
        self._socket, self._lock = channel, threading.Lock()
        if channel.family != socket.AF_UNIX:
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.settimeout(HANDSHAKE_S)
        self._max_body = HANDSHAKE_BYTES

    def open(self) -> None:
        """End the handshake: remove the limits on the size and time of frames."""
        self._socket.settimeout(None)
        self._max_body = MAX_BODY

    def send(
        self, kind: Kind, fields: Mapping[str, Any] | None = None, **arrays: np.ndarray
    ) -> None:
        """Send a frame. Raises OSError if the connection is closed."""
        self.send_bytes(encode(kind, fields, **arrays))

    def send_bytes(self, frame: bytes) -> None:
        """Send the bytes of a frame. Raises OSError if the connection is closed."""
        with self._lock:
            self._socket.sendall(frame)

    def receive(self) -> Frame:
        """Return the next frame. Raises FrameError, or OSError if the connection is closed."""
        frame = read_frame(self._socket.recv, self._max_body)
        if frame is None:
            raise ConnectionError("the connection was closed")
        return frame

    def has_frame(self) -> bool:
        """Return True if `receive` would not wait for the start of a frame."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def expect(self, kind: Kind) -> Frame:
        """Return the next frame, which must be of this kind. Raises UserError for an ERROR."""
        frame = self.receive()
        if frame.kind == Kind.ERROR:
            raise UserError(frame.fields.get("error", "unknown error"))
        if frame.kind != kind:
            raise FrameError(f"its kind is {frame.kind.name}, but {kind.name} was expected")
        return frame

    def close(self) -> None:
        """Close the connection. A thread that waits in `receive` gets an OSError."""
        close_socket(self._socket)


def close_socket(channel: socket.socket) -> None:
    """Close a socket. A thread that waits for a connection or for data gets an OSError."""
    with suppress(OSError):  # it is closed already
        channel.shutdown(socket.SHUT_RDWR)
    channel.close()

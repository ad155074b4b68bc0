"""The network: media from ``http(s)`` addresses, each downloaded once, and whether the hub can be reached.

Every name is resolved here, all its addresses are judged, and the connection goes to the very address that was judged:
a name that changes between the two gains nothing. Redirects are followed one by one under the same rules. Proxies and
credentials in addresses are not used. The hub is asked once and quickly, so that nobody waits through retries to hear
that it cannot be reached; then its libraries use for a moment what they have in their caches.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import os
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from mmgrpo.errors import MediaError, explain

_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_CHUNK = 1 << 16
_PLAIN = "/%:@!$&'()*+,;=?~[]"
"""Letters of a path or a query that are sent as they are; others (blanks, letters beyond ASCII) become %XX."""

_HUB_SECONDS = 5.0
_PROXIES = ("https_proxy", "http_proxy", "all_proxy")
_FLAGS = {
    "huggingface_hub.constants": ("HF_HUB_OFFLINE",),
    "datasets.config": ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"),
}

Resolve = Callable[[str, int], Sequence[str]]
"""Host and port to addresses."""
Connect = Callable[[str, int, float], socket.socket]
"""Address, port and seconds to a connected socket."""


def resolve(host: str, port: int) -> list[str]:
    """Look a name up.

    Args:
        host: A name or an address.
        port: Of the service.

    Returns:
        Every address, as text.
    """
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def connect(address: str, port: int, seconds: float) -> socket.socket:
    """Open a connection to an address that was judged.

    Args:
        address: Where to.
        port: Of the service.
        seconds: Longest wait.
    """
    return socket.create_connection((address, port), timeout=seconds)


def cache_folder() -> Path:
    """Give the folder of downloads: ``mmgrpo/media`` in the user's cache (``XDG_CACHE_HOME``)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmgrpo" / "media"


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloads:
    """Downloads addresses, each once, and gives their files."""

    max_bytes: int
    """Largest file."""
    max_seconds: float
    """Longest download, redirects included."""
    folder: Path | None = None
    """Where files are kept; None: :func:`cache_folder`."""
    resolve: Resolve = resolve
    """Looks names up."""
    connect: Connect = connect
    """Opens connections."""

    def __call__(self, address: str) -> Path:
        """Give the file of an address.

        Args:
            address: ``http://`` or ``https://``.

        Returns:
            The downloaded file, also when it was downloaded by an earlier run.

        Raises:
            MediaError: Not reachable, not allowed, too large or too slow.
        """
        folder = self.folder or cache_folder()
        path = folder / hashlib.sha256(address.encode()).hexdigest()
        if path.is_file():
            return path
        try:
            content = self._follow(address, time.monotonic() + self.max_seconds)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, MediaError):
                raise
            raise _refused("A media item cannot be downloaded", address, f"{type(error).__name__}: {error}") from error
        _write(path, content)
        return path

    def _follow(self, address: str, deadline: float) -> bytes:
        start = address
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._get(urlsplit(address), deadline)
            if isinstance(answer, bytes):
                return answer
            address = urljoin(address, answer)
        raise _refused("A media item's address redirects too often", start, f"more than {_MAX_REDIRECTS} redirects")

    def _get(self, parts: SplitResult, deadline: float) -> bytes | str:
        """Ask one address; give the content, or where it redirects to."""
        address = parts.geturl()
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise _refused("A media item's address is not allowed", address, "no plain http or https address")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        connection = self._open(parts.hostname, port, parts.scheme == "https", address, deadline)
        try:
            target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_PLAIN)
            host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
            connection.request("GET", target, headers={"Host": host, "User-Agent": "mmgrpo", "Connection": "close"})
            response = connection.getresponse()
            if response.status in _REDIRECTS and response.getheader("Location"):
                return str(response.getheader("Location"))
            if response.status != 200:
                raise _refused("A media item cannot be downloaded", address, f"{response.status} {response.reason}")
            return self._body(response, connection, address, deadline)
        finally:
            connection.close()

    def _open(self, host: str, port: int, secure: bool, address: str, deadline: float) -> http.client.HTTPConnection:
        """Connect to an address of the host that anyone may reach."""
        addresses = list(self.resolve(host, port))
        private = [one for one in addresses if not ipaddress.ip_address(one.split("%")[0]).is_global]
        if private or not addresses:
            raise _refused("A media item's address is not a public one", address, ", ".join(private) or "no address")
        link = self._reach(addresses, port, address, deadline)
        connection = http.client.HTTPConnection(host, port)
        connection.sock = ssl.create_default_context().wrap_socket(link, server_hostname=host) if secure else link
        return connection

    def _reach(self, addresses: Sequence[str], port: int, address: str, deadline: float) -> socket.socket:
        """Connect to the first of a host's addresses that answers: a machine may have no route to some of them."""
        for number, one in enumerate(addresses, start=1):
            try:
                return self.connect(one, port, _left(deadline, address) / (len(addresses) - number + 1))
            except OSError:
                if number == len(addresses):
                    raise
        raise AssertionError("a host without an address was refused before")

    def _body(
        self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, address: str, deadline: float
    ) -> bytes:
        announced = response.getheader("Content-Length") or "0"
        if announced.isdigit() and int(announced) > self.max_bytes:
            raise _too_large(address, f"{int(announced):,} bytes", self.max_bytes)
        content = bytearray()
        while True:
            left = _left(deadline, address)
            if connection.sock is not None:
                connection.sock.settimeout(left)
            piece = response.read1(_CHUNK)
            if not piece:
                return bytes(content)
            content += piece
            if len(content) > self.max_bytes:
                raise _too_large(address, f"more than {self.max_bytes:,} bytes", self.max_bytes)


def _left(deadline: float, address: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _refused("A media item takes too long to download", address, "data.remote_seconds have passed")
    return left


def _write(path: Path, content: bytes) -> None:
    """Write the whole file or none of it: another process may read it at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def _too_large(address: str, got: str, limit: int) -> MediaError:
    return MediaError(
        explain(
            "A media item is too large to download",
            where=address[:300],
            expected=f"at most {limit:,} bytes",
            got=got,
            fix="Raise data.remote_bytes, or download it yourself.",
        )
    )


def _refused(what: str, address: str, got: str) -> MediaError:
    return MediaError(
        explain(what, where=address[:300], got=got, fix="Download the file yourself, and name the local path.")
    )


def unreachable() -> str:
    """Say why the hub cannot be reached.

    Returns:
        The reason; empty where it can be, or where a proxy stands between and nothing is known.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        return ""
    parts = urlsplit(constants.ENDPOINT)
    host, port = parts.hostname or "huggingface.co", parts.port or (80 if parts.scheme == "http" else 443)
    return _try(lambda: socket.create_connection((host, port), timeout=_HUB_SECONDS).close(), host)


def _try(connect: Callable[[], Any], host: str) -> str:
    """Connect, and once more after a moment: one lost packet is no missing network."""
    reason = ""
    for pause in (0.0, 0.5):
        time.sleep(pause)
        try:
            connect()
        except OSError as error:
            reason = f"{host}: {error.strerror or error}"
        else:
            return ""
    return reason


@contextlib.contextmanager
def hub_or_cache(name: str | Path) -> Generator[str]:
    """Let the hub's libraries load something: from the hub, or at once from their caches where it is out of reach.

    Args:
        name: A hub id, or a local path, for which nothing is asked.

    Yields:
        Why the hub cannot be reached; empty where it can, or is not needed.
    """
    reason = "" if Path(name).expanduser().exists() else unreachable()
    if not reason:
        yield ""
        return
    before = [
        (sys.modules[module], flag, getattr(sys.modules[module], flag))
        for module, flags in _FLAGS.items()
        for flag in flags
        if module in sys.modules and hasattr(sys.modules[module], flag)
    ]
    for module, flag, _ in before:
        setattr(module, flag, True)
    try:
        yield reason
    finally:
        for module, flag, value in before:
            setattr(module, flag, value)

"""Media from the network: only when allowed, only from public addresses, with limits, each once."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmgrpo.addresses import PathPolicy
from mmgrpo.config.data import Columns, Template
from mmgrpo.data.network import Downloads, resolve
from mmgrpo.data.samples import to_sample
from mmgrpo.errors import MediaError

PUBLIC = "93.184.215.14"
"""What names resolve to here; no connection ever goes there."""


class _Pages(http.server.BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(f"{self.headers['Host']}{self.path}")
        if self.path == "/loop":
            self._redirect("/loop")
        elif self.path == "/private":
            self._redirect("http://127.0.0.1/secret")
        elif self.path == "/file":
            self._redirect("file:///etc/hostname")
        elif self.path == "/moved":
            self._redirect("/a.png")
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(40):
                time.sleep(0.05)
                self.wfile.write(b"x")
        elif self.path == "/big":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x" * 5000)
        elif self.path == "/told":
            self.send_response(200)
            self.send_header("Content-Length", "999999999")
            self.end_headers()
        elif self.path in ("/a.png", "/%E5%9B%BE%201.png?q=%C3%BC&w=a+b%20c"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"picture")
        else:
            self.send_error(404)

    def _redirect(self, to: str) -> None:
        self.send_response(302)
        self.send_header("Location", to)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[int, list[str]]]:
    asked: list[str] = []
    pages = type("Pages", (_Pages,), {"asked": asked})
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), pages)
    served.daemon_threads = True
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served.server_port, asked
    served.shutdown()
    thread.join()
    served.server_close()


def downloads(folder: Path, port: int, **keys: object) -> Downloads:
    """Names resolve to a public address (numbers to themselves), and every connection goes to the local server."""

    def look_up(host: str, _: int) -> list[str]:
        return resolve(host, 80) if host[0].isdigit() or host == "localhost" else [PUBLIC]

    def link(address: str, _: int, seconds: float) -> socket.socket:
        assert address == PUBLIC
        return socket.create_connection(("127.0.0.1", port), timeout=seconds)

    limits = {"max_bytes": 1000, "max_seconds": 5.0} | keys
    return Downloads(folder=folder, resolve=look_up, connect=link, **limits)


def test_a_public_address_is_downloaded_once(tmp_path: Path, server: tuple[int, list[str]]):
    port, asked = server
    get = downloads(tmp_path, port)
    path = get("http://pictures.example/a.png")
    assert path.read_bytes() == b"picture"
    assert get("http://pictures.example/a.png") == path
    assert asked == ["pictures.example/a.png"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_blanks_and_letters_of_every_script_may_stand_in_an_address(tmp_path: Path, server: tuple[int, list[str]]):
    port, asked = server
    get = downloads(tmp_path, port)
    assert get("http://pictures.example/图 1.png?q=ü&w=a+b%20c").read_bytes() == b"picture"
    assert len(asked) == 1


def test_an_address_of_a_host_that_does_not_answer_gives_way_to_the_next(
    tmp_path: Path, server: tuple[int, list[str]]
):
    port, _ = server
    tried: list[str] = []

    def link(address: str, _: int, seconds: float) -> socket.socket:
        tried.append(address)
        if ":" in address:
            raise OSError("no route to host")
        return socket.create_connection(("127.0.0.1", port), timeout=seconds)

    both = ["2606:2800:21f:cb07:6820:80da:af6b:8b2c", PUBLIC]
    get = Downloads(max_bytes=100, max_seconds=5.0, folder=tmp_path, resolve=lambda host, port: both, connect=link)
    assert get("http://pictures.example/a.png").read_bytes() == b"picture"
    assert tried == both
    both.pop()
    with pytest.raises(MediaError, match="no route to host"):
        get("http://pictures.example/b.png")


def test_redirects_are_followed_to_public_addresses_only(tmp_path: Path, server: tuple[int, list[str]]):
    get = downloads(tmp_path, server[0])
    assert get("http://pictures.example/moved").read_bytes() == b"picture"
    for path, says in (("private", "not a public one"), ("loop", "too often"), ("file", "not allowed")):
        with pytest.raises(MediaError, match=says):
            get(f"http://pictures.example/{path}")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254", "192.168.1.1",
                                  "0.0.0.0", "[::ffff:127.0.0.1]", "[fe80::1]"])  # fmt: skip
def test_addresses_of_this_machine_and_of_private_networks_are_refused(
    host: str, tmp_path: Path, server: tuple[int, list[str]]
):
    port, asked = server
    get = Downloads(max_bytes=1000, max_seconds=5.0, folder=tmp_path)
    with pytest.raises(MediaError, match="not a public one"):
        get(f"http://{host}:{port}/a.png")
    assert asked == []


def test_a_name_of_which_one_address_is_private_is_refused(tmp_path: Path):
    get = Downloads(max_bytes=1, max_seconds=1.0, folder=tmp_path, resolve=lambda host, port: [PUBLIC, "10.0.0.1"])
    with pytest.raises(MediaError, match=r"10\.0\.0\.1"):
        get("http://mixed.example/a.png")


@pytest.mark.parametrize("page", ["big", "told"])
def test_what_is_too_large_is_refused(page: str, tmp_path: Path, server: tuple[int, list[str]]):
    with pytest.raises(MediaError, match="too large"):
        downloads(tmp_path, server[0])(f"http://pictures.example/{page}")
    assert list(tmp_path.iterdir()) == []


def test_what_is_too_slow_is_refused_although_bytes_keep_coming(tmp_path: Path, server: tuple[int, list[str]]):
    start = time.monotonic()
    with pytest.raises(MediaError, match=r"too long|Timeout|timed out"):
        downloads(tmp_path, server[0], max_seconds=0.3)("http://pictures.example/slow")
    assert time.monotonic() - start < 1.5


def test_what_is_not_there_says_so(tmp_path: Path, server: tuple[int, list[str]]):
    with pytest.raises(MediaError, match="404"):
        downloads(tmp_path, server[0])("http://pictures.example/none")


@pytest.mark.parametrize("address", ["http://user:word@pictures.example/a.png", "http:///a.png", "http://x:99999/a"])
def test_odd_addresses_are_refused(address: str, tmp_path: Path):
    with pytest.raises(MediaError):
        downloads(tmp_path, 1)(address)


def test_rows_may_name_addresses_where_that_is_allowed(tmp_path: Path, server: tuple[int, list[str]]):
    row = {"image": "http://pictures.example/a.png", "problem": "?", "solution": "1"}
    places = PathPolicy(base=None, remote=downloads(tmp_path, server[0]))
    sample = to_sample(row, columns=Columns(), template=Template(), where="row 0", paths=places)
    assert sample.media[0].source.read_bytes() == b"picture"

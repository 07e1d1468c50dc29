"""An HTTP client with one connection and cookies, which reports the server process of each response."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode

from project.demo import DemoFailed
from project.middleware import PROCESS_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from project.demo.server import Address

__all__ = ["Answer", "Client", "Cookies", "client_of_each_process"]

_ANSWER_SECONDS: Final = 20
_MOST_CONNECTIONS: Final = 400

Cookies = dict[str, str]


class Answer(NamedTuple):
    """A response of the site."""

    status: int
    process: int
    """The id of the server process; 0 if unknown."""
    location: str
    """The target of a redirect."""
    text: str


class Client:
    """Sends requests; with `kept` on one open connection, and so to the same server process."""

    def __init__(self, address: Address, cookies: Mapping[str, str] | None = None, *, kept: bool = False) -> None:
        self.address = address
        self.cookies: Cookies = dict(cookies or {})
        self._kept = kept
        self._connection = HTTPConnection(address.host, address.port, timeout=_ANSWER_SECONDS)
        self._response: HTTPResponse | None = None

    def ask(self, path: str, form: Mapping[str, str] | None = None) -> Answer:
        """Get a page, or post a form to it."""
        response = self.open(path, form)
        try:
            text = response.read().decode()
        except (OSError, HTTPException) as error:
            raise DemoFailed(f"the response of {path} is incomplete: {error!r}") from error
        finally:
            if not self._kept:
                self.close()  # some servers close the connection without announcing it
        return Answer(response.status, process_of(response), response.headers.get("Location", ""), text)

    def open(self, path: str, form: Mapping[str, str] | None = None) -> HTTPResponse:
        """Send a request; its response can be read as a stream until the next request or `close`."""
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        headers["Connection"] = "keep-alive" if self._kept else "close"
        body = None
        if form is not None:
            body = urlencode(form)
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            self._connection.request("GET" if form is None else "POST", path, body, headers)
            response = self._connection.getresponse()
        except (OSError, HTTPException) as error:
            self.close()
            raise DemoFailed(f"no response for {path}: {error!r}") from error
        # The response keeps the connection open if it ends with it.
        self._response = response
        self._take_cookies(response)
        return response

    def close(self) -> None:
        """Close the connection."""
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def _take_cookies(self, response: HTTPResponse) -> None:
        for line in response.headers.get_all("Set-Cookie") or []:
            for name, morsel in SimpleCookie(line).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value


def process_of(response: HTTPResponse) -> int:
    """The server process that sent a response."""
    return int(response.headers.get(PROCESS_HEADER, "0"))


def client_of_each_process(
    address: Address, processes: int, *, path: str, cookies: Mapping[str, str] | None = None
) -> dict[int, Client]:
    """Return an open connection to each server process; `path` is requested and must not be limited."""
    found: dict[int, Client] = {}
    for _ in range(_MOST_CONNECTIONS):
        client = Client(address, cookies, kept=True)
        process = client.ask(path).process
        if process in found:
            client.close()
        else:
            found[process] = client
        if len(found) == processes:
            return found
    for client in found.values():
        client.close()
    raise DemoFailed(f"only {len(found)} of {processes} server processes responded on {_MOST_CONNECTIONS} connections")

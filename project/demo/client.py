"""A visitor's side of HTTP: one connection at a time, cookies, and which server process answered."""

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
    """What the site said."""

    status: int
    process: int
    """The server process that said it; 0 when it did not say."""
    location: str
    """Where a redirect leads to."""
    text: str


class Client:
    """Asks the site; `kept` keeps its one connection open, and with it stays at the same server process."""

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
            raise DemoFailed(f"the answer of {path} was cut off: {error!r}") from error
        finally:
            if not self._kept:
                self.close()  # some servers hang up without having said so
        return Answer(response.status, process_of(response), response.headers.get("Location", ""), text)

    def open(self, path: str, form: Mapping[str, str] | None = None) -> HTTPResponse:
        """Ask, and leave the answer to be read as it comes, until this client asks again or hangs up."""
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
            raise DemoFailed(f"the site did not answer {path}: {error!r}") from error
        # A response that ends with its connection is all that keeps it open.
        self._response = response
        self._take_cookies(response)
        return response

    def close(self) -> None:
        """Hang up."""
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
    """Connect until there is a kept connection to each of so many server processes; asks `path`, which is free."""
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
    raise DemoFailed(f"only {len(found)} of {processes} server processes answered {_MOST_CONNECTIONS} connections")

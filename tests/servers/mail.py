"""A mail server that keeps what it receives, as much of SMTP as `smtplib` needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

__all__ = ["MailServer", "mail_server"]


class _Conversation(StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self._say("220 test")
        while line := self.rfile.readline():
            match line[:4].upper():
                case b"DATA":
                    self._say("354 end with a dot")
                    self._receive()
                case b"QUIT":
                    self._say("221 bye")
                    return
                case b"MAIL" if self.server.refuses:
                    self._say("550 not today")
                case _:
                    self._say("250 ok")

    def _receive(self) -> None:
        lines = list(iter(self.rfile.readline, b".\r\n"))
        self.server.messages.append(message_from_bytes(b"".join(lines), policy=policy.default))
        self._say("250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


class MailServer(ThreadingTCPServer):
    """The server with the messages that it has received; `refuses` rejects all senders."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.messages: list[EmailMessage] = []
        self.refuses = False

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """Run a mail server in a thread."""
    with MailServer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()

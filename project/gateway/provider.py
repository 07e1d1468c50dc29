"""A fake provider: a local server that streams a response word by word, and then its usage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

__all__ = ["provider"]


class _Model(BaseHTTPRequestHandler):
    """Responds to `{"prompt": ..., "max_tokens": ...}` with lines of JSON: words, and at the end the usage."""

    def do_POST(self) -> None:
        """Stream the prompt, up to `max_tokens` words."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = asked["prompt"].split()
        answer = words[: asked["max_tokens"]]
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        for word in answer:
            self._line({"word": word})
        self._line({"usage": len(words) + len(answer)})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
        """Log nothing."""

    def _line(self, value: object) -> None:
        self.wfile.write(json.dumps(value).encode() + b"\n")
        self.wfile.flush()


@contextmanager
def provider() -> Iterator[str]:
    """Serve on a free local port; return the URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            serving.join()

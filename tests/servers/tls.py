"""TLS in front of a server that does not speak it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from tests.servers.machine import HOST

__all__ = ["certificate", "tls"]

_CHUNK = 65_536


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for loopback that signs itself, and its key."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "there is no openssl on the path: install it (apt-get install openssl)"
    files = directory / "certificate.pem", directory / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST}", "-out", str(files[0])]
    subprocess.run([*command, "-keyout", str(files[1])], check=True, capture_output=True)
    return files


@contextmanager
def tls(port: int, files: tuple[Path, Path]) -> Iterator[int]:
    """A port at which the server of another port can be reached over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    loop = asyncio.new_event_loop()
    served: set[asyncio.Task[None]] = set()

    async def serve(near: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        far, far_writer = await asyncio.open_connection(HOST, port)
        try:
            await asyncio.gather(_pass(near, far_writer), _pass(far, near_writer))
        finally:
            for writer in (near_writer, far_writer):
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
            served.discard(task)

    async def stop() -> None:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
        await server.wait_closed()

    server = loop.run_until_complete(asyncio.start_server(serve, HOST, 0, ssl=context))
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, until nothing comes any more."""
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()

"""A local server in the layout of the model hub."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

COMMIT = "c" * 40


@contextmanager
def serve(
    answer: Callable[[str], bytes | None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """Serve the contents that `answer` returns for a path, None: not found. Yield the requests."""
    requests = list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send(answer(self.path))

        def do_GET(self) -> None:
            self.send(answer(self.path))

        def send(self, content: bytes | None) -> None:
            requests.append(f"{self.command} {self.path}")
            self.send_response(404 if content is None else 200)
            if content is None:
                self.send_header("X-Error-Code", "RepoNotFound")
            else:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if content and self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield requests
        server.shutdown()
        thread.join()

"""A server of files on loopback, whose faults a test chooses."""

import http.server
import re
import threading

import pytest


class Server:
    """Serves `files`, with faults; `requests` is what was asked of it."""

    def __init__(self):
        self.files = {}
        self.requests = []
        self.ranges = True
        self.cut_after = []  # bytes to send before hanging up, one entry a request
        self.shift = 0  # how far a range answer is off
        self.at_most = None  # bytes a range answer holds
        self.etag = '"one"'
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_GET(self):
                name = self.path.rsplit("/", 1)[-1]
                wanted = self.headers.get("Range")
                server.requests.append((name, wanted))
                if name not in server.files:
                    self.send_error(404)
                    return
                body = server.files[name]
                start = 0
                if server.ranges and wanted and self.headers.get("If-Range") == server.etag:
                    start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
                    whole = len(body)
                    body = body[: start + server.at_most] if server.at_most else body
                    self.send_response(206)
                    span = f"{start + server.shift}-{len(body) - 1}"
                    self.send_header("Content-Range", f"bytes {span}/{whole}")
                else:
                    self.send_response(200)
                if server.ranges:
                    self.send_header("ETag", server.etag)
                    self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                rest = body[start:]
                if server.cut_after:
                    rest = rest[: server.cut_after.pop(0)]
                self.wfile.write(rest)

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/data/"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch):
    """A running server, which is asked without a proxy."""
    monkeypatch.setenv("NO_PROXY", "*")
    running = Server()
    yield running
    running.close()

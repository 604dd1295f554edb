"""A model hub on the loopback address: the endpoints that huggingface_hub uses, and their
faults.
"""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORY, REVISION = "some/model", "0123456789abcdef0123456789abcdef01234567"
LARGE = ".safetensors"  # such files are listed and served the way of large files


class Hub:
    """What the server serves, what goes wrong, and what it was asked for."""

    def __init__(self, files: dict[str, bytes]):
        self.files = dict(files)
        self.served: dict[str, bytes] = dict(files)  # differs from `files` when a copy is damaged
        self.refused: set[str] = set()  # names answered with 500
        self.cut_once: set[str] = set()  # names whose first answer ends half-way
        self.requests: list[str] = []  # the name of each download
        self.url = ""

    def listing(self) -> dict:
        return {
            "id": REPOSITORY,
            "sha": REVISION,
            "siblings": [listed(name, content) for name, content in self.files.items()],
        }


def listed(name: str, content: bytes) -> dict:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry = {"rfilename": name, "size": len(content), "blobId": blob}
    if name.endswith(LARGE):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
    return entry


@contextmanager
def serving(files: dict[str, bytes]):
    """A running Hub."""
    hub = Hub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self):
        name = self.name()
        if name is None:
            return self.answer(404)
        entry = listed(name, self.hub.files[name])
        headers = {"X-Repo-Commit": REVISION, "ETag": f'"{entry["blobId"]}"'}
        if "lfs" in entry:
            headers["X-Linked-Etag"] = f'"{entry["lfs"]["sha256"]}"'
            headers["X-Linked-Size"] = str(entry["size"])
        return self.answer(200, headers | {"Content-Length": str(entry["size"])})

    def do_GET(self):
        if self.path.startswith(f"/api/models/{REPOSITORY}/revision/{REVISION}"):
            content = json.dumps(self.hub.listing()).encode()
            return self.answer(200, {"Content-Type": "application/json"}, content)
        name = self.name()
        if name is None:
            return self.answer(404, {"X-Error-Code": "RepoNotFound"})
        self.hub.requests.append(name)
        if name in self.hub.refused:
            return self.answer(500)
        content = self.hub.served[name]
        status, headers = 200, {}
        if self.headers["Range"]:
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status, content = 206, content[start:]
        length = len(content)
        if name in self.hub.cut_once:
            self.hub.cut_once.remove(name)
            content = content[: length // 2]
            self.close_connection = True
        return self.answer(status, headers | {"Content-Length": str(length)}, content)

    def name(self) -> str | None:
        """The file that the request is for."""
        name = self.path.removeprefix(f"/{REPOSITORY}/resolve/{REVISION}/")
        return name if name in self.hub.files else None

    def answer(self, status: int, headers: dict[str, str] | None = None, content: bytes = b""):
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass

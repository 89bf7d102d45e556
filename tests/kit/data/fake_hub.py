"""A Hugging Face hub of one machine: enough of its HTTP interface for `snapshot_download` to fetch a data set."""

import http.server
import json
import threading
from contextlib import contextmanager
from pathlib import Path

COMMIT = "a" * 40


@contextmanager
def serve(repository: str, folder: Path):
    """Serve the files that a folder holds now as a data set; yields the address to put into HF_ENDPOINT.

    A file that is deleted later stays in the listing and answers "not found".
    """
    listing = [
        {"type": "file", "path": path.relative_to(folder).as_posix(), "oid": path.name, "size": path.stat().st_size}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            api = f"/api/datasets/{repository}"
            if path in (api, f"{api}/revision/main"):
                self.reply(json.dumps({"id": repository, "sha": COMMIT, "siblings": []}).encode())
            elif path == f"{api}/tree/{COMMIT}":
                self.reply(json.dumps(listing).encode())
            elif (file := folder / path.removeprefix(f"/datasets/{repository}/resolve/{COMMIT}/")).is_file():
                self.reply(file.read_bytes())
            else:
                self.send_error(404)

        do_HEAD = do_GET

        def reply(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hash(body) & 0xFFFFFFFF:x}"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

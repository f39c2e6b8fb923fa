# SPDX-License-Identifier: Apache-2.0
"""HAProxy and nginx in front of two fleets, as cluster/launch configures them.

Four clients send requests all the time. One fleet drains and comes back, then
the other one is killed and comes back. Only what a killed fleet was answering
may fail. Ends with 77 where neither proxy is installed.
"""
import collections
import contextlib
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

WAIT_S = 60
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "cluster" / "launch"
MARK = "RINGFLEET_PROXIES_TEST"
# Lines of proxies.md that take the place of others.
STICKY = {"haproxy": ("balance leastconn", "balance hdr(Authorization)\n    hash-type consistent"),
          "nginx": ("least_conn;", "hash $http_authorization consistent;")}
BODY = {"prompt": "def add(a, b):", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
Outcome = collections.namedtuple("Outcome", "began fleet error")


def await_that(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}"
        time.sleep(0.05)


class Fleet:
    """A `ringfleet serve` that keeps its port."""

    def __init__(self, folder, name):
        self.folder, self.name, self.port, self.process = folder, name, 0, None
        self.start()

    def start(self):
        printed = self.folder / f"{self.name}.out"
        with open(printed, "wb") as out:
            self.process = subprocess.Popen(
                [os.environ["RINGFLEET"], "serve", "--model", os.environ["RINGFLEET_MODEL"], "--dtype", "f32",
                 "--threads", "1", "--port", str(self.port), "--drain", "60s"],
                stdout=out, stderr=subprocess.STDOUT)
        await_that(lambda: re.search(rb"listening on \S+\n", printed.read_bytes()) or self.process.poll() is not None,
                   f"fleet {self.name} listens")
        found = re.search(rb"listening on http://127.0.0.1:(\d+)\n", printed.read_bytes())
        assert found, printed.read_bytes()
        self.port = int(found[1])

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


class Connection(http.client.HTTPConnection):
    """A connection to the socket file of a proxy."""

    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT_S)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def config_of(proxy, folder, addresses, sticky):
    """Writes the published file for these fleets, with a socket file of this test."""
    name, listen = ("haproxy.cfg", "bind") if proxy == "haproxy" else ("nginx.conf", "listen")
    text = (CONFIGS / name).read_text()
    changes = [(f"{listen} 127.0.0.1:8000", f"{listen} {'unix:' if proxy == 'nginx' else ''}{folder}/socket")]
    changes += zip(["10.0.0.11:8080", "10.0.0.21:8080"], addresses)
    if proxy == "nginx":  # The folders of Debian's package are root's.
        kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        changes += [("http {", "\n".join(["http {", "access_log off;"] + [f"{kind}_temp_path {folder}/{kind};" for kind in kinds]))]
    if sticky:
        changes.append(STICKY[proxy])
    for old, new in changes:
        assert old in text, (name, old)
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path


@contextlib.contextmanager
def running(proxy, folder, addresses, sticky=False):
    """Runs a proxy and yields its socket file."""
    folder.mkdir()
    config = config_of(proxy, folder, addresses, sticky)
    binary = shutil.which(proxy, path=f"{os.environ['PATH']}:/usr/sbin")
    command = [binary, "-f", str(config), "-db"]
    if proxy == "nginx":
        command = [binary, "-c", str(config), "-p", str(folder), "-e", "stderr", "-g",
                   f"daemon off; pid {folder}/pid; error_log stderr;"]
    test = command[:3] + ["-c"] if proxy == "haproxy" else command + ["-t"]
    checked = subprocess.run(test, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert checked.returncode == 0, checked.stdout
    log = folder / "log"
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        await_that((folder / "socket").exists, f"{proxy} listens")
        yield folder / "socket"
    except BaseException:
        print(log.read_text()[-4000:])
        raise
    finally:
        process.terminate()
        process.wait(WAIT_S)


class Client(threading.Thread):
    """Sends one request after the other, streams in turn, on old and new connections."""

    def __init__(self, path, index, stop):
        super().__init__(daemon=True)
        self.path, self.index, self.stop, self.outcomes = path, index, stop, []

    def run(self):
        connection, count = None, 0
        while not self.stop.is_set():
            stream = (count + self.index) % 2 == 0
            if connection is None or count % 3 == 0:
                if connection is not None:
                    connection.close()
                connection = Connection(self.path)
            count += 1
            began, fleet = time.monotonic(), ""
            try:
                connection.request("POST", "/v1/completions", json.dumps({**BODY, "stream": stream}),
                                   {"Content-Type": "application/json"})
                reply = connection.getresponse()
                # nginx names all fleets that it asked.
                fleet = (reply.headers["X-Fleet"] or "").split(", ")[-1]
                text = reply.read().decode()
                assert reply.status == 200, (reply.status, text)
                if stream:
                    assert text.endswith("data: [DONE]\n\n"), text[-200:]
                else:
                    assert json.loads(text)["usage"]["completion_tokens"] == 24, text
                self.outcomes.append(Outcome(began, fleet, None))
            except (AssertionError, OSError, http.client.HTTPException, ValueError) as error:
                self.outcomes.append(Outcome(began, fleet, repr(error)))
                connection.close()
                connection = None


def check_fleets(proxy, folder, fleets):
    with running(proxy, folder, [fleet.address for fleet in fleets]) as path:
        stop = threading.Event()
        clients = [Client(path, i, stop) for i in range(4)]
        for client in clients:
            client.start()
        outcomes = lambda: [one for client in clients for one in list(client.outcomes)]

        def name_of(fleet):
            return fleet.name if proxy == "haproxy" else fleet.address

        def await_answers(fleet):
            since = time.monotonic()
            await_that(lambda: any(one.began > since and one.fleet == name_of(fleet) and not one.error for one in outcomes()),
                       f"fleet {fleet.name} answers, of {outcomes()[-8:]}")

        try:
            for fleet in fleets:
                await_answers(fleet)
            drained, killed = fleets
            assert drained.end(signal.SIGTERM) == 0
            await_answers(killed)
            drained.start()
            await_answers(drained)
            before = [one for one in outcomes() if one.error]
            assert not before, before

            killed_at = time.monotonic()
            killed.end(signal.SIGKILL)
            gone_at = time.monotonic()
            for _ in range(10):
                await_answers(drained)
            killed.start()
            await_answers(killed)
        finally:
            stop.set()
            for client in clients:
                client.join(WAIT_S)
        cut = [one for one in outcomes() if one.error]
        # A client has one request at a time: at most one is cut.
        assert len(cut) <= len(clients), cut
        for one in cut:
            assert one.began < gone_at, (one, killed_at, gone_at)
            assert one.fleet in ("", name_of(killed)), one
        print(f"{proxy}: {len(outcomes())} requests, {len(cut)} cut by the kill")


class OneStream(http.server.BaseHTTPRequestHandler):
    """A fleet whose stream waits, first for its reader and then for the reader's end."""
    protocol_version = "HTTP/1.1"
    read_first, reader_left = threading.Event(), threading.Event()

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"9\r\ndata: 1\n\n\r\n")
        if not self.read_first.wait(WAIT_S):
            return
        self.wfile.write(b"9\r\ndata: 2\n\n\r\n")
        self.connection.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionError):
            if self.connection.recv(1):
                return
        self.reader_left.set()
        self.close_connection = True


def check_stream(proxy, folder):
    """An event arrives before the next one is made; a client's end reaches the fleet. Sticky."""

    class Stream(OneStream):
        read_first, reader_left = threading.Event(), threading.Event()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stream) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        with running(proxy, folder, [address, address], sticky=True) as path:
            connection = Connection(path)
            connection.request("POST", "/v1/completions", "{}", {"Authorization": "Bearer key"})
            reply = connection.getresponse()
            assert reply.fp.readline() == b"9\r\n" and reply.fp.readline() == b"data: 1\n"
            Stream.read_first.set()
            assert b"data: 2\n" in [reply.fp.readline() for _ in range(4)]
            reply.close()
            connection.close()
            assert Stream.reader_left.wait(WAIT_S), f"{proxy} goes on reading"
        server.shutdown()


def processes(mark):
    found = []
    for environment in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def main():
    proxies = [name for name in ("haproxy", "nginx") if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    for name in {"haproxy", "nginx"} - set(proxies):
        print(f"skipped {name}: it is not installed")
    if not proxies:
        sys.exit(77)
    mark = os.environ[MARK] = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        folder = pathlib.Path(folder)
        fleets = []
        try:
            for proxy in proxies:
                check_stream(proxy, folder / f"{proxy}-stream")
            fleets = [Fleet(folder, name) for name in ("a", "b")]
            for proxy in proxies:
                check_fleets(proxy, folder / proxy, fleets)
            for fleet in fleets:
                assert fleet.end(signal.SIGTERM) == 0
        finally:
            for fleet in fleets:
                if fleet.process.poll() is None:
                    fleet.process.kill()
                    fleet.process.wait()
        await_that(lambda: not processes(mark), "all processes end")


main()

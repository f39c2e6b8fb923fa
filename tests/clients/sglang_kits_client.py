#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang's own test kits, from its wheel: the contract of the API, stops, aborts
and shared prefixes. A proxy answers SGLang's native endpoints with OpenAI's.

usage: sglang_kits_client.py URL MODEL, with SGLANG_WHEEL
"""

import http.client
import json
import os
import socket
import sys
import threading
import types
import unittest
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

URL, MODEL = sys.argv[1], sys.argv[2]
HOST = URL.split("//")[1].rstrip("/")
VOCABULARY = 2000  # Of a tiny model, without its special tokens.


def load_kit(name):
    """Runs one file of the wheel. The package itself would import torch."""
    with zipfile.ZipFile(os.environ["SGLANG_WHEEL"]) as wheel:
        source = wheel.read(f"sglang/test/kits/{name}.py")
    kit = types.ModuleType(name)
    exec(compile(source, name, "exec"), kit.__dict__)
    return kit


def call(path, body=None):
    request = urllib.request.Request(
        URL.rstrip("/") + path, None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)


CONTEXT = call("/v1/models")["data"][0]["max_model_len"]
CACHED = 0  # Tokens that were not computed again, of all requests.


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    running, lock = set(), threading.Lock()

    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def forward(self, body=None):
        upstream = http.client.HTTPConnection(HOST, timeout=120)
        upstream.request(self.command, self.path, body,
                         {"Content-Type": "application/json"})
        reply = upstream.getresponse()
        self.answer(reply.status, json.loads(reply.read()))
        upstream.close()

    def generate(self, prompt, sampling):
        global CACHED
        sampling = dict(sampling)
        wanted = max(1, sampling.pop("max_new_tokens"))
        if isinstance(prompt, list):  # Prefixes stay shared.
            prompt = [i % VOCABULARY for i in prompt[:CONTEXT - wanted]]
        body = {"prompt": prompt, "max_tokens": wanted, **sampling}
        upstream = http.client.HTTPConnection(HOST, timeout=120)
        upstream.connect()
        with self.lock:
            self.running.add(upstream)
        try:
            upstream.request("POST", "/v1/completions", json.dumps(body),
                             {"Content-Type": "application/json"})
            reply = upstream.getresponse()
            answer = json.loads(reply.read())
        except (OSError, http.client.HTTPException, AttributeError):
            return {"text": "", "meta_info": {"finish_reason": {"type": "abort"}}}
        finally:
            with self.lock:
                self.running.discard(upstream)
            upstream.close()
        if reply.status != 200:
            return {"object": "error", "code": reply.status, **answer["error"]}
        details = answer["usage"].get("prompt_tokens_details") or {}
        with self.lock:
            CACHED += details.get("cached_tokens", 0)
        choice = answer["choices"][0]
        return {"text": choice["text"], "meta_info": {
            "finish_reason": {"type": choice["finish_reason"]}}}

    def do_GET(self):
        if self.path == "/health_generate":
            call("/v1/completions", {"prompt": "x", "max_tokens": 1})
            self.answer(200, {})
        elif self.path == "/get_server_info":
            self.answer(200, call("/version"))
        elif self.path == "/get_model_info":
            self.answer(200, {"model_path": call("/v1/models")["data"][0]["root"]})
        elif self.path == "/health":
            self.forward()
        else:
            self.answer(404, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/v1/"):
            return self.forward(body)
        body = json.loads(body)
        if self.path == "/abort_request":
            with self.lock:  # A client that leaves ends its jobs.
                for upstream in self.running:
                    upstream.sock.shutdown(socket.SHUT_RDWR)
            return self.answer(200, {})
        prompt = body.get("text", body.get("input_ids"))
        sampling = body["sampling_params"]
        if isinstance(sampling, dict):
            answer = self.generate(prompt, sampling)
            return self.answer(answer.get("code", 200), answer)
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(self.generate, prompt, sampling))
        worst = max(answer.get("code", 200) for answer in answers)
        return self.answer(worst, answers)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


proxy = Server(("127.0.0.1", 0), Proxy)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
aborts = load_kit("abort_timeout_kit")


class Kit(unittest.TestCase):
    base_url = f"http://127.0.0.1:{proxy.server_address[1]}"
    model = MODEL

    class process:
        @staticmethod
        def poll():  # None: the server lives.
            return None if call("/ready") else 1


class BasicApiContract(load_kit("basic_api_contract_kit").BasicAPIContractMixin,
                       Kit):
    served_model_name = MODEL


class MatchedStop(load_kit("matched_stop_kit").MatchedStopMixin, Kit):
    # These want a long context, expressions, and the ids of Llama.
    test_finish_stop_str = test_finish_stop_regex_str = test_finish_stop_eos = None


class AbortAll(aborts.AbortAllMixin, Kit):
    abort_all_max_new_tokens = CONTEXT - 100
    abort_all_sleep = 1


class RunningTimeout(aborts.RunningTimeoutTwoWaveMixin, Kit):
    running_timeout_max_new_tokens = 300
    running_timeout_sleep = 0.5


class RadixCache(Kit):
    def test_radix_attention(self):
        ids = list(range(300))
        for _ in range(2):
            usage = call("/v1/completions",
                         {"prompt": ids, "max_tokens": 1})["usage"]
        if not (usage.get("prompt_tokens_details") or {}).get("cached_tokens"):
            self.skipTest("the server reports no cached_tokens")
        load_kit("radix_cache_server_kit").run_radix_attention_test(self.base_url)
        self.assertGreater(CACHED, 0)


result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
for test, reason in result.skipped:
    print(f"skipped {test.id()}: {reason}")
sys.exit(not result.wasSuccessful())

"""What TRL's trainer needs to run on CPU: a loopback inference server that notes the truth, a worker, a tiny model."""

from __future__ import annotations

import json
import queue
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

FIRST_NAME = 100
"""Token ids from here on name requests: the first sampled token of each. The others are below it."""
SECONDS_PER_TOKEN = 0.004


class Server(ThreadingHTTPServer):
    """Answers like SGLang's native server, one token every few milliseconds, each with the weights then in place."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.version = -1  # the initial weights become v0
        self.names = count(FIRST_NAME)
        self.versions: dict[int, list[int]] = {}  # of every request's tokens: the truth
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def generate(self, tokens: int) -> dict[str, Any]:
        name = next(self.names)
        versions = []
        for _ in range(tokens):
            time.sleep(SECONDS_PER_TOKEN)
            versions.append(self.version)
        self.versions[name] = versions
        runs = [
            {
                "start": versions.index(version),
                "end": versions.index(version) + versions.count(version),
                "version": version,
            }
            for version in sorted(set(versions))
        ]
        meta = {"completion_tokens": tokens, "weight_version": str(versions[-1]), "weight_versions": runs}
        return {"output_ids": [name, *(random.randrange(10, FIRST_NAME) for _ in range(tokens - 1))], "meta_info": meta}


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/generate":
            answer = self.server.generate(request["sampling_params"]["max_new_tokens"])
        else:
            self.server.version += 1
            answer = {}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def post(url: str, document: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Transfer:
    """TRL's ``WeightTransferProtocol``: the server takes the weights when it resumes."""

    def __init__(self, url: str) -> None:
        self.url = url

    def init_weight_transfer(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def send_weights(self, iterator: Any) -> None:
        for _ in iterator:
            pass

    def resume(self) -> None:
        post(f"{self.url}/update_weights", {})

    def destroy(self) -> None:
        pass


class Worker:
    """TRL's ``RolloutWorkerProtocol``: groups of two, four at a time, stamped like TRL's own when they begin."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(maxsize=12)
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.label = 0
        self.groups = count()
        self.stopped = threading.Event()

    def start(self) -> None:
        for seed in range(4):
            threading.Thread(target=self._generate, args=(random.Random(seed),), daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()

    def update_model_version(self, model_version: int) -> None:
        self.label = model_version

    def check_health(self, stale_after_s: float) -> None:
        pass

    def _generate(self, chance: random.Random) -> None:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        class Sample(RolloutSample):
            """TRL's row, and what the server said of its tokens."""

            response: Any

        while not self.stopped.is_set():
            group, label = next(self.groups), self.label
            for _ in range(2):
                request = {"sampling_params": {"max_new_tokens": chance.choice([3, 5, 40])}}
                try:
                    response = post(f"{self.url}/generate", request)
                except OSError:  # the test is over
                    return
                tokens = response["output_ids"]
                ids = np.array([2, 3, *tokens], dtype=np.int64)
                sample = Sample(
                    prompt=[{"role": "user", "content": "p"}],
                    completion=[{"role": "assistant", "content": "c"}],
                    input_ids=ids,
                    completion_mask=np.array([0, 0] + [1] * len(tokens), dtype=np.int64),
                    old_log_probs=np.zeros(len(ids), dtype=np.float32),
                    advantage=1.0,
                    model_version=label,
                    group_id=group,
                    metrics={"reward": 1.0},
                    enqueued_at=time.time(),
                )
                sample.response = response
                while not self.stopped.is_set():
                    try:
                        self.rollout_buffer.put(sample, timeout=0.1)
                        break
                    except queue.Full:
                        continue


def tiny_model(folder: Path) -> str:
    """Save a one-layer model and its tokenizer; return where."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, **{f"w{number}": number for number in range(2, 4096)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)

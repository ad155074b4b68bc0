import http.server
import json
import re
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from mmgrpo.config.rewards import Reward
from mmgrpo.errors import RewardError
from mmgrpo.reward.paste import pasted_group
from mmgrpo.reward.score import RewardSum
from mmgrpo.types import Decoded


class Stub(http.server.ThreadingHTTPServer):
    """An OpenAI-compatible server that answers as a function says."""

    daemon_threads = True

    def __init__(self, answer):
        self.answer, self.seen, self.now, self.most = answer, [], 0, 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.seen.append((self.path, body, self.headers["Authorization"]))
            server.now += 1
            server.most = max(server.most, server.now)
            number = len(server.seen)
        status, text = server.answer(body["messages"][0]["content"], number)
        with server.lock:
            server.now -= 1
        reply = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers, scorers = [], []

    def start(answer, groups, **args):
        server = Stub(answer)
        servers.append(server)
        entry = Reward(fn="judge.py:Judge", args={"url": server.url, "model": "m", "backoff_seconds": 0.01, **args})
        scorer = RewardSum.from_config([entry], Path())
        scorers.append(scorer)
        return server, scorer.score(groups)

    yield start
    for scorer in scorers:
        scorer.close()
    for server in servers:
        server.shutdown()
        server.server_close()


GROUP = pasted_group(["three {braces}", "four"], answer=3, problem="how many?")


def test_absolute_grades_are_scaled_and_the_request_holds_all_that_was_asked_for(serve, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")

    def answer(text, _):
        return 200, "Score: 8" if "three" in text else "well\nScore: 2.5"

    server, [scored] = serve(answer, [GROUP], api_key_env="JUDGE_KEY")
    assert scored.totals.tolist() == [0.8, 0.25]
    path, body, key = server.seen[0]
    assert path == "/v1/chat/completions"
    assert key == "Bearer secret"
    assert body["model"] == "m"
    texts = " ".join(b["messages"][0]["content"] for _, b, _ in server.seen)
    assert "how many?" in texts and "Reference: 3" in texts and "three {braces}" in texts


def test_a_template_and_a_pattern_of_yours_with_columns(serve):
    group = pasted_group(["a"], rubric="be kind")
    server, [scored] = serve(
        lambda text, _: (200, f"grade={len(text)}"), [group], template="{rubric}|{completion}|{unknown}",
        pattern=r"grade=(\d+)", high=100.0,
    )  # fmt: skip
    assert server.seen[0][1]["messages"][0]["content"] == "be kind|a|{unknown}"
    assert scored.totals.tolist() == [0.19]


def test_busy_servers_are_asked_again_and_bad_requests_are_not(serve):
    server, [scored] = serve(lambda _, n: (503 if n < 4 else 200, "Score: 10"), [GROUP])
    assert scored.totals.tolist() == [1.0, 1.0]
    assert len(server.seen) > 3
    with pytest.raises(RewardError, match="refused the request"):
        serve(lambda _, n: (401, ""), [GROUP])


def test_a_reply_without_a_score_is_never_a_silent_zero(serve):
    with pytest.raises(RewardError, match=r"no score in its reply 'I like it'"):
        serve(lambda *_: (200, "I like it"), [GROUP], retries=1)


def test_a_judge_that_is_not_there_is_an_error(serve):
    with pytest.raises(
        RewardError, match=r"gave no score in 1 tries[\s\S]*fix: Start the judge there or correct args\.url"
    ):
        serve(lambda *_: (200, ""), [GROUP], url="http://127.0.0.1:9/v1", retries=0)


def test_requests_run_side_by_side_up_to_the_bound(serve):
    def answer(*_):
        time.sleep(0.05)
        return 200, "Score: 5"

    server, _ = serve(answer, [pasted_group([str(n) for n in range(12)])], max_concurrency=3)
    assert 2 <= server.most <= 3


def test_pairs_meet_inside_their_group_and_the_better_wins(serve):
    def answer(text, _):
        first, second = re.search(r"Answer A: (\d+)\nAnswer B: (\d+)", text).groups()
        return 200, "Better: tie" if first == second else f"Better: {'A' if int(first) > int(second) else 'B'}"

    groups = [pasted_group(["1", "2", "3"]), pasted_group(["5", "5"]), pasted_group(["9"])]
    server, scored = serve(answer, groups, mode="pairwise")
    assert [g.totals.tolist() for g in scored] == [[0.0, 0.5, 1.0], [0.5, 0.5], [0.5]]
    assert len(server.seen) == 4


def test_pictures_travel_as_data_uris(serve):
    group = pasted_group(["a"], media=[Decoded(kind="image", data=Image.new("RGB", (4, 4), "red"))])
    server, _ = serve(lambda *_: (200, "Score: 1"), [group], images=True)
    picture, text = server.seen[0][1]["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert text["type"] == "text"

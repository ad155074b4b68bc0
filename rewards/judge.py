"""A judge: a model behind an OpenAI-compatible API that grades completions, one by one or in pairs."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import os
import random
import re
import urllib.error
import urllib.request
from typing import Any

from mmgrpo import after_reasoning, reward_facts

ABSOLUTE = """Grade the answer to the question with one number from {low} to {high}.
Question: {prompt}
Reference: {answer}
Answer: {completion}
Write only: Score: <number>"""
PAIRWISE = """Which of two answers to the question is better?
Question: {prompt}
Reference: {answer}
Answer A: {completion}
Answer B: {other}
Write only: Better: A, or Better: B, or Better: tie"""
_BETTER = r"Better:\s*(?:the\s+)?(?:answers?\s+)?(?:an?\s+)?(tie|draw|both|neither|equal|none|A|B)\b"
_MARKDOWN = str.maketrans({"*": "", "_": "", "`": "", "#": "", "\uff1a": ":"})
_RETRY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class JudgeError(RuntimeError):
    """The judge cannot be reached, or does not answer in the form that was asked for."""


@reward_facts(low=0.0, high=1.0)
class Judge:
    """What a judge says of each completion, brought into 0 to 1.

    ``absolute``: the judge writes a number from ``low`` to ``high``. ``pairwise``: each completion meets ``rivals``
    others of its group; r = (wins + ties / 2) / meetings. Requests run side by side, at most ``max_concurrency``; busy
    or failing servers are asked again with growing pauses. An answer without a score is asked for again, and then an
    error: never a silent 0.

    Args:
        url: Base of the API, for example ``http://localhost:8000/v1``.
        model: Name of the model there.
        mode: ``absolute`` or ``pairwise``.
        template: The request; ``{prompt}`` (what the user asked), ``{answer}``, ``{completion}``, ``{other}``, and
            the row's columns by name.
        pattern: Regular expression whose first group is the score (``absolute``).
        low: Worst score.
        high: Best score.
        rivals: Meetings per completion (``pairwise``).
        images: Also send the images of the row.
        api_key_env: Environment variable that holds the key; the key itself stands in no YAML.
        max_concurrency: Requests at once.
        retries: Further tries after the first.
        backoff_seconds: Pause before the first retry; it doubles each time.
        request_seconds: Longest time for one request.
        max_tokens: Longest reply.

    Source: "Judging LLM-as-a-Judge", arXiv:2306.05685.
    """

    def __init__(
        self,
        url: str,
        model: str,
        mode: str = "absolute",
        template: str | None = None,
        pattern: str = r"Score:\s*(-?[0-9]+(?:\.[0-9]+)?)",
        *,
        low: float = 0.0,
        high: float = 10.0,
        rivals: int = 2,
        images: bool = False,
        api_key_env: str = "OPENAI_API_KEY",
        max_concurrency: int = 16,
        retries: int = 4,
        backoff_seconds: float = 1.0,
        request_seconds: float = 60.0,
        max_tokens: int = 64,
    ) -> None:
        if mode not in ("absolute", "pairwise") or low >= high:
            raise ValueError("Judge wants mode: absolute or pairwise, and low below high")
        if min(rivals, max_concurrency, max_tokens) < 1 or min(retries, backoff_seconds) < 0 or request_seconds <= 0:
            raise ValueError("Judge wants rivals, max_concurrency and max_tokens of at least 1, and no negative times")
        if mode == "absolute" and re.compile(pattern).groups < 1:
            raise ValueError(f"pattern {pattern!r:.80} has no group for the score; write one as (...)")
        self.__name__ = "judge"
        self.url, self.model, self.mode = url.rstrip("/") + "/chat/completions", model, mode
        self.template = template or (ABSOLUTE if mode == "absolute" else PAIRWISE)
        self.pattern = re.compile(pattern if mode == "absolute" else _BETTER, re.IGNORECASE)
        self.low, self.high, self.rivals, self.images = low, high, rivals, images
        self.api_key_env, self.max_tokens = api_key_env, max_tokens
        self.slots, self.retries = asyncio.Semaphore(max_concurrency), retries
        self.backoff_seconds, self.request_seconds = backoff_seconds, request_seconds

    async def __call__(
        self, completions: list[str], messages: list[Any], images: list[list[Any]], group: list[int], **columns: Any
    ) -> list[float]:
        """Ask the judge about all completions at once."""
        count = len(completions)
        rows = [
            {k: v[row] for k, v in columns.items() if isinstance(v, list) and len(v) == count} for row in range(count)
        ]
        for row, fields in enumerate(rows):
            fields |= {
                "prompt": _question(messages[row]),
                "completion": completions[row],
                "low": self.low,
                "high": self.high,
            }
            fields.setdefault("answer", "")
        if self.mode == "absolute":
            replies = await asyncio.gather(*(self._ask(f, p) for f, p in zip(rows, images, strict=True)))
            return [self._scaled(float(reply)) for reply in replies]
        return await self._tournament(completions, rows, images, group)

    async def _tournament(
        self, completions: list[str], rows: list[dict[str, Any]], images: list[list[Any]], group: list[int]
    ) -> list[float]:
        """Each completion meets the next ``rivals`` of its group, in a ring; who stands first alternates."""
        meetings: list[tuple[int, int]] = []
        for key in dict.fromkeys(group):
            members = [row for row, name in enumerate(group) if name == key]
            steps = range(1, min(self.rivals, len(members) - 1) + 1)
            pairs = {frozenset((a, members[(i + s) % len(members)])) for s in steps for i, a in enumerate(members)}
            meetings += [tuple(sorted(pair, reverse=n % 2 == 1)) for n, pair in enumerate(sorted(pairs, key=sorted))]
        replies = await asyncio.gather(
            *(self._ask({**rows[a], "other": completions[b]}, images[a]) for a, b in meetings)
        )
        points, games = [0.0] * len(rows), [0] * len(rows)
        for (a, b), reply in zip(meetings, replies, strict=True):
            first = {"a": 1.0, "b": 0.0}.get(reply.lower(), 0.5)
            for row, won in ((a, first), (b, 1.0 - first)):
                points[row] += won
                games[row] += 1
        return [won / played if played else 0.5 for won, played in zip(points, games, strict=True)]

    def _scaled(self, score: float) -> float:
        return min(1.0, max(0.0, (score - self.low) / (self.high - self.low)))

    async def _ask(self, fields: dict[str, Any], images: list[Any]) -> str:
        """One score, with retries."""
        payload = self._payload(_fill(self.template, fields), images)
        problem = ""
        async with self.slots:
            for attempt in range(self.retries + 1):
                if attempt:
                    await asyncio.sleep(self.backoff_seconds * 2 ** (attempt - 1) * random.uniform(0.8, 1.2))
                try:
                    reply = await asyncio.to_thread(self._post, payload)
                except (TimeoutError, urllib.error.URLError, ConnectionError) as error:
                    if isinstance(error, urllib.error.HTTPError) and error.code not in _RETRY:
                        raise JudgeError(f"the judge at {self.url} refused the request: {error}") from error
                    problem = str(error)
                    continue
                verdict = self._verdict(reply)
                if verdict is not None:
                    return verdict
                problem = f"no score in its reply {reply!r:.100}"
        error = JudgeError(f"the judge at {self.url} gave no score in {self.retries + 1} tries: {problem}")
        error.add_note("Start the judge there or correct args.url; a slow one wants longer args.request_seconds.")
        raise error

    def _verdict(self, reply: str) -> str | None:
        """The last verdict behind the judge's reasoning, with and without markdown."""
        rest = after_reasoning(reply)
        for text in (rest.translate(_MARKDOWN), rest):
            verdicts = [match.group(1) for match in self.pattern.finditer(text) if match.group(1)]
            if verdicts and (self.mode == "pairwise" or _is_number(verdicts[-1])):
                return verdicts[-1]
        return None

    def _payload(self, text: str, images: list[Any]) -> bytes:
        content: Any = text
        if self.images and images:
            parts = [{"type": "image_url", "image_url": {"url": _data_uri(image)}} for image in images]
            content = [*parts, {"type": "text", "text": text}]
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "temperature": 0}
        return json.dumps({**body, "max_tokens": self.max_tokens}).encode()

    def _post(self, payload: bytes) -> str:
        key = os.environ.get(self.api_key_env, "none")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(self.url, data=payload, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=self.request_seconds) as response:
                reply = json.load(response)
        except urllib.error.HTTPError as error:
            error.close()
            raise
        try:
            return str(reply["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError) as error:
            raise JudgeError(f"the judge at {self.url} is no OpenAI-compatible API: {reply!r:.100}") from error


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _question(messages: Any) -> str:
    """What the user asked, without images and without the chat template's marks."""
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "user":
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts += [str(block["text"]) for block in blocks if block.get("type") == "text"]
    return "\n".join(texts)


def _fill(template: str, fields: dict[str, Any]) -> str:
    """Put the fields into the template in one pass, so that braces in a completion stay what they are."""
    return re.sub(r"\{(\w+)\}", lambda m: str(fields[m.group(1)]) if m.group(1) in fields else m.group(0), template)


def _data_uri(image: Any) -> str:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()

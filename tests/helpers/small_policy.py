"""A policy of a few hundred weights, and groups to feed it."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from mmgrpo.types import Completion, Group, Prompt, Sample, ScoredGroup

VOCAB = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    logprobs: torch.Tensor
    entropy: torch.Tensor | None


class FakePolicy(nn.Module):
    """log p(token | previous token, mean of the prompt); counts its forward passes."""

    def __init__(self, dtype=torch.float64, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCAB, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, VOCAB)
        self.to(dtype)
        self.frozen = copy.deepcopy(self.state_dict())
        self.forwards = 0
        self.spoil = None
        """Sample id whose log-probs become NaN (value) or get an infinite gradient (grad): ("value", id)."""

    @property
    def device(self):
        return torch.device("cpu")

    @property
    def dtype(self):
        return self.embed.weight.dtype

    def logprobs(self, batch, *, temperature, entropy=False, entropy_gradient=False):
        self.forwards += 1
        rows = [self._row(s.prompt, c) for s in batch.segments for c in s.completions]
        logits = torch.cat([r for r, _ in rows]) / temperature
        logp = logits.log_softmax(-1)
        if logp.dtype != torch.float64:
            logp = logp.float()
        taken = logp.gather(-1, torch.cat([c.token_ids for c in batch.completions])[:, None])[:, 0]
        taken = self._spoiled(taken, batch)
        return Stats(
            logprobs=taken, entropy=self._entropy(logp if entropy_gradient else logp.detach()) if entropy else None
        )

    def _entropy(self, logp):
        return -(logp.exp() * logp).sum(-1)

    def _row(self, prompt, completion):
        previous = torch.cat([prompt.token_ids[-1:], completion.token_ids[:-1]])
        hidden = self.embed(previous) + self.embed(prompt.token_ids).mean(0)
        return self.head(torch.tanh(self.norm(hidden))), completion

    def _spoiled(self, taken, batch):
        if self.spoil is None or self.spoil[1] not in [s.prompt.sample.id for s in batch.segments]:
            return taken
        if self.spoil[0] == "value":
            return taken * float("nan")
        taken.register_hook(lambda grad: grad * float("inf"))
        return taken

    layout = "packed"

    def trainable(self):
        return [(n, p) for n, p in self.named_parameters() if p.requires_grad]

    @contextmanager
    def reference(self):
        own = {k: v.clone() for k, v in self.state_dict().items()}
        self.load_state_dict(self.frozen)
        try:
            yield
        finally:
            self.load_state_dict(own)

    def fix_reference(self):
        self.frozen = copy.deepcopy(self.state_dict())

    def reference_state(self):
        return self.frozen

    def load_reference(self, state):
        self.frozen = state

    def save(self, folder):
        folder.mkdir()
        torch.save(self.state_dict(), folder / "weights.pt")

    def load_weights_from(self, folder):
        self.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))


def completion_of(length, finish="stop", seed=0, logprob=-1.0):
    ids = torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))
    return Completion(
        token_ids=ids,
        rollout_logprobs=torch.full((length,), logprob),
        loss_mask=torch.ones(length, dtype=torch.bool),
        text=f"text {seed}",
        status=finish,
        policy_version=0,
    )


def scored_group(name, lengths, rewards=None, *, prompt=4, finish=None):
    """A group called ``name``, whose completions have these lengths."""
    seed = sum(map(ord, name))
    ids = torch.randint(0, VOCAB, (prompt,), generator=torch.Generator().manual_seed(seed))
    prompt = Prompt(sample=Sample(id=name, messages=()), text=name, token_ids=ids, model_inputs={})
    finish = finish or ["stop"] * len(lengths)
    completions = tuple(
        completion_of(n, f, seed=seed * 100 + i) for i, (n, f) in enumerate(zip(lengths, finish, strict=True))
    )
    totals = torch.tensor(rewards if rewards is not None else range(len(lengths)), dtype=torch.float64)
    return ScoredGroup(group=Group(prompt=prompt, completions=completions), totals=totals, rewards={"r": totals})

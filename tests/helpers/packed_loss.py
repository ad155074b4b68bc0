"""The loss of a micro-batch from plain tensors, with its metrics as plain numbers, for tests."""

from types import SimpleNamespace

from mmgrpo.config.loss import Loss
from mmgrpo.grpo.inputs import TokenInputs
from mmgrpo.grpo.loss import policy_loss
from mmgrpo.metrics import values
from mmgrpo.training.update_metrics import loss_metrics, loss_sums


def loss_of(now, old, advantages, sequence, mask, *, counts, ref=None, rollout=None, entropy=None, **options):
    """Compute a loss; gives ``loss``, ``found`` and ``sums``. Options not of ``policy_loss`` are keys of ``loss:``."""
    call = {name: options.pop(name) for name in ("surrogate", "weights") if name in options}
    inputs = TokenInputs(
        logprobs=now,
        old_logprobs=old,
        rollout_logprobs=old if rollout is None else rollout,
        ref_logprobs=ref,
        entropy=entropy,
        advantages=advantages[sequence] if len(advantages) else advantages,
        loss_mask=mask,
        sequence=sequence,
        num_sequences=len(advantages),
    )
    found = policy_loss(inputs, Loss(**options), counts, **call)
    return SimpleNamespace(loss=found.loss, found=found, sums=loss_sums(found, mask))


def metrics_of(sums, counts):
    """Metrics of an optimizer step as plain numbers."""
    return values(loss_metrics(sums, counts))


def token_logprobs(logits, token_ids, *, temperature=1.0):
    """Log-prob of one token per row."""
    from mmgrpo.grpo.logprobs import chosen_logprobs, log_distribution

    return chosen_logprobs(log_distribution(logits, temperature=temperature), token_ids)


def entropy(logits, *, temperature=1.0):
    """Entropy of each row."""
    from mmgrpo.grpo.logprobs import entropy_of, log_distribution

    return entropy_of(log_distribution(logits, temperature=temperature))

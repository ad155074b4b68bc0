"""The life of a run, and in it the sentence that can be read aloud: :func:`train_step`.

It never asks which engine, loss or device it has: ``assemble.py`` chooses once, and hands over objects that fulfil the
protocols of ``contracts.py``. Nothing happens between steps that does not stand here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mmgrpo.contracts import (
    Advantages,
    Checkpoints,
    Engine,
    Evaluation,
    Evaluator,
    Learner,
    Monitor,
    Policy,
    PromptSource,
    RunLogger,
    Scorer,
    WarmStart,
)
from mmgrpo.errors import CheckpointError
from mmgrpo.parallel.groups import all_gather_groups
from mmgrpo.parallel.strategy import Strategy
from mmgrpo.running.callback import StepCallback
from mmgrpo.running.clock import Clock
from mmgrpo.running.quota import Quota, with_equal_names
from mmgrpo.running.state import RunState
from mmgrpo.types import Sampling, ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """What a run is made of."""

    policy: Policy
    engine: Engine
    loader: PromptSource
    rewards: Scorer
    advantages: Advantages
    learner: Learner
    monitor: Monitor
    logger: RunLogger
    checkpoints: Checkpoints
    dist: Strategy
    """Those that share the work of each step."""
    clock: Clock
    new_quota: Callable[[], Quota]
    """How many prompts a step asks for; one object per step."""
    sampling: Sampling
    warm_start: WarmStart | None
    """Supervised steps before the first rollout; None: none."""
    evaluator: Evaluator | None
    """None: the run has no held-out rows."""
    on_step: StepCallback
    """The user's callback, if there is one."""


def run_training(parts: Components, run: RunState) -> None:
    """Live a run from its start, or its newest checkpoint, to its end or a reason to stop.

    Args:
        parts: What the run is made of.
        run: Where it stands; holds where it ended.

    Raises:
        MmgrpoError: Whatever a part raises. The steps done before are saved, unless the failed one had begun to change
            the weights.
    """
    try:
        if not start(parts, run):
            return  # of half a warm start there is no checkpoint
        evaluate_before(parts, run)
        with parts.logger.phase("GRPO", run.num_steps, done=run.step):
            for step in run.steps():
                train_step(parts, run, step)
        if run.stopped is None:
            parts.monitor.finish()
        parts.checkpoints.save(run)
        evaluate_after(parts, run)
    except CheckpointError:  # writing again would fail again
        raise
    except BaseException:
        with suppress(CheckpointError):  # a full disk, say: the first error is the one to read
            parts.checkpoints.save_after_failure(run)
        raise


def start(parts: Components, run: RunState) -> bool:
    """Bring weights, optimizer and engine to where the first step begins; False: stopped in the warm start."""
    if run.resumed_from is None:
        if parts.warm_start is not None:
            if not parts.warm_start.run(run.stop):
                run.stopped = run.stop.reason
                return False
            run.warm_started = True
        parts.learner.start(run.num_steps)
        parts.learner.keep_reference()
    else:
        parts.learner.start(run.num_steps)
        parts.checkpoints.restore(run)
    parts.logger.keep_config()
    parts.engine.start(parts.policy.named_weights(), version=run.step)
    if run.warm_started and run.intervals.save:
        parts.checkpoints.save(run)  # hours of imitation are not lost to a mistake in the first step
    return True


def train_step(parts: Components, run: RunState, step: int) -> None:
    """Roll out, score, compare, learn, hand over the weights; then log, evaluate and save what is due."""
    clock, quota = parts.clock, parts.new_quota()
    parts.checkpoints.begin_step()
    scored = collect(parts, quota, step)
    with clock("checks"):
        parts.monitor.check_rollout(scored)
    with clock("update"):
        advantages = parts.advantages.compute(scored)
        parts.engine.release()
        stats = parts.learner.learn(scored, advantages)
    run.step = step + 1
    parts.checkpoints.end_step()
    with clock("sync"):
        parts.engine.load_weights(parts.policy.named_weights(), version=run.step)
        parts.engine.reacquire()
    with clock("checks"):
        parts.monitor.check_weights(version=run.step)

    local = {**parts.engine.metrics(), **parts.rewards.metrics(), **parts.monitor.metrics()}
    metrics = parts.logger.measure(scored, stats, local=local, shared=quota.metrics())
    parts.monitor.observe(scored, metrics)
    if run.is_due(run.intervals.log) or run.at_end:
        parts.logger.write_completions(run.step, scored, advantages)
    parts.logger.log(run.step, metrics)
    if run.is_due(run.intervals.evaluate) and not run.at_end:
        metrics = {**metrics, **evaluate(parts, run).metrics()}
        run.note_best(metrics)
    run.metrics = metrics
    if run.is_due(run.intervals.save) or run.best_step == run.step:
        parts.checkpoints.save(run)
    if parts.on_step(run.step, metrics, groups=scored, stats=stats, policy=parts.policy) and not run.at_end:
        run.stopped = "the on_step callback"


def collect(parts: Components, quota: Quota, step: int) -> list[ScoredGroup]:
    """Roll out and score until the step's quota is met: once, unless it asks for more."""
    clock = parts.clock
    scored: list[ScoredGroup] = []
    while request := quota.request(scored):
        with clock("data"):
            prompts = parts.loader.take(request.prompts)
        with clock("rollout"):
            groups = parts.engine.generate(prompts, request.counts, parts.sampling)
        with clock("reward"):
            local = parts.rewards.score(groups, step=step)
        with clock("sync"):
            new = all_gather_groups(parts.dist, local)
        parts.loader.apply_feedback([s.group.prompt.draw_index for s in new], [float(s.totals.nanmean()) for s in new])
        scored = quota.merge(scored, new)
    return with_equal_names(scored)


def evaluate(parts: Components, run: RunState) -> Evaluation:
    """Evaluate the policy as it is now on the held-out rows, and write the results down."""
    assert parts.evaluator is not None  # intervals.evaluate is 0 without one
    results = parts.evaluator.evaluate(run.step)
    parts.logger.write_evaluation(results)
    run.newest = results if run.step else None
    return results


def evaluate_before(parts: Components, run: RunState) -> None:
    """Evaluate before the first step, or read the results of an earlier start of this run."""
    if run.resumed_from is not None:
        run.before = parts.logger.read_evaluation(0)
    if run.before is None and run.step == 0 and run.intervals.at_start and not run.stop.reason:
        run.before = evaluate(parts, run)
    if run.before is not None and run.intervals.best_metric:
        run.best_metric_of(run.before.metrics())  # a name that does not exist is told now, not after hours


def evaluate_after(parts: Components, run: RunState) -> None:
    """Evaluate after the last step, which is saved already; a resumed run that had ended reads its results."""
    if parts.evaluator is None or run.stopped or run.step == 0:
        return
    run.after = run.newest = parts.logger.read_evaluation(run.step) if run.had_ended else None
    if run.after is None:
        run.after = evaluate(parts, run)
        if run.note_best(run.after.metrics()):
            parts.checkpoints.save(run, again=True)

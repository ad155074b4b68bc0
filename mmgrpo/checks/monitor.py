"""All checks of a run behind one object: of the first rollout, of each weight sync, and of each step.

Decides which run, and in which process; what each looks for is in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmgrpo.checks.first_step import check_first_step
from mmgrpo.checks.step_checks import RewardCoverageCheck, StepWarnings
from mmgrpo.checks.weight_sync import WeightProbe
from mmgrpo.config.schema import Config
from mmgrpo.contracts import Engine
from mmgrpo.policy.model.policy import Policy
from mmgrpo.types import Prompt, Sample, Sampling, ScoredGroup


class RunMonitor:
    """Fulfils :class:`mmgrpo.contracts.Monitor`.

    Args:
        config: Its ``checks:`` section says which checks are on.
        policy: The trainer's side.
        engine: The engine's.
        build_prompt: The run's own processor.
        sampling: Of the rollout.
        warns: Whether this process warns; what is warned of is the same in all.
        on_checked: Told what the checks of the first rollout measured.
    """

    def __init__(
        self,
        config: Config,
        *,
        policy: Policy,
        engine: Engine,
        build_prompt: Callable[[Sample], Prompt],
        sampling: Sampling,
        warns: bool = True,
        on_checked: Callable[[Mapping[str, float]], None] = lambda metrics: None,
    ) -> None:
        self._checks, self._policy, self._build_prompt = config.checks, policy, build_prompt
        self._sampling, self._warns, self._on_checked = sampling, warns, on_checked
        self._probe = WeightProbe(policy, engine, sampling) if config.checks.weight_sync else None
        self._coverage = RewardCoverageCheck()
        self._warnings = StepWarnings(config.checks, masks_truncated=config.loss.mask_truncated_completions)
        self._is_first = True
        self._metrics: dict[str, float] = {}

    def check_rollout(self, scored: Sequence[ScoredGroup]) -> None:
        """Check the first rollout of this process; later ones are not looked at.

        Raises:
            TrainingError: Two computations that must agree do not.
            WeightSyncError: The engine's weights are not the trainer's.
        """
        if not self._is_first:
            return
        self._is_first = False
        local = [one.group for one in scored if one.is_local]
        if not local:  # dynamic sampling may have kept other processes' groups alone
            return
        if self._probe is not None:
            version = local[0].completions[0].policy_version
            self._metrics |= self._probe.begin([group.prompt for group in local], version)
        measured = check_first_step(
            self._policy, local, self._build_prompt, checks=self._checks, temperature=self._sampling.temperature
        )
        self._metrics |= measured
        self._on_checked(measured)

    def check_weights(self, version: int) -> None:
        """Check that the engine writes with the weights of this version.

        Raises:
            WeightSyncError: It does not.
        """
        if self._probe is not None:
            self._metrics |= self._probe.check(version)

    def observe(self, scored: Sequence[ScoredGroup], metrics: Mapping[str, float]) -> None:
        """Look at a step that is done.

        Raises:
            RewardError: No reward has applied to anything for many prompts.

        Warns:
            UserWarning: Something tells of a run that learns nothing; once of each kind.
        """
        self._coverage.observe(scored, metrics)
        if self._warns:
            self._warnings.observe(scored, metrics)

    def finish(self) -> None:
        """Look back at the whole run.

        Raises:
            RewardError: No reward applied in any step.
        """
        self._coverage.finish()

    def metrics(self) -> dict[str, float]:
        """What checks have measured since the last call, by logged name."""
        measured, self._metrics = self._metrics, {}
        return measured

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"watch": self._warnings.state(), "applies": self._coverage.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self._warnings.load_state(state["watch"])
        self._coverage.load_state(state.get("applies", {}))

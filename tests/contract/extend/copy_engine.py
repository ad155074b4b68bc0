"""An engine of a user's own, in one file: a copy of the policy that follows the trainer through load_weights alone."""

from mmgrpo.policy.model.policy import load_policy
from mmgrpo.rollout.local import LocalEngine


class CopyEngine:
    """Holds weights of its own, as an engine in another process does."""

    shares_weights = False

    def __init__(self, *, policy, config):
        plain = config.model.model_copy(update={"tune": "full", "lora": None, "seed": config.model.seed + 1})
        self.copy = load_policy(plain)  # with a seed of its own: other weights until they are sent
        self.local = LocalEngine(self.copy, max_rows=config.rollout.max_rows)
        self.calls = []

    def start(self, weights, version):
        self._take(weights, version)
        self.calls.append(("start", version))

    def load_weights(self, weights, version):
        self._take(weights, version)
        self.calls.append(("load_weights", version))

    def _take(self, weights, version):
        state = self.copy.model.state_dict()
        names = []
        for name, tensor in weights:
            state[name].copy_(tensor)
            names.append(name)
        assert set(names) == set(state), "every weight arrives, once"
        assert len(names) == len(state)
        self.local.load_weights((), version)

    def generate(self, prompts, counts, sampling):
        assert self.calls[-1][0] != "release", "memory was given back and not taken again"
        return self.local.generate(prompts, counts, sampling)

    def release(self):
        self.calls.append(("release",))

    def reacquire(self):
        self.calls.append(("reacquire",))

    def metrics(self):
        return self.local.metrics()

    def close(self):
        self.calls.append(("close",))


class StaleEngine(CopyEngine):
    """Takes the weights of the start, and then the versions alone."""

    def load_weights(self, weights, version):
        self.local.load_weights((), version)
        self.calls.append(("load_weights", version))


class LateEngine(CopyEngine):
    """Is always one update behind."""

    held = None

    def load_weights(self, weights, version):
        now = [(name, tensor.clone()) for name, tensor in weights]
        if self.held is not None:
            self._take(self.held, version)
        self.held = now
        self.local.load_weights((), version)
        self.calls.append(("load_weights", version))


class ForgetfulEngine(CopyEngine):
    """Takes new weights and says that they are the old ones."""

    def load_weights(self, weights, version):
        super().load_weights(weights, version - 1)

"""A run of simulated silos is the same table on other processors: noise follows from no bit that a kernel rounds."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.processors import on

TRAINED = """
import json
import fedcore
found = {}
for method in ("mbsgd", "scaffold", "noised-newton"):
    rounds = [] if method == "noised-newton" else ["algorithm.rounds=30"]
    made = fedcore.train(
        "conf/experiment/hospitals.yaml",
        f"algorithm={{name: {method}}}",
        "privacy.epsilon=5",
        "privacy.ledger=memory",
        *rounds,
    )
    found[method] = made.weights.tolist(), made.test_error
print(json.dumps(found))
"""


@pytest.mark.minutes
@pytest.mark.slow
def test_models_are_equal_to_ten_digits_and_their_errors_are_equal():
    found = {}
    for name, environment in {"Haswell": on("Haswell", "AVX512", "X86_V4"), "SkylakeX": on("SkylakeX")}.items():
        command = [sys.executable, "-W", "ignore", "-c", TRAINED]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        found[name] = json.loads(done.stdout)
    for method, (weights, error) in found["Haswell"].items():
        others, other_error = found["SkylakeX"][method]
        np.testing.assert_allclose(weights, others, rtol=1e-9, atol=1e-10)
        assert error == other_error, method

"""How hard Hypothesis tries here; after a change of core, a long search:

HYPOTHESIS_PROFILE=thorough .venv/bin/python -m pytest tests/core --timeout 0
"""

import os

from hypothesis import HealthCheck, settings

# No deadline and no complaint about slowness: a busy machine is not a bug.
settings.register_profile("quick", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

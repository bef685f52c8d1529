"""Settings that every test shares."""

import os

from hypothesis import HealthCheck, settings

# Seeded and replayable: a failure here is the same failure everywhere. SKYLARK_HYPOTHESIS=campaign
# looks further, with fresh seeds.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("campaign", deadline=None, max_examples=5_000)
settings.load_profile(os.environ.get("SKYLARK_HYPOTHESIS", "repeatable"))

"""``./dev bench``: speed and growth of the bus, measured through its public client in separate processes,
beside a bare ceiling measured in the same run. Ratios travel between machines; absolute figures don't."""

"""Drivers of the Store port (landbridge.core.store): one file each, one contract suite for all."""

"""Drivers of the Store port (landbridge.core.log.store): one file each, one contract suite for all."""

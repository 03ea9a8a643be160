"""Webhooks: messages of a topic that are sent to a URL, signed as Standard Webhooks says."""

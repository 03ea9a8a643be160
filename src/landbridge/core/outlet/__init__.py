"""Outlets: groups whose messages leave the bus, as requests to a URL, as mails or as SMS."""

"""One terminal's topics, groups and connections."""

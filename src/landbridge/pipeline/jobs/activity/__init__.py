"""What goes on: the status log as figures per minute, and as a page."""

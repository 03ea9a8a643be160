"""What travels between terminals: parcels, what was sent of a log, what has arrived."""

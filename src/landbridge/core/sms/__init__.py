"""SMS: what a message is as an SMS, what it costs, and what providers call back with."""

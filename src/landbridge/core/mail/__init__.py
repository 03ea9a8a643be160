"""Mail: what a mail is as a message, and what a message is as a mail."""

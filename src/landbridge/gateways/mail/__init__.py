"""Mail: ``smtp`` takes mails as messages, ``sender`` sends messages as mails."""

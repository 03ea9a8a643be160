"""WebSub (W3C): feeds that anybody may subscribe to by a callback, for a time."""

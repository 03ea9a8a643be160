"""Schedules and opening hours: when something is to happen, decided without a clock. ``now`` is passed in.

``zones.py``: time zones. ``timetable.py``: which moments a crontab expression, an interval or a date names.
``spec.py`` and ``schedule.py``: what a schedule is, and what it does at a moment. ``hours.py``: when a group
is open.
"""

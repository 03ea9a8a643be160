"""The console: the pages by which people watch and operate a terminal in a browser.

The console is a client of its terminal, like every gateway. A person signs in by a one-time link, which
trades a token for a session. Everything a page shows and every change that is made goes through the terminal
with that token, so that authorisation and the audit log are those of the bus. Pages are rendered here, by
Jinja2; the browser gets one style sheet and one module of our own, and nothing from elsewhere.

Read in this order:

    kept         links and sessions as documents that only their secret opens
    sessions     one-time links, sessions and their cookies
    page         what a page is: ``Page``, ``Fragment``, ``PageView``
    action       what an action is: a form bound to an operation of the terminal
    forms        from the fields of a form to the arguments of an operation
    navigation   the places of the pages, in their order
    pages/       the pages, one file per noun; ``pages/__init__.py`` lists them
    rendering    templates, and the filters by which values are shown
    searching    looking for messages of a topic, forwards and backwards
    payloads     payloads as a page shows them
    samples      what is measured once for all sessions, in rings of fixed size
    stream       the one stream of server-sent events of an open page
    app          the application: routes, sign-in, headers, errors
    static/      the style sheet, the module, the icon
    templates/   one file per page, one per fragment (their names begin with ``_``)

How to add a page
-----------------
1. Write ``pages/NOUN.py`` with the entries, and add the module to ``pages/__init__.py``::

       async def rows(view: PageView) -> dict[str, Any]:
           return {"schedules": await view.bus.schedules.list()}


       PAGES = [
           Page(
               "/console/schedules",
               "Schedules",
               "schedules.html",
               scope="observe",
               fragments=[Fragment("rows", "_schedules.html", rows, every=5.0)],
           ),
       ]
       ACTIONS = [
           Action("schedule.pause", table.SCHEDULE_PAUSE, "Pause", done="The schedule {name} is paused"),
           Action(
               "schedule.delete",
               table.SCHEDULE_DELETE,
               "Delete",
               done="The schedule {name} is deleted",
               danger=True,
               meaning=what_a_deletion_means,
               to="/console/schedules",
           ),
       ]

2. Give the page its place in ``navigation.SECTIONS``. A place without a page is not shown.
3. Write ``templates/schedules.html``, which extends ``page.html`` and says where its fragments are::

       {% extends "page.html" %}
       {% block content %}{{ fragment("rows") }}{% endblock %}

   and ``templates/_schedules.html``. Everything is escaped. ``button("schedule.pause", topic=…, name=…)``
   is a button that performs an action with these arguments; ``{% call form("schedule.create") %} … {% endcall
   %}`` is a form whose inputs are named as the fields of the operation's request (``retention.max_age`` for a
   field of a field). Both are empty where the session's scopes don't allow the action; the terminal refuses
   it in any case. ``macros.html`` has the parts that pages share: ``field``, ``area``, ``select``, ``check``,
   ``badge``, ``pager``, ``tabs``, ``empty``, ``facts``, ``figure``. A page's template has them as ``ui``; a
   fragment's begins with ``{% import "macros.html" as ui %}``.

Rules
-----
- A loader asks for one page of rows and for nothing that grows with the number of topics. It is called again
  every ``every`` seconds for each open page; 0 means once, with the page.
- What is shown and doesn't depend on scopes is measured once, by ``samples``, for all sessions.
- No ``style`` attribute, no ``on…`` attribute, no inline script: the policy forbids them. Colours of states
  are classes (``ok``, ``warn``, ``bad``, ``idle``), and every state has a word.
- An action with ``danger`` is performed only after the person has confirmed it, on a page or in a dialog that
  says what it means (``meaning``), also without JavaScript.
"""

from __future__ import annotations

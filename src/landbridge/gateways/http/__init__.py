"""The HTTP gateway: messages, live streams and administration of a terminal by HTTP and JSON.

A gateway is a client of its terminal: each request shows a bearer token, and the gateway uses a connection
with that token, so the terminal alone decides what the caller may do. Read in this order:

    exchange        one request and its answer
    sessions        pooled connections, one for each token
    publish         publishing, also requests that may be repeated
    forms           messages as JSON
    cloudevents     messages as CloudEvents 1.0
    pull, receipts  taking messages from a group, and what settles them
    settle          settling
    by_query        subscriptions by query: their rule's topic
    events          live streams by server-sent events
    websocket       live streams in both directions
    cross_origin    pages of which web sites may ask
    asking          requests to services, whose reply may be waited for
    administration  the terminal's operations, by their table
    sms             callbacks of SMS providers
    websub          feeds and the hub of WebSub
    routes          which path is answered by what
    catalogue       all routes
    openapi         the document, and reference: its page
    app             the application
"""

from landbridge.gateways.http.app import HttpGateway

__all__ = ["HttpGateway"]

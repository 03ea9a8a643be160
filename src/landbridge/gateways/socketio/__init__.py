"""The Socket.IO gateway: protocol 5, for the stock clients, at ``/socket.io/`` of the HTTP port.

As in the HTTP gateway, whose connections to the terminal it shares, the terminal alone decides what a client
may do. Read in this order:

    front         the ASGI application: what strangers send is checked
    engine        the library python-socketio, with the bounds that it lacks
    packet        packets, read and written
    client        one client: sign-in, requests, what it is sent
    subscription  a topic's log by offset, or a group
    tail          what clients of one token share of a log
    register      what clients share: bounds, figures
    forms         what is said, as JSON

It needs the extra ``socketio``.
"""

from landbridge.gateways.socketio.front import SocketGateway

__all__ = ["SocketGateway"]

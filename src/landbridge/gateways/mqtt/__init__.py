"""The MQTT gateway: clients of MQTT 3.1.1 and 5, on a port of their own and over WebSockets at the HTTP port.

A gateway is a client of its terminal: each connection of MQTT is a connection of the bus, with the token that
the client shows as its password, so the terminal alone decides what the client may do. Read in this order:

    bounds       what is bounded, and by how much
    forms        a packet as a message, and a message as a packet
    retained     the last retained message of each topic
    sessions     what is kept of clients that are away
    intake       what a client publishes
    deliveries   what a client has subscribed
    connection   one connection, from its first byte to its last
    port         the port: all connections, their sessions and wills
    websocket    the same connections over WebSockets
"""

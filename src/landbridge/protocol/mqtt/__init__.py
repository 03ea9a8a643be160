"""MQTT 3.1.1 and 5.0 without I/O: bytes to packets and packets to bytes.

reasons     reason codes, and the error of a peer that breaks the protocol
fields      the types that packets are made of, and their bounds
properties  the properties of version 5, by packet
packets     one struct for each packet
decoding    the body of a packet, read
encoding    packets, written
stream      packets out of a stream of bytes, whatever its pieces
names       topic names and filters of MQTT as topics and patterns of the bus
"""

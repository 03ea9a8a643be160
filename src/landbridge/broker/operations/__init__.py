"""The operations that one terminal answers by itself, a file per noun. The table is
``landbridge.protocol.operations``; ``dispatcher`` leads from a name on the wire to its handler."""

"""How a group hands out messages: order, filters, leases, attempts."""

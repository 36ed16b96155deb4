"""Clients of a relay: a party's HTTP calls, which dial out alone."""

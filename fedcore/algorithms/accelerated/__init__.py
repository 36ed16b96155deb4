"""Accelerated methods: the server side that all of them share, and those that use it on all records at once."""

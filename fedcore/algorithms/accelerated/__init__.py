"""Accelerated methods: the server side that all share, and the methods that use all records at once."""

"""The federation on one machine: relay, driver and four hospitals, kept apart by users and network namespaces."""

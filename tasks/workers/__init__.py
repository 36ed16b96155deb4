"""Silos on Dask workers: the cluster and its keys, holders of sites, and the backend that sends them queries."""

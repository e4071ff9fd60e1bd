"""One scenario on many brokers, catalogs, stores and engines: `make conformance`."""

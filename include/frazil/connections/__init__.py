"""Connections: one for each server, the settings of each client, and why a server refuses.

`lookup` finds a connection by its id, `clients` and `catalog_settings` translate it for each
client, `causes` explains a client's error in a sentence.

May import: no other package of the library.
"""

"""The programs of the server, and tritonserver as a Python object: see `command` and `triton_server`."""

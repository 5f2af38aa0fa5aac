"""One server or several: connections, the choice among them, and calls that another one may take over.

gRPC's own balancing cannot take its place. `round_robin` knows no voices. `ring_hash_experimental` gives each voice one
server however busy that is, and a retry goes there again. Its retries do not see the errors of a stream, which Triton
sends as messages. Its health checks need `Health/Watch`; Triton has `Health/Check` alone.
"""

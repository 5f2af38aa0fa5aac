"""Jobs: speech of long texts that nobody waits for, and that survives the end of its gateway.

    schemas      what a caller sends, and what it is told
    plan         the sentences of a job, their seeds and addresses
    tables       jobs in a file of SQLite, which one gateway owns
    sentences    speech that is kept, each sentence under its address
    making       makes the sentences that are missing
    assembly     joins them to the file that was asked for
    webhooks     tells callers how their jobs ended
    keeper       all of it together: what the endpoints call

Whatever ends the gateway, the next one goes on with what the files hold. A job counts on nothing but its plan, which is
written before it is acknowledged, and on sentences, each of which is whole or not there. So each step may be repeated.
"""

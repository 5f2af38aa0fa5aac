"""Jobs: long texts that are spoken in the background, and survive the end of their gateway.

    schemas      what a caller sends, and what it is told
    plan         the sentences of a job, their seeds and addresses
    tables       jobs in a file of SQLite
    sentences    speech that is kept, each sentence under its address
    files        the folder with both, which one gateway owns
    making       makes the sentences that are missing
    assembly     joins them to the file that was asked for
    work         a whole job by these
    webhooks     tells callers how their jobs ended
    keeper       all jobs: what the endpoints call

Whatever ends the gateway, the next one goes on with what the files hold. A job counts on nothing but its plan, which is
written before it is acknowledged, and on sentences, each of which is whole or not there. So each step may be repeated.
"""

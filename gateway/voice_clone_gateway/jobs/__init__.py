"""Jobs: long texts that are spoken in the background, and survive the end of their gateway.

    schemas      what a caller sends, and what it is told
    plan         the sentences of a job, their seeds and addresses
    database     what jobs lie in: `sqlite`, for one gateway, or `postgres`, for those of a fleet
    scratch      a folder in which files are made for the latter
    tables       the jobs in it, and who makes them
    deliveries   webhooks in it
    batch_tables batches in it, and the files that callers send
    sentences    speech in it, each sentence under its address
    files        the thread that works in it
    making       makes the sentences that are missing
    assembly     joins them to the file that was asked for
    job_keys     the keys by which they are made
    work         a whole job by these
    webhooks     tells callers how their jobs ended
    keeper       all jobs: what the endpoints call
    batches      texts in one file, each of which becomes a job

Whatever ends the gateway, the next one goes on with what the database holds. A job counts on nothing but its text,
which is written before it is acknowledged, on its plan, which is made once, and on sentences, each of which is whole or
not there. So each step may be repeated.
"""

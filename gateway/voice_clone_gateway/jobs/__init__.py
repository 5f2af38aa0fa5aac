"""Jobs: long texts that are spoken in the background, and survive the end of their gateway.

    schemas      requests and answers, as JSON
    plan         the sentences of a job, their seeds and addresses
    database     the database of jobs: `sqlite` for one gateway, `postgres` for a fleet
    scratch      a temporary folder, for files that go to `postgres`
    tables       the jobs in it, and who makes them
    deliveries   webhooks in it
    batch_tables batches in it, and the files that callers send
    sentences    speech in it, each sentence under its address
    files        the thread that works in it
    making       makes the sentences that are missing
    assembly     joins them to the file of the result
    job_keys     the keys by which they are made
    work         makes a whole job with these
    webhooks     reports the end of jobs to callers
    keeper       all jobs: what the endpoints call
    batches      the batches of OpenAI's API: each line of a file is a job

Whatever ends the gateway, the next one goes on with what the database holds. A job counts on nothing but its text,
which is written before it is acknowledged, on its plan, which is made once, and on sentences, each of which is whole or
not there. So each step may be repeated.
"""

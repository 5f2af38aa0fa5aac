"""Images that stand in for those of others where no registry is within reach, of Debian's packages.

Each has what our files use of the real one, at the same places: programs, users, folders, and how it is started.
"""

from __future__ import annotations

PYTHON = "docker.io/library/python:3.11-slim-bookworm"
TRITON_RELEASE = "24.10"  # whose server the wheel nvidia-pytriton has
TRITON = f"nvcr.io/nvidia/tritonserver:{TRITON_RELEASE}-py3"
TRITON_STAGE = "localhost/voice-clone-test:triton"  # of our Dockerfile: what that wheel has

_CLEAN = """DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };
Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";"""  # apt in images of Debian keeps no caches

ROOTS = {
    PYTHON: (
        "python3-minimal,python3-venv,python3-pip,libpython3.11,ca-certificates",
        [
            '--customize-hook=chroot "$1" python3 -m venv --copies /usr/local',  # where its own has Python
            f"--customize-hook=echo '{_CLEAN}' > \"$1\"/etc/apt/apt.conf.d/docker-clean",
        ],
        "bookworm",
    ),
}
"""Of what mmdebstrap makes: its packages, further options, and its suite."""

_INSTALL = """
RUN apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*
"""
_POSTGRES = """
[ -s "$PGDATA/PG_VERSION" ] || {
    echo "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username "$POSTGRES_USER" --pwfile /tmp/password --auth scram-sha-256
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "create database $POSTGRES_DB" | postgres --single postgres
}
exec postgres -c listen_addresses=*
"""

RECIPES = {
    # Its own has Ubuntu, Python 3.10, CUDA, and an entry point that also prints what it is.
    TRITON: f"""
FROM {PYTHON}
{_INSTALL.format("curl libarchive13")}
COPY --from={TRITON_STAGE} /opt/tritonserver /opt/tritonserver
COPY entrypoint /opt/nvidia/nvidia_entrypoint.sh
RUN chmod 755 /opt/nvidia/nvidia_entrypoint.sh && useradd --uid 1000 triton-server
ENV PATH=/opt/tritonserver/bin:/usr/local/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/tritonserver/lib
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
""",
    "docker.io/library/haproxy:2.6.12": f"""
FROM {PYTHON}
{_INSTALL.format("haproxy")}
RUN mkdir -p /usr/local/etc/haproxy
USER haproxy
STOPSIGNAL SIGUSR1
CMD ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
""",
    "docker.io/library/postgres:15.15": f"""
FROM {PYTHON}
{_INSTALL.format("postgresql-15")}
ENV PGDATA=/var/lib/postgresql/data PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin
RUN install -d -o postgres -m 700 "$PGDATA"
COPY start /usr/local/bin/start
USER postgres
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
CMD ["sh", "-e", "/usr/local/bin/start"]
""",
    "docker.io/prom/prometheus:v3.5.0": f"""
FROM {PYTHON}
{_INSTALL.format("prometheus")}
RUN install -d -o nobody /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
""",
}
"""Containerfiles of what is built on these."""

FILES = {"start": _POSTGRES, "entrypoint": '#!/bin/sh\nexec "$@"\n'}
"""What lies beside each."""

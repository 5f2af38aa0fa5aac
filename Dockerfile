# Two images: the model repository inside the NGC Triton container, and the HTTP gateway before it.
#
#   docker build -t voice-clone .
#   docker build -t voice-clone-gateway --target gateway .
#   docker run --gpus all --shm-size=2g -p 127.0.0.1:8000-8002:8000-8002 \
#       -v "$(realpath DIR)":/checkpoint:ro -v voices:/voices -v cache:/cache voice-clone
#
# Without a GPU: docker build --build-arg TORCH=torch==2.13.0+cpu --build-arg PIP_EXTRA_INDEX_URL=INDEX \
#     --build-arg ONNX_RUNTIME=onnxruntime, and -e VOICE_CLONE_DEVICE=cpu in place of --gpus. INDEX: see docs/deployment.md.
# On another release of Triton: docker build -t voice-clone --build-arg TRITON=RELEASE .
# No weights are inside. Both, with Prometheus and Grafana: docker-compose.yml.
# Triton's release: any of tools/triton_releases.py, which has the packages that fit it. By default the newest of which
# they are known. NEVER BUILT HERE: no image of any release was. The code ran on the server of 24.10, without a container,
# and its tests once on a CPU build of 26.07. 24.10 lacks NVIDIA's security fixes of 25.07 and later.
ARG TRITON=26.08
ARG PYTHON=3.11

# The gateway and the client need neither torch nor Triton.
FROM python:${PYTHON}-slim-bookworm AS gateway
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini=0.19.* \
    && rm -rf /var/lib/apt/lists/*
COPY client /tmp/client
RUN pip install --no-cache-dir "/tmp/client[gateway]" && rm -rf /tmp/client \
    && useradd --system --no-create-home gateway
USER gateway
ENV VOICE_CLONE_GATEWAY_HOST=0.0.0.0
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://localhost:8080/health', timeout=4)"]
ENTRYPOINT ["tini", "--"]
CMD ["voice-clone-gateway"]

FROM nvcr.io/nvidia/tritonserver:${TRITON}-py3 AS packages
ARG TRITON
# The default build of torch brings CUDA 13 along. The ONNX Runtime of releases before 26.07 wants CUDA 12: for CosyVoice3
# on a GPU take torch==2.13.0+cu126 there, and PyTorch's index of these builds.
ARG TORCH=torch==2.13.0
ARG PIP_EXTRA_INDEX_URL=
# What CosyVoice3's encoders run on; it runs on the CPU too.
ARG ONNX_RUNTIME=onnxruntime-gpu
WORKDIR /src
COPY pyproject.toml LICENSE tools/triton_releases.py ./
COPY voice_clone ./voice_clone
RUN python3 triton_releases.py "${TRITON}" "${ONNX_RUNTIME}" > pins.txt \
    && pip wheel --no-cache-dir --wheel-dir /wheels --requirement pins.txt "${TORCH}" ".[server,postgresql,marking]"

FROM nvcr.io/nvidia/tritonserver:${TRITON}-py3 AS server
# binutils: the linker of native code.
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils=2.* tini=0.19.* \
    && rm -rf /var/lib/apt/lists/*
# Images with Python 3.12 belong to a system whose pip refuses to install beside its own packages.
RUN --mount=type=bind,from=packages,source=/wheels,target=/wheels \
    PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir --no-index /wheels/*.whl
COPY model_repository /models
WORKDIR /opt/voice-clone
COPY tools/__init__.py tools/addresses.py tools/config_file.py tools/gateway_process.py tools/guard.py tools/preflight.py \
    tools/restarts.py tools/serve.py tools/server_log.py tools/server_memory.py tools/steps.py tools/stopping.py tools/triton_binary.py \
    tools/triton_server.py tools/voice_store.py tools/
COPY client/voice_clone_client/__init__.py client/voice_clone_client/_version.py client/voice_clone_client/_arguments.py \
    client/voice_clone_client/_program.py client/voice_clone_client/confinement.py client/voice_clone_client/names.py voice_clone_client/
COPY tools/families/__init__.py tools/families/cards.py tools/families/names.py tools/families/recognition.py tools/families/
# Voices outlive the container in this volume; the server runs as the image's own user. /cache has compiled code and packed
# weights: mount a volume there, and the next container starts in seconds.
RUN mkdir -p /voices /cache && chown triton-server: /voices /cache && chmod 700 /voices /cache
# A model that finds no GPU does not load: on the CPU it would only seem to work.
# fp32 is fp32 with every engine: TensorRT has no other switch for TF32, with whose ten bits other codes come out.
ENV VOICE_CLONE_CHECKPOINT_DIR=/checkpoint \
    VOICE_CLONE_VOICE_DIR=/voices \
    VOICE_CLONE_DEVICE=cuda \
    NUMBA_CACHE_DIR=/cache \
    NVIDIA_TF32_OVERRIDE=0 \
    OMP_WAIT_POLICY=PASSIVE
VOLUME /voices
USER triton-server
EXPOSE 8000 8001 8002
# The start period is that of --load-seconds: what waits for a healthy server gives up when it is over.
HEALTHCHECK --interval=10s --timeout=5s --start-period=3600s \
    CMD ["curl", "--silent", "--fail", "--output", "/dev/null", "--noproxy", "*", "http://localhost:8000/v2/health/ready"]
ENTRYPOINT ["tini", "--", "/opt/nvidia/nvidia_entrypoint.sh"]
# Of /models it loads the family that the checkpoint belongs to; a family without a checkpoint could not start. Several
# families: the same command with one --checkpoint for each. Options of tritonserver: at its end, after "--".
CMD ["python3", "-m", "tools.serve", "--models=/models", "--host=0.0.0.0", "--load-seconds=3600", "--checkpoint=/checkpoint"]

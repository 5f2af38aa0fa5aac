# Three images: all of it for a CPU; the model repository inside NVIDIA's Triton container; the HTTP gateway before that.
#
#   docker build -t voice-clone:cpu --target cpu .
#   docker run -p 127.0.0.1:8080:8080 -v voices:/voices -v cache:/cache voice-clone:cpu
#
#   docker build -t voice-clone --target server .
#   docker build -t voice-clone-gateway --target gateway .
#   docker run --gpus all --shm-size=2g -p 127.0.0.1:8000-8002:8000-8002 \
#       -v "$(realpath DIR)":/checkpoint:ro -v voices:/voices -v cache:/cache voice-clone
#
# The image for a CPU has a checkpoint, which -v "$(realpath DIR)":/checkpoint:ro takes the place of. In the others
# there are no weights. On another release of Triton: --build-arg TRITON=RELEASE. Build arguments and what was tried:
# docs/deployment.md. Tests: tools/test --images. Both, with Prometheus and Grafana: docker-compose.yml.
#
# Triton's release: any of tools/triton_releases.py, which has the packages that fit it. By default the newest of which
# they are known. 24.10 lacks NVIDIA's security fixes of 25.07 and later.
ARG TRITON=26.08
ARG PYTHON=3.11

# What pip has to download, apart from our code: a change of that downloads nothing again.
FROM python:${PYTHON}-slim-bookworm AS required
WORKDIR /src
COPY pyproject.toml constraints.txt ./
COPY client/pyproject.toml client/
COPY client/command/pyproject.toml client/command/
COPY gateway/pyproject.toml gateway/
COPY tools/requirements.py tools/
RUN python tools/requirements.py server,postgresql > cpu.txt \
    && python tools/requirements.py server,postgresql,marking --without-gateway > server.txt \
    && python tools/requirements.py server --without-server > gateway.txt

# Without the models and the demo's voice, which the images have in folders of their own.
FROM python:${PYTHON}-slim-bookworm AS ours
WORKDIR /src
COPY pyproject.toml LICENSE ./
COPY voice_clone voice_clone
COPY voice_clone_server voice_clone_server
COPY client client
COPY gateway gateway
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . ./client ./client/command ./gateway

# What server and gateway need on a CPU, once for both images.
FROM python:${PYTHON}-slim-bookworm AS cpu-packages
RUN apt-get update && apt-get install -y --no-install-recommends binutils=2.*
COPY --from=required /src/cpu.txt ./
RUN pip wheel --no-cache-dir --wheel-dir /wheels --requirement cpu.txt

# Symbols for a debugger are a third of these packages. The libraries in *.libs have few, and are left as they are.
FROM cpu-packages AS gateway-packages
COPY --from=required /src/gateway.txt ./
RUN pip install --no-cache-dir --no-index --find-links /wheels --prefix /installed --requirement gateway.txt \
    && find /installed -name '*.so' ! -path '*.libs/*' -exec strip --strip-unneeded {} +

# The gateway and the client need neither torch nor Triton.
FROM python:${PYTHON}-slim-bookworm AS gateway
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini=0.19.* \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home gateway
COPY --from=gateway-packages /installed /usr/local
COPY --from=ours /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps --no-index /tmp/wheels/voice_clone_client-*.whl /tmp/wheels/voice_clone_gateway-*.whl
USER gateway
ENV VOICE_CLONE_GATEWAY_HOST=0.0.0.0
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s \
    CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://localhost:8080/health', timeout=4)"]
ENTRYPOINT ["tini", "--"]
CMD ["voice-clone-gateway"]

# Triton without NVIDIA's image: the server, its Python backend and their libraries, in the folders that they have there.
FROM python:${PYTHON}-slim-bookworm AS triton
ARG PYTRITON=nvidia-pytriton==0.7.0
ARG PYTHON
WORKDIR /wheel
RUN pip install --no-cache-dir --no-deps --target . "${PYTRITON}" \
    && mkdir -p /opt/tritonserver/bin /opt/tritonserver/backends \
    && mv pytriton/tritonserver/bin/tritonserver /opt/tritonserver/bin/ \
    && mv pytriton/tritonserver/backends/python /opt/tritonserver/backends/ \
    && mv "pytriton/tritonserver/python_backend_stubs/${PYTHON}/triton_python_backend_stub" /opt/tritonserver/backends/python/ \
    && chmod 755 /opt/tritonserver/bin/tritonserver /opt/tritonserver/backends/python/triton_python_backend_stub \
    && rm nvidia_pytriton.libs/libpython3* \
    && mv nvidia_pytriton.libs /opt/tritonserver/lib

# Native code for each kind of processor, so that the image has no compiler.
FROM cpu-packages AS native
RUN pip install --no-cache-dir --no-index --find-links /wheels numba numpy platformdirs xxhash
WORKDIR /src
COPY client/voice_clone_errors voice_clone_errors
COPY voice_clone/__init__.py voice_clone/errors.py voice_clone/gpu.py voice_clone/model_start.py voice_clone/
COPY voice_clone/native voice_clone/native
# For processors of one kind alone, of docs/operations.md: INSTRUCTIONS=avx2.
ARG INSTRUCTIONS=
RUN python -m voice_clone.native.kernels.ahead ${INSTRUCTIONS} && chmod -R a+rX voice_clone/native/ahead_of_time

# Without the compiler, what only from_pretrained of tokenizers needs, and numpy's tests.
FROM cpu-packages AS installed
RUN pip install --no-cache-dir --no-deps --no-index --prefix /installed $(find /wheels -name '*.whl' \
        ! -name 'numba-*' ! -name 'llvmlite-*' ! -name 'huggingface_hub-*' ! -name 'hf_xet-*' ! -name 'fsspec-*') \
    && find /installed -path '*/numpy/*/tests' -prune -exec rm -r {} + \
    && find /installed -name '*.so' ! -path '*.libs/*' -exec strip --strip-unneeded {} +
# What the model aligner of docs/word_times.md needs, such as pocketsphinx==5.1.1. No alignment needs its model of language.
ARG ALIGNMENT=
RUN if [ -n "${ALIGNMENT}" ]; then \
        pip install --no-cache-dir --no-deps --prefix /installed "${ALIGNMENT}" \
        && find /installed -path '*/pocketsphinx/model/*.lm.bin' -delete; \
    fi

FROM python:${PYTHON}-slim-bookworm AS cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini=0.19.* \
    && rm -rf /var/lib/apt/lists/*
COPY --from=installed /installed /usr/local
# torch and a compiler, for the families that need them: with PyTorch's index of its builds for CPUs. Without them the
# image serves Qwen3-TTS.
ARG TORCH=
ARG PIP_EXTRA_INDEX_URL=
COPY --from=required /src/cpu.txt /opt/voice-clone/
RUN if [ -n "${TORCH}" ]; then \
        apt-get update && apt-get install -y --no-install-recommends binutils=2.* && rm -rf /var/lib/apt/lists/* \
        && pip install --no-cache-dir "${TORCH}" --requirement /opt/voice-clone/cpu.txt \
        && find / -xdev -name libllvmlite.so -exec strip --strip-unneeded {} +; \
    fi
COPY --from=triton /opt/tritonserver /opt/tritonserver
COPY --from=ours /wheels /opt/voice-clone/wheels
RUN pip install --no-cache-dir --no-deps --no-index /opt/voice-clone/wheels/*.whl
ARG PYTHON
COPY --from=native /src/voice_clone/native/ahead_of_time /usr/local/lib/python${PYTHON}/site-packages/voice_clone/native/ahead_of_time
COPY model_repository /models
COPY tools/data/demo_voice /checkpoint
COPY tools/data/demo_clips/slt.wav /opt/voice-clone/demo.wav
# Any user of group 0 may run it, as OpenShift wants.
RUN python -m compileall -q /models \
    && useradd --uid 1000 --gid 0 --no-create-home voice-clone \
    && mkdir -p /voices /cache && chown 1000:0 /voices /cache && chmod 770 /voices /cache
ENV VOICE_CLONE_TRITON_DIR=/opt/tritonserver \
    VOICE_CLONE_VOICE_DIR=/voices \
    VOICE_CLONE_DEVICE=cpu \
    NUMBA_CACHE_DIR=/cache
VOLUME /voices /cache
USER 1000
EXPOSE 8080 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=3600s \
    CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://localhost:8080/health', timeout=4)"]
ENTRYPOINT ["tini", "--"]
CMD ["voice-clone-server", "serve", "--models=/models", "--host=0.0.0.0", "--load-seconds=3600", "--checkpoint=/checkpoint", \
    "--gateway=8080", "--first-voice=/opt/voice-clone/demo.wav"]

FROM nvcr.io/nvidia/tritonserver:${TRITON}-py3 AS packages
ARG TRITON
# The default build of torch brings CUDA 13 along. The ONNX Runtime of releases before 26.07 wants CUDA 12: for CosyVoice3
# on a GPU take torch==2.13.0+cu126 there, and PyTorch's index of these builds.
ARG TORCH=torch==2.13.0
ARG PIP_EXTRA_INDEX_URL=
# What CosyVoice3's encoders run on; it runs on the CPU too.
ARG ONNX_RUNTIME=onnxruntime-gpu
# What the model aligner of docs/word_times.md needs, such as pocketsphinx==5.1.1.
ARG ALIGNMENT=
WORKDIR /src
COPY --from=required /src/server.txt ./
COPY tools/triton_releases.py ./
RUN python3 triton_releases.py "${TRITON}" "${ONNX_RUNTIME}" > pins.txt \
    && pip wheel --no-cache-dir --wheel-dir /wheels --requirement pins.txt --requirement server.txt ${TORCH} ${ALIGNMENT}

FROM nvcr.io/nvidia/tritonserver:${TRITON}-py3 AS server
# binutils: the linker of native code.
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils=2.* tini=0.19.* \
    && rm -rf /var/lib/apt/lists/*
# Images with Python 3.12 belong to a system whose pip refuses to install beside its own packages.
RUN --mount=type=bind,from=packages,source=/wheels,target=/wheels \
    PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir --no-index /wheels/*.whl
COPY --from=ours /wheels /opt/voice-clone/wheels
RUN PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir --no-deps --no-index /opt/voice-clone/wheels/*.whl
COPY model_repository /models
# Voices outlive the container in this volume; the server runs as the image's own user, and as any of group 0. /cache has
# compiled code and packed weights: mount a volume there, and the next container starts in seconds.
RUN python3 -m compileall -q /models \
    && mkdir -p /voices /cache && chown triton-server:0 /voices /cache && chmod 770 /voices /cache
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
CMD ["voice-clone-server", "serve", "--models=/models", "--host=0.0.0.0", "--load-seconds=3600", "--checkpoint=/checkpoint"]

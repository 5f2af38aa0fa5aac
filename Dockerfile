# The model repository inside the NGC Triton container.
#
#   docker build -t voice-clone .
#   docker run --gpus all --shm-size=2g -p 8000-8002:8000-8002 \
#       -v /path/to/Qwen3-TTS-12Hz-0.6B-Base:/checkpoint:ro -v voices:/voices voice-clone
ARG TRITON=24.10
FROM nvcr.io/nvidia/tritonserver:${TRITON}-py3

WORKDIR /opt/voice-clone
COPY pyproject.toml ./
COPY voice_clone ./voice_clone
RUN pip install --no-cache-dir . && rm -rf build *.egg-info
COPY model_repository /models

# Voices outlive the container in this volume; the server runs as the image's own user.
RUN mkdir -p /voices && chown triton-server: /voices && chmod 700 /voices
ENV VOICE_CLONE_CHECKPOINT_DIR=/checkpoint \
    VOICE_CLONE_VOICE_DIR=/voices \
    OMP_WAIT_POLICY=PASSIVE
VOLUME ["/voices"]
USER triton-server

EXPOSE 8000 8001 8002
CMD ["tritonserver", "--model-repository=/models", "--disable-auto-complete-config"]

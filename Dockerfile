# The image of `aioflow serve` and of workers. docs/deployment.md describes how to use it.
#
#     docker build -t aioflow-engine --build-arg EXTRAS=serve,onednn .
#
# EXTRAS has the names of optional dependencies in pyproject.toml, PYTHON is the version of the base image.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=serve
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
COPY . .
# pip also compiles the installed modules to bytecode. The versions of the dependencies are those of pyproject.toml.
# hadolint ignore=DL3013
RUN pip wheel --no-deps --wheel-dir /wheels . \
    && python -m venv --without-pip /opt/aioflow \
    && set -- /wheels/*.whl \
    && pip --python /opt/aioflow/bin/python install "$1${EXTRAS:+[$EXTRAS]}"

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="aioflow" \
    org.opencontainers.image.description="Model server and workers of aioflow, an asyncio-native dataflow engine" \
    org.opencontainers.image.licenses="Apache-2.0"
# The base image has no bytecode of the standard library. The user of the container could not store any, so every start
# would compile it. The extra `onednn` needs libgomp1, of which Debian keeps only the latest version.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && python -m compileall -q "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && groupadd --gid 1000 aioflow \
    && useradd --uid 1000 --gid aioflow --create-home aioflow
COPY --from=build /opt/aioflow /opt/aioflow
COPY docker/healthcheck.py /opt/aioflow/healthcheck.py
ENV PATH=/opt/aioflow/bin:$PATH PYTHONDONTWRITEBYTECODE=1
WORKDIR /models
# A number, by which Kubernetes' runAsNonRoot can be checked.
USER 1000:1000
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m CMD ["python", "-I", "/opt/aioflow/healthcheck.py"]
# No ENTRYPOINT: `docker run IMAGE COMMAND` accepts every command of the documentation, also `python -m aioflow.worker`.
CMD ["aioflow", "serve", "--host", "0.0.0.0", "--config", "serve.toml"]

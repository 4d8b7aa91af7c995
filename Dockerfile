# Talekeeper in a container: docker build -t talekeeper . && docker run -p 127.0.0.1:8000:8000 \
#   -v talekeeper:/data --add-host=host.docker.internal:host-gateway talekeeper
#
# The added host is the machine itself, for model servers that run on it.
#
# The image runs as user 10001 and writes to /data (and /tmp) alone: it may have a read-only root.

FROM python:3.11-slim-bookworm AS build

ARG UV_VERSION=0.13.8
RUN pip install --no-cache-dir --disable-pip-version-check "uv==${UV_VERSION}"
ENV UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PROJECT_ENVIRONMENT=/app \
    UV_PYTHON_DOWNLOADS=never
WORKDIR /src

# The libraries by themselves: this layer is made anew only when the lock file changes.
COPY pyproject.toml uv.lock ./
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-default-groups --no-install-project

COPY LICENSE NOTICE README.md ./
COPY prompts prompts
COPY backend backend
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --locked --no-default-groups --no-editable


FROM python:3.11-slim-bookworm

RUN groupadd --gid 10001 talekeeper \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin talekeeper \
    && install --directory --owner 10001 --group 10001 --mode 0700 /data /data/models \
        /data/transfers
COPY --from=build /app /app

ENV PATH=/app/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TALEKEEPER_DATA_DIR=/data \
    TALEKEEPER_HOST=0.0.0.0 \
    TALEKEEPER_PORT=8000
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000

HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client, os; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['TALEKEEPER_PORT']), timeout=4); c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]

ENTRYPOINT ["talekeeper"]
CMD ["serve"]

# The agent with exactly the locked versions of its dependencies, without Spark and Java.
FROM python:3.11-slim AS build
COPY --from=ghcr.io/astral-sh/uv:0.13.8 /uv /usr/local/bin/uv
WORKDIR /src
ENV UV_PROJECT_ENVIRONMENT=/opt/lakewarden UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy
# Dependencies come first: they change less often than the sources, and Docker reuses this layer.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --extra agent --no-install-project
COPY agent agent
COPY events events
COPY handlers handlers
COPY spark_jobs spark_jobs
RUN uv sync --frozen --no-dev --extra agent --no-editable

FROM python:3.11-slim
COPY --from=build /opt/lakewarden /opt/lakewarden
ENV PATH=/opt/lakewarden/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --create-home lakewarden
USER lakewarden
ENTRYPOINT ["lakewarden"]
CMD ["agent"]

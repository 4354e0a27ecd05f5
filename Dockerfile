# The agent with exactly the locked versions of its dependencies, without Spark and Java.
FROM python:3.11-slim AS build
COPY --from=ghcr.io/astral-sh/uv:0.13.8 /uv /usr/local/bin/uv
WORKDIR /src
ENV UV_PROJECT_ENVIRONMENT=/opt/lakewarden UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy
# Dependencies come first: they change less often than the sources, and Docker reuses this layer.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --extra agent --extra catalogs --no-install-project
COPY agent agent
COPY events events
COPY handlers handlers
COPY spark_jobs spark_jobs
RUN uv sync --frozen --no-dev --extra agent --extra catalogs --no-editable

FROM python:3.11-slim
COPY --from=build /opt/lakewarden /opt/lakewarden
# The endpoint for probes and Prometheus answers on all addresses of the container; publish the port where it is needed.
ENV PATH=/opt/lakewarden/bin:$PATH PYTHONUNBUFFERED=1 LAKEWARDEN_HTTP_LISTEN=:8437
EXPOSE 8437
# A number, so that Kubernetes can verify that it isn't root.
RUN groupadd --gid 10001 lakewarden && useradd --uid 10001 --gid 10001 --create-home lakewarden
USER 10001
# Asks the agent whether it is ready. A container that runs another command of lakewarden needs `--no-healthcheck`.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=3 CMD ["python", "-m", "lakewarden.agent.health_check"]
ENTRYPOINT ["lakewarden"]
CMD ["agent"]

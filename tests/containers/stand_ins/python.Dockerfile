# Debian's Python under the paths of the published image, with this machine's certificate authorities.
FROM lakewarden-stand-in/debian:bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/bin/python3 /usr/local/bin/python3 \
    && ln -s /usr/bin/python3 /usr/local/bin/python
COPY certificates /usr/local/share/ca-certificates
RUN update-ca-certificates
# uv trusts only its own authorities otherwise.
ENV UV_SYSTEM_CERTS=true
CMD ["python3"]

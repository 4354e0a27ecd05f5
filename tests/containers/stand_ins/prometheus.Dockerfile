# Debian's Prometheus and BusyBox, with the paths, the user, the volume and the command of the published image.
FROM lakewarden-stand-in/debian:bookworm AS debian
RUN apt-get update && apt-get install --yes --no-install-recommends busybox-static prometheus

FROM lakewarden-stand-in/debian:bookworm
COPY --from=debian /bin/busybox /bin/busybox
COPY --from=debian /usr/bin/prometheus /usr/bin/promtool /bin/
RUN ln -s /bin/busybox /bin/wget \
    && mkdir -p /etc/prometheus /prometheus \
    && chown -R nobody:nogroup /etc/prometheus /prometheus
WORKDIR /prometheus
USER nobody
EXPOSE 9090
VOLUME ["/prometheus"]
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]

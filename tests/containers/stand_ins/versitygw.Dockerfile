# versitygw on BusyBox; the published image has it on Alpine, whose shell and wget are BusyBox too.
FROM lakewarden-stand-in/debian:bookworm AS debian
RUN apt-get update && apt-get install --yes --no-install-recommends busybox-static

FROM scratch
COPY --from=debian /bin/busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
COPY versitygw /usr/local/bin/versitygw
RUN ["/bin/mkdir", "-p", "/tmp"]
ENTRYPOINT ["/usr/local/bin/versitygw"]

# Debian's static BusyBox, with a link for each of its programs.
FROM lakewarden-stand-in/debian:bookworm AS debian
RUN apt-get update && apt-get install --yes --no-install-recommends busybox-static

FROM scratch
COPY --from=debian /bin/busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
CMD ["sh"]

# Kafka's jars on Debian's Java, with the paths, the user and the volumes of the published image.
FROM lakewarden-stand-in/debian:bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home appuser \
    && mkdir -p /etc/kafka/docker /etc/kafka/secrets /mnt/shared/config /opt/kafka/bin /opt/kafka/config /var/lib/kafka/data
COPY jars /opt/kafka/libs
COPY run log4j2.yaml /etc/kafka/docker/
COPY kafka-broker-api-versions.sh /opt/kafka/bin/
RUN cp /etc/kafka/docker/log4j2.yaml /etc/kafka/docker/tools-log4j2.yaml \
    && touch /etc/kafka/docker/server.properties \
    && chown -R appuser:appuser /etc/kafka /mnt/shared/config /opt/kafka /var/lib/kafka
USER appuser
EXPOSE 9092
VOLUME ["/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"]
CMD ["/etc/kafka/docker/run"]

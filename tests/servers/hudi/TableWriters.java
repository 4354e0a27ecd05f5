import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hudi.client.transaction.lock.LockManager;
import org.apache.hudi.client.transaction.lock.StorageBasedLockProvider;
import org.apache.hudi.client.transaction.lock.models.StorageLockFile;
import org.apache.hudi.config.HoodieWriteConfig;
import org.apache.hudi.exception.HoodieLockException;
import org.apache.hudi.storage.HoodieStorage;
import org.apache.hudi.storage.hadoop.HoodieHadoopStorage;
import software.amazon.awssdk.core.exception.SdkException;

/**
 * The locking of Hudi writers. Each writer is a thread with a LockManager of Hudi, which creates one StorageBasedLockProvider
 * per lock.
 *
 * <p>Arguments: the length of a lease in seconds, and the file for responses. Commands arrive on stdin and responses are appended
 * to the file, as one JSON object per line. A response has the id of its command. The program ends when stdin ends.
 *
 * <ul>
 *   <li>lock (writer, table, seconds): try to lock for this time. Response: locked with the owner, or refused with a reason.
 *   <li>unlock (writer). Response: unlocked.
 *   <li>cycle (writer, table, command, pause): repeat lock, run the command, unlock, pause. The pause is random; on average it
 *       lasts `pause` times as long as the cycle before it. Response: cycle with the command's status, once per cycle; then done.
 *   <li>stop: end all cycles after the current one.
 * </ul>
 *
 * The response to an error is failed, with a reason.
 */
public final class TableWriters {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int LONGEST_WAIT_SECONDS = 60;

    private final int leaseSeconds;
    private final Path responses;
    private final Map<String, Writer> writers = new HashMap<>();
    private volatile boolean stopping;

    private TableWriters(int leaseSeconds, Path responses) {
        this.leaseSeconds = leaseSeconds;
        this.responses = responses;
    }

    /** Execute commands until stdin ends. */
    public static void main(String[] arguments) throws IOException {
        TableWriters all = new TableWriters(Integer.parseInt(arguments[0]), Path.of(arguments[1]));
        try (var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                all.execute(JSON.readTree(line));
            }
        }
        System.exit(0);
    }

    private void execute(JsonNode command) {
        String what = command.get("do").asText();
        if (what.equals("stop")) {
            stopping = true;
            return;
        }
        if (what.equals("cycle")) {
            stopping = false;
        }
        writers.computeIfAbsent(command.get("writer").asText(), name -> new Writer()).execute(command);
    }

    private synchronized void respond(JsonNode command, String what, String detail, Object value) {
        ObjectNode response = JSON.createObjectNode();
        response.put("id", command.get("id").asInt()).put("what", what).putPOJO(detail, value);
        try {
            Files.writeString(responses, response + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException broken) {
            throw new IllegalStateException(broken);
        }
    }

    private LockManager manager(String table, int waitSeconds) {
        return manager(table, leaseSeconds, waitSeconds);
    }

    /** A LockManager with Hudi's storage-based provider, whose leases are renewed ten times. */
    static LockManager manager(String table, int leaseSeconds, int waitSeconds) {
        Properties properties = new Properties();
        properties.setProperty("hoodie.write.concurrency.mode", "optimistic_concurrency_control");
        properties.setProperty("hoodie.write.lock.provider", StorageBasedLockProvider.class.getName());
        properties.setProperty("hoodie.write.lock.storage.validity.timeout.secs", "" + leaseSeconds);
        properties.setProperty("hoodie.write.lock.storage.renew.interval.secs", "" + leaseSeconds / 10);
        properties.setProperty("hoodie.write.lock.wait_time_ms", "" + waitSeconds * 1000);
        properties.setProperty("hoodie.write.lock.client.num_retries", "0");
        // The default needs the timeline service, which is not on Maven Central and not needed for a lock.
        properties.setProperty("hoodie.write.markers.type", "DIRECT");
        HoodieWriteConfig config = HoodieWriteConfig.newBuilder().withPath(table).withProperties(properties).build();
        return new LockManager(config, storage());
    }

    /** A LockManager only reads Hadoop's configuration from it; the client accesses lock objects. */
    private static HoodieStorage storage() {
        RawLocalFileSystem files = new RawLocalFileSystem();
        files.setConf(new Configuration(false));
        return new HoodieHadoopStorage(files);
    }

    /** One writer. Hudi renews a lock as long as the thread that acquired it runs. */
    private final class Writer {
        private final ExecutorService thread = Executors.newSingleThreadExecutor();
        private LockManager manager;

        void execute(JsonNode command) {
            thread.execute(() -> {
                try {
                    switch (command.get("do").asText()) {
                        case "lock" -> lock(command);
                        case "unlock" -> unlock(command);
                        case "cycle" -> cycle(command);
                        default -> throw new IllegalArgumentException(command.toString());
                    }
                } catch (Exception failure) {
                    failure.printStackTrace();
                    respond(command, "failed", "why", failure.toString());
                }
            });
        }

        private void lock(JsonNode command) {
            int seconds = command.get("seconds").asInt();
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
            while (true) {
                manager = manager(command.get("table").asText(), seconds);
                try {
                    manager.lock();
                    respond(command, "locked", "owner", owner());
                    return;
                } catch (HoodieLockException refusal) {
                    respond(command, "refused", "why", refusal.toString());
                    return;
                } catch (SdkException silence) {
                    // The client's timeout, a fifth of the lease, may be too short for a JVM's first request. A real writer
                    // would fail and be restarted.
                    manager.close();
                    if (System.nanoTime() > until) {
                        throw silence;
                    }
                }
            }
        }

        private void unlock(JsonNode command) {
            String owner = owner();
            manager.unlock();
            respond(command, "unlocked", "owner", owner);
        }

        private void cycle(JsonNode command) throws IOException, InterruptedException {
            List<String> program = new ArrayList<>();
            command.get("command").forEach(word -> program.add(word.asText()));
            double pause = command.get("pause").asDouble();
            manager = manager(command.get("table").asText(), LONGEST_WAIT_SECONDS);
            while (!stopping) {
                manager.lock();
                long began = System.nanoTime();
                int status = new ProcessBuilder(program).inheritIO().start().waitFor();
                respond(command, "cycle", "status", status);
                manager.unlock();
                double pauses = 2 * pause * ThreadLocalRandom.current().nextDouble();
                TimeUnit.NANOSECONDS.sleep((long) (pauses * (System.nanoTime() - began)));
            }
            respond(command, "done", "status", 0);
        }

        private String owner() {
            return ((StorageLockFile) manager.getLockProvider().getLock()).getOwner();
        }
    }
}

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hudi.aws.transaction.lock.S3StorageLockClient;
import org.apache.hudi.client.transaction.lock.LockManager;
import org.apache.hudi.client.transaction.lock.StorageBasedLockProvider;

/**
 * Measures Hudi's storage-based lock. Arguments: what to measure, the length of a lease in seconds, the URI of a table, and the
 * numbers that are named below. The last line of the output is a JSON object.
 *
 * <ul>
 *   <li>operations (rounds, repetitions): milliseconds and requests of acquire, renew and release. A repetition has a table of its
 *       own.
 *   <li>contention (contenders, seconds, milliseconds): each contender acquires the lock, holds it for these milliseconds, releases
 *       it, and begins again. Output: when each acquisition was requested, and when the lock was held, in seconds.
 *   <li>hand-over (rounds): milliseconds from the request for the release until a waiting writer holds the lock.
 *   <li>lost-acquire, lost-renew, lost-release: the same operation, after a line on stdin: the answer of the store is lost.
 * </ul>
 */
public final class LockTimes {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int WARM_UP = 50;
    private static final int WAIT_SECONDS = 600;

    private final int leaseSeconds;
    private final String table;
    private final int[] numbers;

    private LockTimes(String[] arguments) {
        leaseSeconds = Integer.parseInt(arguments[1]);
        table = arguments[2];
        numbers = new int[arguments.length - 3];
        for (int index = 0; index < numbers.length; index++) {
            numbers[index] = Integer.parseInt(arguments[index + 3]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        LockTimes times = new LockTimes(arguments);
        ObjectNode result = switch (arguments[0]) {
            case "operations" -> times.operations();
            case "contention" -> times.contention();
            case "hand-over" -> times.handOver();
            case "lost-acquire" -> times.lostAcquire();
            case "lost-renew" -> times.lostRenew();
            case "lost-release" -> times.lostRelease();
            default -> throw new IllegalArgumentException(arguments[0]);
        };
        System.out.println(result);
        System.exit(0);
    }

    private LockManager manager(String of) {
        return TableWriters.manager(of, leaseSeconds, WAIT_SECONDS);
    }

    /** A manager whose first request, which loads classes, lies behind. The lock object exists, and the lock is free. */
    private LockManager warmManager(String of) {
        while (true) {
            LockManager manager = manager(of);
            try {
                manager.lock();
                manager.unlock();
                return manager;
            } catch (RuntimeException slow) { // the client's timeout is a fifth of the lease
                manager.close();
            }
        }
    }

    private static double milliseconds(long since) {
        return (System.nanoTime() - since) / 1e6;
    }

    private ObjectNode operations() throws Exception {
        Method renew = StorageBasedLockProvider.class.getDeclaredMethod("renewLock");
        renew.setAccessible(true); // Hudi calls it in its heartbeat thread
        ObjectNode result = JSON.createObjectNode();
        ArrayNode runs = result.putArray("runs");
        for (int repetition = 0; repetition < numbers[1]; repetition++) {
            LockManager manager = warmManager(table + "-" + repetition);
            for (int round = 0; round < WARM_UP; round++) {
                operate(manager, renew, null);
            }
            ObjectNode run = runs.addObject();
            for (int round = 0; round < numbers[0]; round++) {
                operate(manager, renew, run);
            }
            manager.close();
        }
        return result;
    }

    private static void operate(LockManager manager, Method renew, ObjectNode run) throws Exception {
        long requests = S3StorageLockClient.REQUESTS.get();
        long began = System.nanoTime();
        manager.lock();
        requests = note(run, "acquire", began, requests);
        began = System.nanoTime();
        if (!(boolean) renew.invoke(manager.getLockProvider())) {
            throw new IllegalStateException("the lock was not renewed");
        }
        requests = note(run, "renew", began, requests);
        began = System.nanoTime();
        manager.unlock();
        note(run, "release", began, requests);
    }

    private static long note(ObjectNode run, String operation, long began, long requestsBefore) {
        double took = milliseconds(began);
        long requests = S3StorageLockClient.REQUESTS.get();
        if (run != null) {
            run.withArray(operation).add(took);
            run.withArray(operation + "_requests").add(requests - requestsBefore);
        }
        return requests;
    }

    private ObjectNode contention() throws Exception {
        int contenders = numbers[0];
        List<LockManager> managers = new ArrayList<>();
        for (int number = 0; number < contenders; number++) {
            managers.add(warmManager(table));
        }
        AtomicInteger holders = new AtomicInteger();
        ExecutorService threads = Executors.newFixedThreadPool(contenders);
        List<Future<ArrayNode>> spans = new ArrayList<>();
        long began = System.nanoTime();
        long over = began + TimeUnit.SECONDS.toNanos(numbers[1]);
        for (LockManager manager : managers) {
            spans.add(threads.submit(() -> contend(manager, holders, began, over)));
        }
        TimeUnit.NANOSECONDS.sleep(over - System.nanoTime());
        ObjectNode result = JSON.createObjectNode();
        for (Future<ArrayNode> each : spans) {
            result.withArray("spans").add(each.get());
        }
        return result;
    }

    private ArrayNode contend(LockManager manager, AtomicInteger holders, long began, long over) throws InterruptedException {
        ArrayNode spans = JSON.createArrayNode();
        while (System.nanoTime() < over) {
            long requested = System.nanoTime();
            manager.lock();
            spans.addArray().add((requested - began) / 1e9).add((System.nanoTime() - began) / 1e9);
            if (holders.incrementAndGet() != 1) {
                throw new IllegalStateException("two contenders hold the lock at once");
            }
            Thread.sleep(numbers[2]);
            holders.decrementAndGet();
            manager.unlock();
        }
        return spans;
    }

    private ObjectNode handOver() throws Exception {
        LockManager holder = warmManager(table);
        LockManager waiter = warmManager(table);
        ExecutorService thread = Executors.newSingleThreadExecutor();
        ObjectNode result = JSON.createObjectNode();
        for (int round = 0; round < numbers[0]; round++) {
            holder.lock();
            Future<Long> held = thread.submit(() -> {
                waiter.lock();
                long now = System.nanoTime();
                waiter.unlock();
                return now;
            });
            // The waiter looks once a second. The release comes at a random moment of that second.
            TimeUnit.MILLISECONDS.sleep(ThreadLocalRandom.current().nextLong(1000, 2000));
            long requested = System.nanoTime();
            holder.unlock();
            result.withArray("ms").add((held.get() - requested) / 1e6);
        }
        return result;
    }

    /** Print that the operation is next, and wait until its answer is going to be lost. */
    private static void awaitLoss() throws Exception {
        System.out.println("ready");
        if (System.in.read() < 0) {
            throw new IllegalStateException("stdin has ended");
        }
    }

    private ObjectNode lostAcquire() throws Exception {
        LockManager manager = warmManager(table);
        awaitLoss();
        long began = System.nanoTime();
        manager.lock();
        return JSON.createObjectNode().put("seconds", milliseconds(began) / 1e3);
    }

    /** Hudi interrupts the writer. Another one, like a writer that is started again, acquires the lock. */
    private ObjectNode lostRenew() throws Exception {
        LockManager manager = warmManager(table);
        LockManager other = warmManager(table);
        manager.lock();
        awaitLoss();
        ObjectNode result = JSON.createObjectNode();
        try {
            TimeUnit.SECONDS.sleep(2 * leaseSeconds);
        } catch (InterruptedException interrupted) {
            result.put("interrupted_at", System.currentTimeMillis() / 1e3);
        }
        other.lock();
        return result.put("held_at", System.currentTimeMillis() / 1e3);
    }

    private ObjectNode lostRelease() throws Exception {
        LockManager manager = warmManager(table);
        LockManager other = warmManager(table);
        manager.lock();
        awaitLoss();
        ObjectNode result = JSON.createObjectNode();
        long began = System.nanoTime();
        try {
            manager.unlock();
        } catch (RuntimeException refused) {
            result.put("raised", refused.getClass().getSimpleName());
        }
        other.lock();
        return result.put("seconds", milliseconds(began) / 1e3);
    }
}

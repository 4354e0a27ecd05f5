package org.apache.hudi.client.transaction.lock;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import org.apache.hudi.common.config.LockConfiguration;
import org.apache.hudi.common.lock.LockProvider;
import org.apache.hudi.common.util.ReflectionUtils;
import org.apache.hudi.exception.HoodieLockException;
import org.apache.hudi.storage.StorageConfiguration;

/**
 * Hudi's lock provider of one transaction of lakewarden's gate. The section of a write in which it commits waits for the grant;
 * every other section takes the lock of the user's own provider.
 *
 * <p>A section is known by the method that calls TransactionManager.beginStateChange. One that this class doesn't know is
 * refused: it could be a commit. The driver's Python process registers a function by the transaction's id, which is called with
 * an event and the section:
 *
 * <table>
 *   <tr><td>enter</td><td>before any section's lock; an error refuses the section</td></tr>
 *   <tr><td>commit</td><td>before the lock of the commit; returns when the grant has arrived. "held": the agent holds this very
 *       lock, so the user's provider isn't asked. "granted": the user's provider is asked, under the grant</td></tr>
 *   <tr><td>locked</td><td>the user's provider has given its lock for the commit; an error refuses the commit</td></tr>
 *   <tr><td>leave</td><td>before the lock of another section than the commit is released</td></tr>
 *   <tr><td>committed</td><td>the lock of the commit is released, whatever its outcome</td></tr>
 * </table>
 *
 * <p>Hudi 1.0 also takes the lock while it generates an instant, by a provider that its generator keeps, perhaps longer than the
 * transaction lasts. This section commits nothing: it takes the lock of the user's own provider, and no function is asked.
 *
 * <p>The grant is a lease. The driver calls allow with the time that is left of it, again and again. When that time has passed,
 * the thread that commits is interrupted until it ends, as Hudi does once when it loses a lock.
 *
 * <p>On disks and HDFS, Hudi writes a file of the timeline under a temporary name, and renames it even if an interrupt has left it
 * empty: an instant that is completed without metadata. There the thread is interrupted only while it waits, because otherwise
 * the interrupt takes effect at some later step, and never while it writes such a file.
 */
public final class LakewardenLockProvider implements LockProvider<String>, Runnable {
  /** Changes with what is called from Python. */
  public static final int VERSION = 1;

  private static final String COMMIT = "BaseHoodieWriteClient.commitStats";
  private static final String INSTANT = "TimeGeneratorBase";
  private static final Set<String> OTHERS = Collections.unmodifiableSet(new HashSet<String>(Arrays.asList(
      "BaseHoodieClient.executeUsingTxnManager",
      "BaseHoodieTableServiceClient.acquireRollbackHeartbeatIfMultiWriter",
      "BaseHoodieTableServiceClient.resolveOrScheduleRollback",
      "BaseHoodieTableServiceClient.rollback", // 1.1
      "BaseHoodieTableServiceClient.scheduleCleaning",
      "BaseHoodieTableServiceClient.scheduleTableService", // 1.0 and 0.15
      "BaseHoodieTableServiceClient.scheduleTableServiceInternal",
      "BaseHoodieWriteClient.doInitTable", // 0.15
      "BaseHoodieWriteClient.executeUsingTxnManager", // 1.0
      "BaseHoodieWriteClient.startCommit",
      "BaseRollbackActionExecutor.finishRollback",
      "CleanActionExecutor.runClean",
      "HoodieTable.rollbackInflightInstant",
      "HoodieTimelineArchiver.archiveIfRequired", // 0.15
      "TimelineArchiverV1.archiveIfRequired",
      "TimelineArchiverV2.archiveIfRequired")));
  private static final Set<String> TEMPORARY_NAMES = Collections.unmodifiableSet(new HashSet<String>(Arrays.asList(
      "", "file", "hdfs", "viewfs"))); // HoodieStorage.needCreateTempFile; without a scheme, it may be any of them
  private static final long CHECK_MILLISECONDS = 50;

  private static final Map<String, BiFunction<String, String, String>> GATES = new ConcurrentHashMap<>();
  private static final Map<String, Long> DEADLINES = new ConcurrentHashMap<>();

  private final LockConfiguration configuration;
  private final StorageConfiguration<?> storage;
  private final String transaction;
  private LockProvider<?> own;
  private String section = "";
  private boolean held;
  private volatile Thread committing;
  private boolean interrupted;

  public LakewardenLockProvider(LockConfiguration configuration, StorageConfiguration<?> storage) {
    this.configuration = configuration;
    this.storage = storage;
    this.transaction = configuration.getConfig().getString("hoodie.lakewarden.transaction");
  }

  /** Answer the sections of this transaction by the function. */
  public static void register(String transaction, BiFunction<String, String, String> gate) {
    GATES.put(transaction, gate);
  }

  /** Refuse every further section of this transaction. */
  public static void unregister(String transaction) {
    GATES.remove(transaction);
    DEADLINES.remove(transaction);
  }

  /** The commit of this transaction may go on for so long from now; zero or less ends it. */
  public static void allow(String transaction, long milliseconds) {
    DEADLINES.put(transaction, System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(milliseconds));
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    section = caller();
    if (section.equals(INSTANT)) {
      return own().tryLock(time, unit);
    }
    if (!section.equals(COMMIT) && !OTHERS.contains(section)) {
      throw new IllegalStateException("lakewarden: refused a lock for " + section + ", which it doesn't know");
    }
    ask("enter");
    if (!section.equals(COMMIT)) {
      return own().tryLock(time, unit);
    }
    held = ask("commit").equals("held");
    if (!held) {
      if (!own().tryLock(time, unit)) {
        return false;
      }
      boolean told = false;
      try {
        ask("locked");
        told = true;
      } finally {
        if (!told) {
          own().unlock();
        }
      }
    }
    committing = Thread.currentThread();
    Thread watch = new Thread(this, "lakewarden-commit-" + transaction);
    watch.setDaemon(true);
    watch.start();
    return true;
  }

  /** Interrupt the commit while it is no longer allowed: again and again, because Hudi may catch an interrupt and go on. */
  @Override
  public void run() {
    try {
      while (committing != null) {
        Long deadline = DEADLINES.get(transaction);
        if (deadline == null || System.nanoTime() - deadline > 0) {
          synchronized (this) {
            if (committing != null && mayBeInterrupted(committing)) {
              committing.interrupt();
              interrupted = true;
            }
          }
        }
        Thread.sleep(CHECK_MILLISECONDS);
      }
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
  }

  private boolean mayBeInterrupted(Thread thread) {
    String path = configuration.getConfig().getString("hoodie.base.path", "");
    if (!TEMPORARY_NAMES.contains(path.substring(0, Math.max(0, path.indexOf(':'))))) {
      return true;
    }
    for (StackTraceElement element : thread.getStackTrace()) {
      if (element.getMethodName().equals("createImmutableFileInPath")) {
        return false;
      }
    }
    Thread.State state = thread.getState();
    return state == Thread.State.WAITING || state == Thread.State.TIMED_WAITING;
  }

  @Override
  public void unlock() {
    if (section.equals(INSTANT)) {
      own().unlock();
      return;
    }
    if (!section.equals(COMMIT)) {
      try {
        ask("leave");
      } finally {
        own().unlock();
      }
      return;
    }
    synchronized (this) {
      committing = null;
      if (interrupted) {
        Thread.interrupted(); // what was meant for the commit must not end what the thread does next
      }
    }
    try {
      if (!held) {
        own().unlock();
      }
    } finally {
      ask("committed");
    }
  }

  @Override
  public boolean tryLock() {
    try {
      return tryLock(0, TimeUnit.MILLISECONDS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new HoodieLockException(interrupted);
    }
  }

  @Override
  public String getLock() {
    return own == null ? transaction : String.valueOf(own.getLock());
  }

  @Override
  public void close() {
    if (own != null) {
      own.close();
      own = null;
    }
  }

  private String ask(String event) {
    BiFunction<String, String, String> gate = GATES.get(transaction);
    if (gate == null) {
      throw new IllegalStateException("lakewarden: transaction " + transaction + " has ended, or isn't of this driver");
    }
    return gate.apply(event, section);
  }

  private LockProvider<?> own() {
    if (own == null) {
      String name = configuration.getConfig().getString("hoodie.lakewarden.lock.provider");
      own = (LockProvider<?>) ReflectionUtils.loadClass(
          name, new Class<?>[] {LockConfiguration.class, StorageConfiguration.class}, configuration, storage);
    }
    return own;
  }

  /** Class and method that begin the section. */
  private static String caller() {
    boolean begun = false;
    for (StackTraceElement element : Thread.currentThread().getStackTrace()) {
      if (!begun && element.getClassName().endsWith("." + INSTANT)) {
        return INSTANT;
      } else if (element.getClassName().endsWith(".TransactionManager")) {
        begun = true;
      } else if (begun) {
        return element.getClassName().substring(element.getClassName().lastIndexOf('.') + 1) + "." + element.getMethodName();
      }
    }
    return "an unknown caller";
  }
}

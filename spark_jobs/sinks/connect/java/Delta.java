package lakewarden;

import java.lang.reflect.Method;
import java.net.URI;
import java.net.URISyntaxException;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TimeZone;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.TransactionExecutionObserver;
import scala.Tuple2;
import scala.collection.Iterator;

/**
 * What {@code DeltaSink} needs of Delta on Spark Connect: the log of a table, and statements whose commit waits for the sink.
 *
 * <p>The rules of outcomes and of look-ups are Python's ({@code sinks/delta}). {@link DeltaStatement} has those of the wait.
 */
public final class Delta {
  private static final long FORGOTTEN_MS = 3_600_000;
  private static final Map<String, DeltaStatement> STATEMENTS = new ConcurrentHashMap<>();

  private Delta() {}

  // the log

  /** Return the version of the calls, Delta's release, the JVM's time zone, and the methods of Delta's observer. */
  public static String[] release() throws ReflectiveOperationException {
    Object delta = Class.forName("io.delta.package$").getField("MODULE$").get(null);
    List<String> found = new ArrayList<>();
    found.add("version\t" + Procedures.VERSION);
    found.add("delta\t" + delta.getClass().getMethod("VERSION").invoke(delta));
    found.add("zone\t" + TimeZone.getDefault().getID());
    TreeSet<String> methods = new TreeSet<>();
    for (Method method : TransactionExecutionObserver.class.getMethods()) {
      if (!java.lang.reflect.Modifier.isStatic(method.getModifiers())) {
        methods.add(method.getName());
      }
    }
    methods.forEach(method -> found.add("method\t" + method));
    return found.toArray(new String[0]);
  }

  /** Return what the newest version of a table says; nothing if there is no table. */
  public static String[] table(String location) {
    Tuple2<DeltaLog, Snapshot> opened = DeltaLog.forTableWithSnapshot(SparkSession.active(), new Path(location));
    if (!opened._1().tableExists()) {
      return new String[0];
    }
    List<String> found = new ArrayList<>();
    found.add("path\t" + opened._1().dataPath());
    found.add("snapshot\t" + opened._2().version());
    found.add("metadata\t" + opened._2().metadata().json());
    return found.toArray(new String[0]);
  }

  /** Return the last batch and the name of each writer, by Delta's own summary of the log. */
  public static String[] writers(String location) {
    Snapshot newest = DeltaLog.forTableWithSnapshot(SparkSession.active(), new Path(location))._2();
    List<String> found = new ArrayList<>();
    Iterator<?> each = newest.transactions().iterator();
    while (each.hasNext()) {
      Tuple2<?, ?> writer = (Tuple2<?, ?>) each.next();
      found.add(writer._2() + "\t" + writer._1());
    }
    return found.toArray(new String[0]);
  }

  /** Return the files of the log from a version on: name, time and length of each. */
  public static String[] commits(String location, long since) {
    return listed(DeltaLog.forTable(SparkSession.active(), new Path(location)), since).toArray(new String[0]);
  }

  static List<String> listed(DeltaLog log, long since) {
    Path first = new Path(log.logPath(), String.format("%020d.json", since));
    Iterator<FileStatus> files = log.store().listFrom(first, log.newDeltaHadoopConf());
    List<String> found = new ArrayList<>();
    while (files.hasNext()) {
      FileStatus file = files.next();
      found.add(file.getPath().getName() + "\t" + file.getModificationTime() + "\t" + file.getLen());
    }
    return found;
  }

  /** Return the actions of one commit that begin with one of these texts, separated by tabs. */
  public static String[] actions(String location, long version, String starts) {
    DeltaLog log = DeltaLog.forTable(SparkSession.active(), new Path(location));
    Path file = new Path(log.logPath(), String.format("%020d.json", version));
    List<String> found = new ArrayList<>();
    Iterator<String> lines = log.store().read(file, log.newDeltaHadoopConf()).iterator();
    while (lines.hasNext()) {
      String line = lines.next();
      for (String start : starts.split("\t")) {
        if (line.startsWith(start)) {
          found.add(line);
        }
      }
    }
    return found.toArray(new String[0]);
  }

  /** Delete files of the table by their paths in the log, separated by tabs. One that is absent is no error. */
  public static String[] delete(String location, String files) throws java.io.IOException, URISyntaxException {
    DeltaLog log = DeltaLog.forTable(SparkSession.active(), new Path(location));
    Configuration conf = log.newDeltaHadoopConf();
    for (String file : files.split("\t")) {
      URI relative = new URI(file);
      if (!relative.isAbsolute()) { // a shallow clone refers to another table's files
        log.dataPath().getFileSystem(conf).delete(new Path(log.dataPath(), new Path(relative)), false);
      }
    }
    return new String[0];
  }

  /** Return the milliseconds of a time as RESTORE writes it, in the time zone of the JVM. */
  public static String[] millis(String time) {
    return new String[] {String.valueOf(Timestamp.valueOf(time).getTime())};
  }

  // statements

  /**
   * Execute a statement, and return how it ended. {@code kind} is {@code sql}, or {@code append} or {@code overwrite} of the rows of
   * the view {@code text}. If it fails before it wants to commit, its error is raised.
   */
  public static String[] run(
      String id, String location, String writer, long batch, String label, String kind, String target, String text, long holdMs)
      throws Throwable {
    STATEMENTS.values().removeIf(each -> each.endedFor(FORGOTTEN_MS));
    DeltaStatement statement = new DeltaStatement(id, location, writer, batch, holdMs);
    if (STATEMENTS.putIfAbsent(id, statement) != null) {
      throw new IllegalStateException("lakewarden: this transaction has had its statement: " + id);
    }
    return statement.run(label, own -> {
      switch (kind) {
        case "append":
          own.table(text).writeTo(target).append();
          break;
        case "overwrite":
          own.table(text).writeTo(target).overwritePartitions();
          break;
        default:
          own.sql(text);
      }
    });
  }

  /** Wait until a statement wants to commit, or has ended, at most so long. Return what is known of it. It is held meanwhile. */
  public static String[] prepared(String id, long waitMs) throws InterruptedException {
    long end = DeltaStatement.now() + waitMs;
    while (!STATEMENTS.containsKey(id) && DeltaStatement.now() < end) {
      Thread.sleep(5); // it is called beside `run`
    }
    DeltaStatement found = STATEMENTS.get(id);
    return found == null ? new String[] {"state\tunknown"} : found.prepared(end);
  }

  /** Hold a statement for another while. Return the server's clock. */
  public static String[] hold(String id) {
    return find(id).hold();
  }

  /** Let a statement commit until the server's clock shows this time. Return when it has committed or ended. */
  public static String[] allow(String id, long until, long waitMs) throws InterruptedException {
    return find(id).allow(until, waitMs);
  }

  /** Never let a statement commit. */
  public static String[] refuse(String id) {
    return find(id).refuse();
  }

  /** Wait until a statement has ended, at most so long. Return what is known of it. */
  public static String[] ended(String id, long waitMs) throws InterruptedException {
    return find(id).ended(waitMs);
  }

  private static DeltaStatement find(String id) {
    DeltaStatement found = STATEMENTS.get(id);
    if (found == null) {
      throw new IllegalStateException(
          "lakewarden: this server has no statement of transaction " + id + ": it was not begun, or the server was restarted");
    }
    return found;
  }
}

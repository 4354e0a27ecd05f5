package lakewarden;

import java.io.IOException;
import java.io.InputStream;
import java.lang.invoke.MethodHandles;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiConsumer;
import java.util.function.UnaryOperator;
import org.apache.iceberg.BaseMetadataTable;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.IcebergBuild;
import org.apache.iceberg.LakewardenStagedTable;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.Transactions;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.spark.Spark3Util;
import org.apache.iceberg.spark.SparkSchemaUtil;
import org.apache.iceberg.spark.SparkTableCache;
import org.apache.iceberg.util.SnapshotUtil;
import org.apache.spark.sql.SparkSession;

/**
 * What {@code IcebergSink} needs of Iceberg on Spark Connect: the metadata of a table, and staged commits, of which this is one.
 *
 * <p>The rules of outcomes and of look-ups are Python's ({@code sinks/iceberg}). A statement writes to a transaction, which no reader
 * sees, and only {@code publish} swaps the table's metadata:
 *
 * <pre>
 * open --publish, of the metadata file that Python has judged, before its time is over--> unknown --the catalog has it--> published
 * unknown --Iceberg says that another commit came first--> open; Python looks whether it was this one
 * unknown --another error--> unknown, for good
 * open --close, discard--> closed
 * </pre>
 *
 * <p>So nothing is published unless a living writer has allowed it: each {@code publish} names a time of this server's clock, which
 * ends with the writer's lease. It swaps nothing if the table has other metadata than the writer has judged.
 */
public final class Iceberg {
  private static final long FORGOTTEN_MS = 3_600_000;
  private static final Map<String, Iceberg> STAGED = new ConcurrentHashMap<>();

  private final Table real;
  private final TableOperations operations;
  private final Transaction transaction;
  private final BaseTable pinned;
  private final long begun = clock();
  private final Set<String> files = new LinkedHashSet<>();
  private volatile String state = "open";
  private long published;
  private BiConsumer<TableMetadata, TableMetadata> swap;

  private Iceberg(Table real) {
    this.real = real;
    operations = ((HasTableOperations) real).operations();
    TableOperations checked = (TableOperations) Proxy.newProxyInstance(
        TableOperations.class.getClassLoader(), new Class<?>[] {TableOperations.class}, this::invoke);
    transaction = Transactions.newTransaction(real.name(), checked);
    pinned = new BaseTable(((HasTableOperations) transaction.table()).operations(), real.name());
  }

  private static long clock() {
    return System.nanoTime() / 1_000_000;
  }

  /** Return the version of the calls and Iceberg's release. Define the classes that stand beside Iceberg's own. */
  public static String[] release() throws IOException, IllegalAccessException {
    define("org.apache.iceberg.LakewardenStagedTable", BaseTable.class);
    define("org.apache.iceberg.spark.LakewardenStagingCatalog", SparkTableCache.class);
    return new String[] {"version\t" + Procedures.VERSION, "iceberg\t" + IcebergBuild.version()};
  }

  /** Define a class in the loader of one of the same package: an added jar's own loader can't see what is private in a package. */
  private static synchronized void define(String name, Class<?> neighbour) throws IOException, IllegalAccessException {
    try {
      Class.forName(name, false, neighbour.getClassLoader());
    } catch (ClassNotFoundException undefined) {
      String file = "/lakewarden/iceberg/" + name.substring(name.lastIndexOf('.') + 1) + ".class";
      try (InputStream content = Iceberg.class.getResourceAsStream(file)) {
        MethodHandles.privateLookupIn(neighbour, MethodHandles.lookup()).defineClass(content.readAllBytes());
      }
    }
  }

  /** Return what the catalog says of a table now, past its cache. */
  public static String[] table(String name) throws Exception {
    return described(name, load(name));
  }

  private static Table load(String name) throws Exception {
    forget(name);
    return Spark3Util.loadIcebergTable(SparkSession.active(), name);
  }

  private static void forget(String name) throws Exception {
    Spark3Util.CatalogAndIdentifier found = Spark3Util.catalogAndIdentifier(SparkSession.active(), name);
    found.tableCatalog().invalidateTable(found.identifier());
  }

  private static String[] described(String name, Table table) throws Exception {
    Spark3Util.CatalogAndIdentifier found = Spark3Util.catalogAndIdentifier(SparkSession.active(), name);
    List<String> facts = new ArrayList<>(List.of("name\t" + table.name(), "catalog\t" + found.catalog().name()));
    facts.add("part\t" + found.identifier().name());
    if (!(table instanceof BaseMetadataTable)) {
      facts.addAll(described(((HasTableOperations) table).operations().current()));
      try {
        facts.add("columns\t" + SparkSchemaUtil.convert(table.schema()).json());
      } catch (RuntimeException unknown) {
        facts.add("unwritable\t" + unknown.getMessage());
      }
      if (table.specs().size() > 1 && table.currentSnapshot() != null) {
        for (ManifestFile manifest : table.currentSnapshot().dataManifests(table.io())) {
          if (manifest.hasAddedFiles() || manifest.hasExistingFiles()) {
            facts.add("spec\t" + manifest.partitionSpecId());
          }
        }
      }
    }
    return facts.toArray(new String[0]);
  }

  private static List<String> described(TableMetadata metadata) {
    return List.of("file\t" + metadata.metadataFileLocation(), "metadata\t" + TableMetadataParser.toJson(metadata));
  }

  // the staged commit

  /** Let one statement write to the table of this id in the staging catalog. Return what the table is that it reads. */
  public static String[] stage(String id, String name, String writer, String batch) throws Exception {
    STAGED.values().removeIf(each -> clock() - each.begun > FORGOTTEN_MS);
    Iceberg commit = new Iceberg(load(name));
    if (STAGED.putIfAbsent(id, commit) != null) {
      throw new IllegalStateException("lakewarden: this transaction has staged already: " + id);
    }
    Map<String, String> summary = new HashMap<>(Map.of("lakewarden.transaction", id, "lakewarden.writer", writer));
    if (!batch.isEmpty()) {
      summary.put("lakewarden.batch", batch);
    }
    SparkTableCache.get().add(id, LakewardenStagedTable.of(commit.pinned, commit.transaction, summary));
    return described(name, commit.real);
  }

  private static Iceberg find(String id) {
    Iceberg found = STAGED.get(id);
    if (found == null) {
      throw new IllegalStateException(
          "lakewarden: this server has nothing staged of transaction " + id + ": it was not begun, or the server was restarted");
    }
    return found;
  }

  /** End the statement's writing. Return what it has written, and the server's clock. */
  public static String[] staged(String id) {
    SparkTableCache.get().remove(id);
    Iceberg commit = find(id);
    Snapshot made = commit.pinned.currentSnapshot();
    if (made == null || !id.equals(made.summary().get("lakewarden.transaction"))) {
      return new String[] {"clock\t" + clock()};
    }
    synchronized (commit) {
      commit.list(made);
    }
    return new String[] {"clock\t" + clock(), "snapshot\t" + made.snapshotId()};
  }

  private void list(Snapshot made) {
    if (!files.contains(made.manifestListLocation())) {
      Snapshot parent = made.parentId() == null ? null : pinned.snapshot(made.parentId());
      files.addAll(LakewardenStagedTable.files(made, parent, pinned.io()));
    }
  }

  /** Swap the table's metadata, if it is this file, and until the server's clock shows this time. Return what became of it. */
  public static String[] publish(
      String id, String name, String file, String key, String head, String others, long until) throws Exception {
    Iceberg commit = find(id);
    Set<String> removed = Set.of(others.split("\t"));
    List<String> facts = commit.publish(file, until, made -> LakewardenStagedTable.signed(made, key, head, removed));
    if (commit.state.equals("published")) {
      STAGED.remove(id);
      forget(name); // readers of the session see it
    }
    return facts.toArray(new String[0]);
  }

  private synchronized List<String> publish(String file, long until, UnaryOperator<TableMetadata> signed) {
    if (!state.equals("open")) {
      throw new IllegalStateException("lakewarden: this commit is " + state + ", and can't be published");
    }
    long untilByTheWall = System.currentTimeMillis() + until - clock();
    swap = (base, made) -> {
      list(made.currentSnapshot());
      if (!file.equals(base.metadataFileLocation()) || isRecreated(base)) {
        throw new Refused("moved");
      }
      if (clock() >= until || System.currentTimeMillis() >= untilByTheWall) { // a suspended machine stops the first
        throw new Refused("late");
      }
      TableMetadata wanted = signed.apply(made);
      state = "unknown";
      try {
        operations.commit(base, wanted);
      } catch (CommitFailedException error) {
        state = "open";
        throw new Refused("moved");
      }
      state = "published";
      published = made.currentSnapshot().snapshotId();
    };
    List<String> facts = new ArrayList<>();
    try {
      transaction.commitTransaction();
    } catch (Throwable error) {
      facts.add("reason\t" + (error instanceof Refused ? error.getMessage() : "error"));
      facts.add("text\t" + error.getClass().getSimpleName() + ": " + error.getMessage());
      for (Class<?> kind = error.getClass(); kind != Object.class; kind = kind.getSuperclass()) {
        facts.add("class\t" + kind.getName());
      }
    }
    facts.add("state\t" + state);
    facts.add("published\t" + published);
    return facts;
  }

  /** What Iceberg calls of the table's operations. */
  private Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    switch (method.getName()) {
      case "commit": // its last step, whenever it tries it
        swap.accept((TableMetadata) arguments[0], (TableMetadata) arguments[1]);
        return null;
      case "requireStrictCleanup": // it removes no files after an error that it doesn't know
        return true;
      default:
        try {
          return method.invoke(operations, arguments);
        } catch (InvocationTargetException error) {
          throw error.getTargetException();
        }
    }
  }

  /** A Hadoop catalog numbers its files: a table that was created again may have one of the same name. */
  private boolean isRecreated(TableMetadata known) {
    return operations.getClass().getSimpleName().equals("HadoopTableOperations")
        && !TableMetadataParser.read(operations.io(), known.metadataFileLocation()).uuid().equals(known.uuid());
  }

  /** Let nothing be published from now on. Return whether something was. It waits for a swap that runs. */
  public static String[] close(String id) {
    SparkTableCache.get().remove(id);
    Iceberg commit = find(id);
    synchronized (commit) {
      commit.state = commit.state.equals("open") ? "closed" : commit.state;
      return new String[] {"state\t" + commit.state};
    }
  }

  /** Return the table's metadata now. */
  public static String[] now(String id) {
    Iceberg commit = find(id);
    TableMetadata now = commit.operations.refresh();
    List<String> facts = new ArrayList<>(described(now));
    facts.add("recreated\t" + commit.isRecreated(now));
    return facts.toArray(new String[0]);
  }

  /** Return which snapshots, down to this one, have changed a file that a text names. */
  public static String[] named(String id, String text, long base) {
    Table real = find(id).real;
    List<String> found = new ArrayList<>();
    for (Snapshot each : SnapshotUtil.ancestorsOf(real.currentSnapshot().snapshotId(), real::snapshot)) {
      if (each.snapshotId() == base) {
        break;
      }
      if (LakewardenStagedTable.isNamed(each, real.io(), text)) {
        found.add(String.valueOf(each.snapshotId()));
      }
    }
    return found.toArray(new String[0]);
  }

  /** Remove the files that were written for a commit which isn't in the table. */
  public static String[] discard(String id) {
    String[] facts = close(id);
    Iceberg commit = STAGED.remove(id);
    commit.files.forEach(file -> commit.operations.io().deleteFile(file));
    return facts;
  }

  private static final class Refused extends RuntimeException {
    Refused(String reason) {
      super(reason, null, false, false);
    }
  }
}

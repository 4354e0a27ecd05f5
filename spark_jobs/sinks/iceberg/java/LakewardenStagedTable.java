package org.apache.iceberg;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.io.FileIO;

/**
 * The table that a statement of Spark reads and writes, while its commit waits: reads are of the table as it was, and the one write
 * goes to a transaction, with these properties in its snapshot.
 *
 * <p>A transaction's own table allows no scans. This is a proxy for whatever methods a release's {@link Table} has. Spark calls a few
 * hundred of them for one statement.
 */
public final class LakewardenStagedTable implements InvocationHandler {
  /** Changes with what is called from Python. */
  public static final int VERSION = 2;

  private static final Set<String> WRITES = new HashSet<>(
      Arrays.asList("newAppend", "newFastAppend", "newOverwrite", "newRowDelta", "newReplacePartitions"));

  private final Table base;
  private final Transaction transaction;
  private final Map<String, String> properties;
  private boolean written;

  private LakewardenStagedTable(Table base, Transaction transaction, Map<String, String> properties) {
    this.base = base;
    this.transaction = transaction;
    this.properties = properties;
  }

  /** Return the table. {@code base} shows the transaction's metadata. */
  public static Table of(Table base, Transaction transaction, Map<String, String> properties) {
    return (Table) Proxy.newProxyInstance(
        Table.class.getClassLoader(),
        new Class<?>[] {Table.class, HasTableOperations.class},
        new LakewardenStagedTable(base, transaction, properties));
  }

  /** Return the paths of what a commit of this snapshot would add to its parent: its files, its manifests, and their list. */
  public static List<String> files(Snapshot snapshot, Snapshot parent, FileIO io) {
    List<String> found = new ArrayList<>();
    snapshot.addedDataFiles(io).forEach(file -> found.add(file.path().toString()));
    snapshot.addedDeleteFiles(io).forEach(file -> found.add(file.path().toString()));
    Set<ManifestFile> manifests = new HashSet<>(snapshot.allManifests(io));
    if (parent != null) {
      manifests.removeAll(new HashSet<>(parent.allManifests(io)));
    }
    manifests.forEach(manifest -> found.add(manifest.path()));
    found.add(snapshot.manifestListLocation());
    return found;
  }

  /** Return whether a text names a file that the snapshot has added or removed. */
  public static boolean isNamed(Snapshot snapshot, FileIO io, String text) {
    List<ContentFile<?>> changed = new ArrayList<>();
    snapshot.addedDataFiles(io).forEach(changed::add);
    snapshot.removedDataFiles(io).forEach(changed::add);
    snapshot.addedDeleteFiles(io).forEach(changed::add);
    return changed.stream().anyMatch(file -> text.contains(file.path()));
  }

  /**
   * Return the metadata that a swap publishes: with the writer's last commit in the property {@code key}, and without these others.
   * {@code head} is the JSON of that commit up to what only the swap knows.
   */
  public static TableMetadata signed(TableMetadata metadata, String key, String head, Set<String> others) {
    Snapshot made = metadata.currentSnapshot();
    String numbers = "\"snapshot\":" + made.snapshotId() + ",\"sequence\":" + made.sequenceNumber();
    String last = head + numbers + ",\"at_ms\":" + made.timestampMillis() + "}";
    return TableMetadata.buildFrom(metadata).removeProperties(others).setProperties(Collections.singletonMap(key, last)).build();
  }

  @Override
  public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    try {
      return WRITES.contains(method.getName()) ? write(method.getName()) : method.invoke(base, arguments);
    } catch (InvocationTargetException error) {
      throw error.getTargetException();
    }
  }

  private synchronized Object write(String name) throws ReflectiveOperationException {
    if (written) {
      throw new IllegalStateException("a second write in one statement: " + name);
    }
    written = true;
    SnapshotUpdate<?> update = (SnapshotUpdate<?>) Transaction.class.getMethod(name).invoke(transaction);
    for (Map.Entry<String, String> property : properties.entrySet()) {
      update.set(property.getKey(), property.getValue());
    }
    return update;
  }
}

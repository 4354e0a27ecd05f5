package org.apache.iceberg;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * The table that a statement of Spark reads and writes, while its commit waits: reads are of the table as it was, and the one write
 * goes to a transaction, with these properties in its snapshot.
 *
 * <p>A transaction's own table allows no scans. This is a proxy for whatever methods a release's {@link Table} has. Spark calls a few
 * hundred of them for one statement.
 */
public final class LakewardenStagedTable implements InvocationHandler {
  /** Changes with what is called from Python. */
  public static final int VERSION = 1;

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

package org.apache.iceberg.spark;

import java.util.Map;
import org.apache.iceberg.Table;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Lets a Spark statement write to the tables in {@link SparkTableCache}. Iceberg's own {@code SparkCachedTableCatalog} does so up to
 * Spark 4.0; its successor's tables can't be merged into.
 *
 * <p>It has functions because Spark distributes the rows of a write by the table's transforms, which it looks up here.
 */
public final class LakewardenStagingCatalog implements TableCatalog, SupportsFunctions {
  /** Changes with what is called from Python. */
  public static final int VERSION = 2;

  private String name;

  @Override
  public void initialize(String catalog, CaseInsensitiveStringMap options) {
    this.name = catalog;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public org.apache.spark.sql.connector.catalog.Table loadTable(Identifier identifier) throws NoSuchTableException {
    Table table = SparkTableCache.get().get(identifier.name());
    if (identifier.namespace().length > 0 || table == null) {
      throw new NoSuchTableException(identifier);
    }
    try {
      try {
        return SparkTable.class.getConstructor(Table.class).newInstance(table);
      } catch (NoSuchMethodException beforeSpark41) {
        return SparkTable.class.getConstructor(Table.class, boolean.class).newInstance(table, false);
      }
    } catch (ReflectiveOperationException another) {
      throw new LinkageError("this release of Iceberg has another SparkTable", another);
    }
  }

  @Override
  public Identifier[] listTables(String[] namespace) {
    return new Identifier[0];
  }

  @Override
  public org.apache.spark.sql.connector.catalog.Table createTable(
      Identifier identifier, StructType schema, Transform[] partitions, Map<String, String> properties) {
    throw onlyStaged();
  }

  @Override
  public org.apache.spark.sql.connector.catalog.Table alterTable(Identifier identifier, TableChange... changes) {
    throw onlyStaged();
  }

  @Override
  public boolean dropTable(Identifier identifier) {
    throw onlyStaged();
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw onlyStaged();
  }

  private UnsupportedOperationException onlyStaged() {
    return new UnsupportedOperationException(name + " has only tables that a statement writes to");
  }
}

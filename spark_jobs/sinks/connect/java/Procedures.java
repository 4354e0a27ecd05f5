package lakewarden;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Collections;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A catalog of stored procedures for a client of Spark Connect, which has no other way to a format's Java.
 *
 * <p>{@code CALL lakewarden.delta.commits('/lake/flights', 3)} calls the public static method {@code commits} of {@link Delta}; those
 * of {@link Iceberg} are in the namespace {@code iceberg}. The arguments are texts and numbers, and the answer's rows are texts.
 */
public final class Procedures implements ProcedureCatalog {
  /** Changes with what is called from Python. */
  public static final int VERSION = 2;

  private static final Map<String, Class<?>> FORMATS = Map.of("delta", Delta.class, "iceberg", Iceberg.class);

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
  public Identifier[] listProcedures(String[] namespace) {
    return new Identifier[0];
  }

  @Override
  public UnboundProcedure loadProcedure(Identifier identifier) {
    Class<?> format = identifier.namespace().length == 1 ? FORMATS.get(identifier.namespace()[0]) : null;
    if (format != null) {
      for (Method method : format.getDeclaredMethods()) {
        boolean isPublic = Modifier.isPublic(method.getModifiers());
        if (isPublic && method.getName().equals(identifier.name())) {
          return new StaticMethod(method);
        }
      }
    }
    throw new IllegalArgumentException("lakewarden has no procedure " + identifier);
  }

  private static final class StaticMethod implements UnboundProcedure, BoundProcedure {
    private final Method method;

    StaticMethod(Method method) {
      this.method = method;
    }

    @Override
    public BoundProcedure bind(StructType arguments) {
      return this;
    }

    @Override
    public String name() {
      return method.getName();
    }

    @Override
    public String description() {
      return method.toString();
    }

    @Override
    public boolean isDeterministic() {
      return false;
    }

    @Override
    public ProcedureParameter[] parameters() {
      Class<?>[] types = method.getParameterTypes();
      ProcedureParameter[] found = new ProcedureParameter[types.length];
      for (int at = 0; at < types.length; at++) {
        boolean isText = types[at] == String.class;
        found[at] = ProcedureParameter.in("p" + at, isText ? DataTypes.StringType : DataTypes.LongType).build();
      }
      return found;
    }

    @Override
    public Iterator<Scan> call(InternalRow row) {
      Class<?>[] types = method.getParameterTypes();
      Object[] arguments = new Object[types.length];
      for (int at = 0; at < types.length; at++) {
        arguments[at] = types[at] == String.class ? row.getUTF8String(at).toString() : (Object) row.getLong(at);
      }
      String[] answer;
      try {
        answer = (String[]) method.invoke(null, arguments);
      } catch (InvocationTargetException error) {
        throw Procedures.<RuntimeException>unchecked(error.getTargetException());
      } catch (IllegalAccessException error) {
        throw new LinkageError("a public method", error);
      }
      InternalRow[] rows = new InternalRow[answer.length];
      for (int at = 0; at < answer.length; at++) {
        rows[at] = new GenericInternalRow(new Object[] {UTF8String.fromString(answer[at])});
      }
      return Collections.<Scan>singletonList(new Answer(rows)).iterator();
    }
  }

  private static final class Answer implements LocalScan {
    private final InternalRow[] rows;

    Answer(InternalRow[] rows) {
      this.rows = rows;
    }

    @Override
    public InternalRow[] rows() {
      return rows;
    }

    @Override
    public StructType readSchema() {
      return new StructType().add("answer", DataTypes.StringType);
    }
  }

  /** Lets a checked exception through as it is: Spark shows its class and text to the client. */
  @SuppressWarnings("unchecked")
  static <T extends Throwable> T unchecked(Throwable error) throws T {
    throw (T) error;
  }
}

package lakewarden;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.TransactionExecutionObserver;
import org.apache.spark.sql.delta.actions.Action;
import scala.Function0;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.Seq;

/**
 * One statement of Delta whose commit waits for the writer: Delta's observer, which Delta calls in the statement's thread.
 *
 * <pre>
 * computing --beginDoCommit--> prepared --allow--> allowed --the time is not over--> committing --beginPostCommit--> committed
 * computing, prepared --refuse--> refused, by an error in Delta's commit; so are a late `allow`, and a statement that isn't held
 * each of them --the statement returns or fails--> ended, if it has not committed
 * </pre>
 *
 * <p>Only {@code committing} writes the commit file. So nothing commits unless a living writer has allowed it:
 *
 * <ul>
 *   <li>A writer holds its statement by a call at least each {@code holdMs}, also while it computes. One that is dead doesn't.
 *   <li>{@code allow} names a time of this server's clock. The writer computes it from the last answer that it has received and what
 *       is left of its lease. A call that arrives late, or waits here, allows nothing that the lease doesn't cover.
 *   <li>A second transaction in one statement is refused, once the first one wants to commit.
 *   <li>A restarted server knows no statement: {@code allow} is an error.
 * </ul>
 */
final class DeltaStatement implements InvocationHandler {
  interface Work {
    void accept(SparkSession own) throws Throwable;
  }

  private static final String USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata";
  private static final String LAST_VERSION = "spark.databricks.delta.lastCommitVersionInSession";

  private final String id;
  private final String location;
  private final String writer;
  private final long batch;
  private final long holdMs;
  private String state = "computing";
  private boolean begun;
  private long heldUntil;
  private long allowedUntil;
  private long allowedUntilByTheWall;
  private long endedAt;
  private SparkSession own;
  private OptimisticTransaction current;
  private List<String> read = Collections.emptyList();
  private String before = "";
  private String after = "";
  private List<String> actions = Collections.emptyList();
  private String version = "";
  private Throwable failure;

  DeltaStatement(String id, String location, String writer, long batch, long holdMs) {
    this.id = id;
    this.location = location;
    this.writer = writer;
    this.batch = batch;
    this.holdMs = holdMs;
    this.heldUntil = now() + holdMs;
  }

  static long now() {
    return System.nanoTime() / 1_000_000;
  }

  /** Run the work in a session of its own, whose label and committed version are no other statement's. */
  String[] run(String label, Work work) throws Throwable {
    SparkSession given = SparkSession.active();
    own = given.cloneSession();
    own.conf().unset(LAST_VERSION);
    if (own.conf().getOption(USER_METADATA).isEmpty()) {
      own.conf().set(USER_METADATA, label);
    }
    Object observer = Proxy.newProxyInstance(
        TransactionExecutionObserver.class.getClassLoader(), new Class<?>[] {TransactionExecutionObserver.class}, this);
    Object others = observers("getObserver");
    SparkSession.setActiveSession(own);
    observers("setObserver", observer);
    try {
      work.accept(own);
    } catch (Throwable error) {
      failure = error;
    } finally {
      observers("setObserver", others);
      SparkSession.setActiveSession(given);
      end();
    }
    if (failure != null && actions.isEmpty()) {
      throw failure;
    }
    return facts(false);
  }

  /** Call the holder of the thread's observer. Releases of Delta declare other types of arguments. */
  private static Object observers(String name, Object... arguments) throws ReflectiveOperationException {
    Class<?> holder = Class.forName(TransactionExecutionObserver.class.getName() + "$");
    for (Method method : holder.getMethods()) {
      if (method.getName().equals(name) && method.getParameterCount() == arguments.length && !method.isBridge()) {
        return method.invoke(holder.getField("MODULE$").get(null), arguments);
      }
    }
    throw new NoSuchMethodException(name);
  }

  // what Delta calls

  @Override
  public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    switch (method.getName()) {
      case "startingTransaction":
        return start((Function0<?>) arguments[0]);
      case "preparingCommit":
        return prepare((Function0<?>) arguments[0]);
      case "beginDoCommit":
        awaitAllowance();
        return null;
      case "beginPostCommit":
        committed();
        return null;
      case "createChild":
        return proxy;
      case "nextObserver":
      case "getNextObserver":
        return Option.empty();
      case "toString":
        return "lakewarden " + id;
      case "hashCode":
        return System.identityHashCode(proxy);
      case "equals":
        return proxy == arguments[0];
      default:
        return null;
    }
  }

  private OptimisticTransaction start(Function0<?> make) {
    if (!state().equals("computing")) {
      throw new IllegalStateException(
          "Delta began another transaction after the one that wants to commit, which would commit without a grant; transaction=" + id);
    }
    OptimisticTransaction delta = (OptimisticTransaction) make.apply();
    String written = delta.deltaLog().dataPath().toString();
    if (!written.equals(location)) {
      throw new IllegalStateException("the statement writes another table, " + written + "; transaction=" + id);
    }
    before = delta.metadata().json();
    List<String> facts = new ArrayList<>(Arrays.asList("base\t" + delta.readVersion(), "delta\t" + delta.txnId()));
    Delta.listed(delta.deltaLog(), delta.readVersion()).stream().limit(1).forEach(file -> facts.add("file\t" + file));
    read = facts;
    current = delta;
    if (batch >= 0) {
      // What the transaction has read: a commit of the writer by another process is then a conflict.
      delta.readTxn().$plus$eq(writer);
      delta.updateSetTransaction(writer, batch, Option.apply((Object) System.currentTimeMillis()));
    }
    return delta;
  }

  private Object prepare(Function0<?> make) {
    Object made = make.apply();
    List<String> found = new ArrayList<>();
    Iterator<?> each = ((Seq<?>) made).iterator();
    while (each.hasNext()) {
      found.add(((Action) each.next()).json());
    }
    actions = found;
    after = current.metadata().json();
    return made;
  }

  private synchronized void awaitAllowance() throws InterruptedException {
    if (state.equals("computing")) {
      become("prepared");
    }
    while (state.equals("prepared") && now() < heldUntil) {
      wait(Math.max(1, heldUntil - now()));
    }
    if (state.equals("prepared")) {
      become("refused");
      throw new IllegalStateException("lakewarden: the writer of transaction " + id + " didn't answer for " + holdMs + " ms");
    }
    if (!state.equals("allowed")) {
      throw new IllegalStateException("lakewarden: the writer refused the commit of transaction " + id);
    }
    if (now() >= allowedUntil || System.currentTimeMillis() >= allowedUntilByTheWall) { // a suspended machine stops the first
      become("refused");
      throw new IllegalStateException("lakewarden: the lease of transaction " + id + " ended before its commit began");
    }
    begun = true;
    become("committing");
  }

  private void committed() {
    Option<String> found = own.conf().getOption(LAST_VERSION);
    version = found.isDefined() ? found.get() : "";
    become("committed");
  }

  private synchronized void end() {
    endedAt = now();
    own = null; // it is kept to answer, for an hour
    current = null;
    become(version.isEmpty() ? "ended" : "committed");
  }

  // what the writer calls

  synchronized String[] prepared(long end) throws InterruptedException {
    hold();
    while (state.equals("computing") && endedAt == 0 && now() < end) {
      wait(Math.max(1, end - now()));
    }
    return facts(!state.equals("computing"));
  }

  synchronized String[] hold() {
    heldUntil = now() + holdMs;
    return new String[] {"state\t" + state, "clock\t" + now()};
  }

  synchronized String[] allow(long until, long waitMs) throws InterruptedException {
    if (!state.equals("prepared")) {
      throw new IllegalStateException("lakewarden: the statement of transaction " + id + " is " + state + ", and can't be allowed");
    }
    allowedUntil = until;
    allowedUntilByTheWall = System.currentTimeMillis() + until - now();
    become("allowed");
    long end = now() + waitMs;
    while ((state.equals("allowed") || state.equals("committing")) && now() < end) {
      wait(Math.max(1, end - now()));
    }
    return facts(false);
  }

  synchronized String[] refuse() {
    if (state.equals("computing") || state.equals("prepared")) {
      become("refused");
    }
    return facts(false);
  }

  synchronized String[] ended(long waitMs) throws InterruptedException {
    long end = now() + waitMs;
    while (endedAt == 0 && now() < end) {
      wait(Math.max(1, end - now()));
    }
    return facts(false);
  }

  synchronized boolean endedFor(long ms) {
    return endedAt != 0 && now() - endedAt > ms;
  }

  private synchronized String state() {
    return state;
  }

  private synchronized void become(String next) {
    state = next;
    notifyAll();
  }

  /** Lines of a name and a value, separated by a tab. {@code whole}: with what the commit has. */
  private synchronized String[] facts(boolean whole) {
    List<String> found = new ArrayList<>();
    found.add("state\t" + state);
    found.add("clock\t" + now());
    found.add("ended\t" + (endedAt != 0));
    found.add("begun\t" + begun);
    found.add("committed\t" + version);
    found.addAll(read);
    if (whole) {
      found.add("before\t" + before);
      found.add("metadata\t" + after);
      actions.forEach(action -> found.add("action\t" + action));
    }
    for (Throwable each = failure; each != null; each = each.getCause()) {
      for (Class<?> kind = each.getClass(); kind != Object.class; kind = kind.getSuperclass()) {
        found.add("class\t" + kind.getName());
      }
    }
    if (failure != null) {
      found.add("text\t" + failure.getClass().getSimpleName() + ": " + failure.getMessage());
    }
    return found.toArray(new String[0]);
  }
}

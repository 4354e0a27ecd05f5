package org.apache.hudi.client.transaction.lock;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.hudi.callback.HoodieClientInitCallback;
import org.apache.hudi.client.BaseHoodieClient;

/**
 * The clients of a transaction's write. An instant's files on the timeline name no writer, but the client that requested it has
 * a heartbeat for it.
 */
public final class LakewardenClients implements HoodieClientInitCallback {
  private static final Map<String, List<BaseHoodieClient>> CLIENTS = new ConcurrentHashMap<>();

  @Override
  public void call(BaseHoodieClient client) {
    String transaction = client.getConfig().getProps().getString("hoodie.lakewarden.transaction", "");
    List<BaseHoodieClient> clients = CLIENTS.get(transaction);
    if (clients != null) {
      clients.add(client);
    }
  }

  /** Remember the clients of this transaction. */
  public static void register(String transaction) {
    CLIENTS.put(transaction, new CopyOnWriteArrayList<BaseHoodieClient>());
  }

  /** Forget the clients of this transaction. */
  public static void unregister(String transaction) {
    CLIENTS.remove(transaction);
  }

  /** Whether a client of this transaction requested the instant. */
  public static boolean owns(String transaction, String instant) {
    List<BaseHoodieClient> clients = CLIENTS.get(transaction);
    if (clients == null) {
      return false;
    }
    for (BaseHoodieClient client : clients) {
      if (client.getHeartbeatClient() != null && client.getHeartbeatClient().getHeartbeat(instant) != null) {
        return true;
      }
    }
    return false;
  }
}

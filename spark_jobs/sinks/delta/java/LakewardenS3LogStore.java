package io.delta.storage;

import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3AUtils;
import org.apache.hadoop.fs.s3a.impl.PutObjectOptions;
import org.apache.hadoop.fs.store.audit.AuditSpan;
import org.apache.hadoop.util.Progressable;
import software.amazon.awssdk.awscore.AwsRequestOverrideConfiguration;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;

/**
 * Delta's log store for S3, except that a file that must not exist is put under the condition that it doesn't (If-None-Match).
 * The parent checks whether the file exists, then writes it without a condition.
 *
 * <p>Locks, that check and everything else are the parent's. The parent writes to the file system of the path, and this class
 * passes it a path whose file system puts the file in this way.
 *
 * <table>
 *   <tr><th>answer to the put</th><th>then</th></tr>
 *   <tr><td>success</td><td>written</td></tr>
 *   <tr><td>412</td><td>read back: written by an earlier try whose answer was lost if the bytes are the same, else
 *       FileAlreadyExistsException</td></tr>
 *   <tr><td>409, another conditional put is in progress</td><td>again, a few times</td></tr>
 *   <tr><td>none, 5xx, 408 or 429</td><td>read back, as after 412; if the file is absent, again, a few times. Of puts with a
 *       condition, only one takes effect</td></tr>
 *   <tr><td>501, the store has no such condition</td><td>written without it, and so are the bucket's later files</td></tr>
 *   <tr><td>any other</td><td>the error, as S3A reports it</td></tr>
 * </table>
 *
 * <p>S3A's own factory builds the requests, so they have the encryption, ACL and storage class of its settings. With a release
 * of Hadoop that lacks what this class calls, files are written as after 501.
 */
public final class LakewardenS3LogStore extends S3SingleDriverLogStore {
  /** Changes with what is called from Python. */
  public static final int VERSION = 1;

  private static final int TRIES = 4;
  private static final long FIRST_PAUSE_MILLISECONDS = 100; // doubled for each further try

  private static final Set<String> UNCONDITIONAL = ConcurrentHashMap.newKeySet();

  public LakewardenS3LogStore(Configuration configuration) {
    super(configuration);
  }

  /** Whether a put to this bucket had to do without the condition. */
  public static boolean isUnconditional(String bucket) {
    return UNCONDITIONAL.contains(bucket);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration) throws IOException {
    super.write(overwrite ? path : new FencedPath(path), actions, overwrite, configuration);
  }

  /** A path whose file system is fenced, if it is S3A. */
  static final class FencedPath extends Path {
    private static final long serialVersionUID = 1;

    FencedPath(Path path) {
      super(path.toUri());
    }

    @Override
    public FileSystem getFileSystem(Configuration configuration) throws IOException {
      FileSystem found = super.getFileSystem(configuration);
      return found instanceof S3AFileSystem ? new Fenced((S3AFileSystem) found) : found;
    }
  }

  /** S3A, except that a new file is put under the condition. */
  static final class Fenced extends FilterFileSystem {
    private final S3AFileSystem store;

    Fenced(S3AFileSystem store) {
      super(store);
      this.store = store;
    }

    @Override
    public FSDataOutputStream create(Path file, FsPermission permission, boolean overwrite, int buffer, short replication,
        long block, Progressable progress) throws IOException {
      if (overwrite || UNCONDITIONAL.contains(store.getBucket())) {
        return super.create(file, permission, overwrite, buffer, replication, block, progress);
      }
      return new FSDataOutputStream(new Put(store, file), null);
    }
  }

  /** The content of a new file, which is put when it is closed. */
  static final class Put extends ByteArrayOutputStream {
    private final S3AFileSystem store;
    private final Path file;
    private boolean closed;

    Put(S3AFileSystem store, Path file) {
      this.store = store;
      this.file = file;
    }

    @Override
    public void close() throws IOException {
      if (closed) {
        return;
      }
      closed = true;
      byte[] content = toByteArray();
      try {
        put(content);
      } catch (LinkageError otherRelease) {
        putUnconditionally(content);
      }
    }

    private void put(byte[] content) throws IOException {
      long pause = FIRST_PAUSE_MILLISECONDS;
      for (int left = TRIES - 1; ; left--) {
        try {
          send(content);
          return;
        } catch (SdkException failure) {
          int status = failure instanceof AwsServiceException ? ((AwsServiceException) failure).statusCode() : 0;
          if (status == 501) {
            putUnconditionally(content);
            return;
          }
          if (status != 409 && isThere(content, status, failure)) {
            return;
          }
          if (status == 412 || left == 0) {
            throw failed(failure);
          }
        }
        pause(pause);
        pause *= 2;
      }
    }

    private void send(byte[] content) throws IOException {
      S3Client client = store.getS3AInternals().getAmazonS3Client("lakewarden puts a file if it is absent");
      PutObjectRequest request = store.getRequestFactory()
          .newPutObjectRequestBuilder(store.pathToKey(file), options(), content.length, false)
          .build();
      AwsRequestOverrideConfiguration.Builder headers = request.overrideConfiguration().isPresent()
          ? request.overrideConfiguration().get().toBuilder()
          : AwsRequestOverrideConfiguration.builder();
      headers.putHeader("If-None-Match", "*");
      try (AuditSpan span = store.createSpan("op_create", file.toString(), null)) {
        client.putObject(request.toBuilder().overrideConfiguration(headers.build()).build(), RequestBody.fromBytes(content));
      }
    }

    /** None. Hadoop 3.4.2 renamed the method that returns them, and 3.5 has only the new name. */
    private static PutObjectOptions options() {
      try {
        try {
          return (PutObjectOptions) PutObjectOptions.class.getMethod("defaultOptions").invoke(null);
        } catch (NoSuchMethodException older) {
          return (PutObjectOptions) PutObjectOptions.class.getMethod("keepingDirs").invoke(null);
        }
      } catch (ReflectiveOperationException another) {
        throw new LinkageError("this release of Hadoop has neither", another);
      }
    }

    /** Whether the file has this content. Raises an error if it has another, or if the answer was a clear refusal. */
    private boolean isThere(byte[] content, int status, SdkException failure) throws IOException {
      boolean unclear = status == 0 || status == 408 || status == 412 || status == 429 || status >= 500;
      if (!unclear) {
        throw failed(failure);
      }
      byte[] found = new byte[content.length];
      try (FSDataInputStream stream = store.open(file)) {
        stream.readFully(found);
        if (Arrays.equals(found, content) && stream.read() < 0) {
          return true;
        }
      } catch (FileNotFoundException absent) {
        return false;
      } catch (EOFException shorter) {
        // another content
      } catch (IOException unreadable) {
        throw failed(failure);
      }
      throw new FileAlreadyExistsException(file.toString());
    }

    private void putUnconditionally(byte[] content) throws IOException {
      UNCONDITIONAL.add(store.getBucket());
      try (FSDataOutputStream stream = store.create(file, false)) {
        stream.write(content);
      }
    }

    private IOException failed(SdkException failure) {
      return S3AUtils.translateException("put if absent", file, failure);
    }

    private static void pause(long milliseconds) throws IOException {
      try {
        Thread.sleep(milliseconds);
      } catch (InterruptedException interrupt) {
        Thread.currentThread().interrupt();
        throw new InterruptedIOException("interrupted between two tries of a put");
      }
    }
  }
}

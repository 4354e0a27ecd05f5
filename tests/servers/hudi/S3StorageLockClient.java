package org.apache.hudi.aws.transaction.lock;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hudi.client.transaction.lock.StorageLockClient;
import org.apache.hudi.client.transaction.lock.models.LockGetResult;
import org.apache.hudi.client.transaction.lock.models.LockUpsertResult;
import org.apache.hudi.client.transaction.lock.models.StorageLockData;
import org.apache.hudi.client.transaction.lock.models.StorageLockFile;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.common.util.collection.Pair;
import org.apache.hudi.config.StorageBasedLockConfig;
import software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider;
import software.amazon.awssdk.awscore.retry.AwsRetryStrategy;
import software.amazon.awssdk.core.ResponseInputStream;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.GetObjectResponse;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;
import software.amazon.awssdk.services.s3.model.S3Exception;

/**
 * A replacement for Hudi's client for s3://, under the class name that Hudi's lock provider loads. Hudi's own client is in
 * hudi-aws, which has no 1.x release on Maven Central.
 *
 * <p>For a lock it behaves like Hudi's client: If-None-Match, or If-Match with the unchanged ETag; ETag and body of a read
 * from one GET; no retries; a timeout of a fifth of the lease for each call; the same result for each status. Endpoint, region
 * and credentials come from the environment.
 */
public final class S3StorageLockClient implements StorageLockClient {
    /** The requests of all clients of this JVM. Each call sends one, because there are no retries. */
    public static final AtomicLong REQUESTS = new AtomicLong();

    private final S3Client s3;
    private final String bucket;
    private final String key;

    /** Called by Hudi, by reflection. */
    public S3StorageLockClient(String owner, String lock, Properties properties) {
        Pair<String, String> place = StorageLockClient.parseBucketAndPath(lock);
        bucket = place.getLeft();
        key = place.getRight();
        String lease = properties.getProperty(StorageBasedLockConfig.VALIDITY_TIMEOUT_SECONDS.key());
        Duration longest = Duration.ofSeconds(Long.parseLong(lease)).dividedBy(5);
        s3 = S3Client.builder()
            .endpointOverride(URI.create(System.getenv("AWS_ENDPOINT_URL_S3")))
            .forcePathStyle(true)
            .region(Region.of(System.getenv("AWS_DEFAULT_REGION")))
            .credentialsProvider(EnvironmentVariableCredentialsProvider.create())
            .overrideConfiguration(c -> c.apiCallTimeout(longest).retryStrategy(AwsRetryStrategy.doNotRetry()))
            .build();
    }

    @Override
    public Pair<LockGetResult, Option<StorageLockFile>> readCurrentLockFile() {
        REQUESTS.incrementAndGet();
        try (ResponseInputStream<GetObjectResponse> found = s3.getObject(r -> r.bucket(bucket).key(key))) {
            StorageLockFile lock = StorageLockFile.createFromStream(found, found.response().eTag());
            return Pair.of(LockGetResult.SUCCESS, Option.of(lock));
        } catch (S3Exception refusal) {
            int status = refusal.statusCode();
            if (status == 404) {
                return Pair.of(LockGetResult.NOT_EXISTS, Option.empty());
            }
            if (status == 409 || status == 429 || status >= 500) {
                return Pair.of(LockGetResult.UNKNOWN_ERROR, Option.empty());
            }
            throw refusal;
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        }
    }

    @Override
    public Pair<LockUpsertResult, Option<StorageLockFile>> tryUpsertLockFile(
            StorageLockData lock, Option<StorageLockFile> before) {
        REQUESTS.incrementAndGet();
        PutObjectRequest.Builder request = PutObjectRequest.builder().bucket(bucket).key(key);
        if (before.isPresent()) {
            request.ifMatch(before.get().getVersionId());
        } else {
            request.ifNoneMatch("*");
        }
        try {
            RequestBody body = RequestBody.fromBytes(StorageLockFile.toByteArray(lock));
            String version = s3.putObject(request.build(), body).eTag();
            return Pair.of(LockUpsertResult.SUCCESS, Option.of(new StorageLockFile(lock, version)));
        } catch (S3Exception refusal) {
            return Pair.of(meaning(refusal.statusCode()), Option.empty());
        } catch (SdkException silence) {
            if (before.isEmpty()) {
                throw silence;
            }
            return Pair.of(LockUpsertResult.UNKNOWN_ERROR, Option.empty());
        }
    }

    private static LockUpsertResult meaning(int status) {
        return switch (status) {
            case 412 -> LockUpsertResult.ACQUIRED_BY_OTHERS;
            case 429 -> LockUpsertResult.THROTTLED;
            default -> LockUpsertResult.UNKNOWN_ERROR;
        };
    }

    /** Hudi reads an object to find out whether its audit is enabled. These tables never enable it. */
    @Override
    public Option<String> readObject(String path, boolean lookFirst) {
        Pair<String, String> place = StorageLockClient.parseBucketAndPath(path);
        REQUESTS.incrementAndGet();
        try {
            s3.headObject(r -> r.bucket(place.getLeft()).key(place.getRight()));
        } catch (S3Exception refusal) {
            if (refusal.statusCode() == 404) {
                return Option.empty();
            }
            throw refusal;
        }
        throw new IllegalStateException("unexpected object: " + path);
    }

    @Override
    public boolean writeObject(String path, String content) {
        throw new IllegalStateException("the audit is not enabled: " + path);
    }

    @Override
    public void close() {
        s3.close();
    }
}

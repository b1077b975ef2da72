// SPDX-License-Identifier: GPL-2.0-only

import java.io.IOException;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.List;

/**
 * Two clients of a server with a thread per request, beside a batch that grows the heap by MIB,
 * drops that and lets the JVM give it back; with MIB 0 there is no batch.
 *
 * <p>Load OUT MS MIB. The latency is that of a request: a thread starts, allocates objects of
 * 256 KiB in all that live until the answer, and ends. A JVM's thread protects pages of its stack
 * at its start and at its end. OUT.latency has the microseconds of each request, OUT.unpaused
 * only of those during which no collection has ended: the others may have waited for a collector.
 */
public final class Load {
    private static final int CLIENTS = 2;
    private static final int PARTS = 256;
    private static final int PART_BYTES = 1024;
    /** The sum over all values of a byte, each of which a request writes once. */
    private static final long ANSWER = -128;
    /** With its header less than a region of G1, which does not copy objects of that size. */
    private static final int CHUNK_BYTES = (1 << 20) - 1024;
    /** How long the batch waits for the JVM to give memory back, in steps. */
    private static final int IDLE_STEPS = 40;
    private static final int STEP_MS = 50;

    private static final List<GarbageCollectorMXBean> COLLECTORS =
            ManagementFactory.getGarbageCollectorMXBeans();

    private static volatile boolean stop;
    /** A thread that failed makes the results worthless. */
    private static volatile Throwable failure;

    private static long collections() {
        long count = 0;
        for (GarbageCollectorMXBean collector : COLLECTORS) {
            count += collector.getCollectionCount();
        }
        return count;
    }

    /** A client: the microseconds of its requests; negative if a collection ended meanwhile. */
    private static final class Client extends Thread {
        private final long end;
        private int[] us = new int[1 << 16];
        private int done;

        Client(long end) {
            this.end = end;
        }

        @Override
        public void run() {
            long before = System.nanoTime();
            long collections = collections();
            while (before < end) {
                serve(done);
                long now = System.nanoTime();
                long ended = collections();
                if (done == us.length) {
                    us = Arrays.copyOf(us, 2 * done);
                }
                int taken = (int) ((now - before) / 1000);
                us[done++] = ended == collections ? taken : -taken;
                before = now;
                collections = ended;
            }
        }

        private static void serve(int seed) {
            long[] answer = new long[1];
            Thread thread = new Thread(() -> answer[0] = request(seed));
            thread.start();
            try {
                thread.join();
            } catch (InterruptedException unexpected) {
                throw new IllegalStateException(unexpected);
            }
            if (answer[0] != ANSWER) {
                throw new IllegalStateException("a request has a wrong answer");
            }
        }

        private static long request(int seed) {
            byte[][] parts = new byte[PARTS][];
            for (int number = 0; number < PARTS; number++) {
                parts[number] = new byte[PART_BYTES];
                parts[number][PART_BYTES / 2] = (byte) (seed + number);
            }
            long sum = 0;
            for (byte[] part : parts) {
                sum += part[PART_BYTES / 2];
            }
            return sum;
        }
    }

    /** The batch: how much it allocated, and how much of the heap the JVM gave back meanwhile. */
    private static final class Batch extends Thread {
        private final int chunks;
        private final MemoryMXBean memory = ManagementFactory.getMemoryMXBean();
        /** Read by the main thread at the end of the requests, while the batch still runs. */
        private volatile int rounds;
        private volatile long givenBack;

        Batch(int mib) {
            chunks = (int) (((long) mib << 20) / CHUNK_BYTES);
        }

        @Override
        public void run() {
            while (!stop) {
                fill();
                shrink();
                rounds++;
            }
        }

        private void fill() {
            byte[][] kept = new byte[chunks][];
            for (int number = 0; number < chunks && !stop; number++) {
                kept[number] = new byte[CHUNK_BYTES];
                Arrays.fill(kept[number], (byte) 1);
            }
        }

        private void shrink() {
            long committed = memory.getHeapMemoryUsage().getCommitted();
            System.gc();
            for (int step = 0; step < IDLE_STEPS && !stop; step++) {
                try {
                    Thread.sleep(STEP_MS);
                } catch (InterruptedException unexpected) {
                    throw new IllegalStateException(unexpected);
                }
                long now = memory.getHeapMemoryUsage().getCommitted();
                givenBack += Math.max(0, committed - now);
                committed = now;
            }
        }
    }

    private static void counters(String out, String when) throws IOException {
        Files.copy(Path.of("/proc/vmstat"), Path.of(out + "." + when),
                StandardCopyOption.REPLACE_EXISTING);
    }

    public static void main(String[] args) throws IOException, InterruptedException {
        String out = args[0];
        long ms = Long.parseLong(args[1]);
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> failure = error);
        int mib = Integer.parseInt(args[2]);
        Batch batch = new Batch(mib);
        counters(out, "before");
        long start = System.nanoTime();
        Client[] clients = new Client[CLIENTS];
        if (mib > 0) {
            batch.start();
        }
        for (int number = 0; number < CLIENTS; number++) {
            clients[number] = new Client(start + ms * 1_000_000);
            clients[number].start();
        }
        int done = 0;
        for (Client client : clients) {
            client.join();
            done += client.done;
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        counters(out, "after");
        String facts = String.format("batches %d%nheap_given_back_mib %d%n", batch.rounds,
                batch.givenBack >> 20);
        stop = true;
        batch.join();
        if (failure != null) {
            failure.printStackTrace();
            System.exit(1);
        }
        StringBuilder text = new StringBuilder();
        StringBuilder unpaused = new StringBuilder();
        for (Client client : clients) {
            for (int number = 0; number < client.done; number++) {
                int us = client.us[number];
                text.append(Math.abs(us)).append('\n');
                if (us >= 0) {
                    unpaused.append(us).append('\n');
                }
            }
        }
        Files.writeString(Path.of(out + ".latency"), text);
        Files.writeString(Path.of(out + ".unpaused"), unpaused);
        Files.writeString(Path.of(out + ".work"), String.format("%d %.3f%n", done, seconds));
        Files.writeString(Path.of(out + ".facts"), facts);
    }
}

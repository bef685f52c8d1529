import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * The official client as load: synchronous sends from any number of connections, and a push consumer.
 *
 * <pre>
 *   send    NAMESRV TOPIC CONNECTIONS THREADS SIZE SECONDS [PER_SECOND]
 *   consume NAMESRV TOPIC GROUP COUNT
 * </pre>
 *
 * Commands come one a line on standard input, words between tabs; each is answered by a line of JSON.
 */
public final class Load {
    private static long instances = 0;

    public static void main(String[] words) throws Exception {
        System.out.println("ready");
        java.io.BufferedReader lines =
            new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] command = line.split("\t");
            if (command[0].equals("send")) {
                send(command);
            } else if (command[0].equals("consume")) {
                consume(command);
            } else {
                System.out.println("{\"error\":\"no such command\"}");
            }
            System.out.println("=== end of command ===");
            System.out.flush();
        }
    }

    private static void send(String[] words) throws Exception {
        String topic = words[2];
        int connections = Integer.parseInt(words[3]);
        int threads = Integer.parseInt(words[4]);
        int size = Integer.parseInt(words[5]);
        long nanos = (long) (Double.parseDouble(words[6]) * 1e9);
        double rate = words.length > 7 ? Double.parseDouble(words[7]) : 0;
        List<DefaultMQProducer> producers = new ArrayList<>();
        for (int i = 0; i < connections; i++) {
            DefaultMQProducer producer = new DefaultMQProducer("load");
            producer.setNamesrvAddr(words[1]);
            producer.setInstanceName("load-" + instances++);
            producer.setVipChannelEnabled(false);
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            producer.start();
            producer.send(new Message(topic, "TagA", "first", new byte[size]));
            producers.add(producer);
        }
        AtomicLong failed = new AtomicLong();
        List<long[]> latencies = new ArrayList<>();
        List<Thread> workers = new ArrayList<>();
        CountDownLatch ready = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
        long[] begin = new long[1];
        for (int i = 0; i < threads; i++) {
            DefaultMQProducer producer = producers.get(i % connections);
            int number = i;
            Thread worker = new Thread(() -> {
                long[] mine = new long[1 << 16];
                int count = 0;
                byte[] body = new byte[size];
                Arrays.fill(body, (byte) 'x');
                ready.countDown();
                try {
                    go.await();
                    double step = rate > 0 ? 1e9 * threads / rate : 0;
                    double due = begin[0] + step * number / threads;
                    while (true) {
                        long from = System.nanoTime();
                        if (rate > 0) {
                            // From when it was due, so that a stall counts for all it held up.
                            while (from < due) {
                                LockSupport.parkNanos((long) due - from);
                                from = System.nanoTime();
                            }
                            from = (long) due;
                            due += step;
                        }
                        if (System.nanoTime() - begin[0] >= nanos) {
                            break;
                        }
                        try {
                            Message message = new Message(topic, "TagA", "key" + count, body);
                            if (producer.send(message).getSendStatus() != SendStatus.SEND_OK) {
                                failed.incrementAndGet();
                            }
                        } catch (Exception error) {
                            failed.incrementAndGet();
                        }
                        if (count == mine.length) {
                            mine = Arrays.copyOf(mine, 2 * count);
                        }
                        mine[count++] = System.nanoTime() - from;
                    }
                } catch (InterruptedException stop) {
                    Thread.currentThread().interrupt();
                }
                synchronized (latencies) {
                    latencies.add(Arrays.copyOf(mine, count));
                }
            });
            worker.start();
            workers.add(worker);
        }
        ready.await();
        begin[0] = System.nanoTime();
        go.countDown();
        for (Thread worker : workers) {
            worker.join();
        }
        double seconds = (System.nanoTime() - begin[0]) / 1e9;
        for (DefaultMQProducer producer : producers) {
            producer.shutdown();
        }
        long[] all = latencies.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        System.out.printf(
            "{\"sent\":%d,\"failed\":%d,\"seconds\":%.4f,\"p50_us\":%.1f,\"p99_us\":%.1f}%n",
            all.length, failed.get(), seconds, at(all, 0.50) / 1e3, at(all, 0.99) / 1e3);
    }

    private static double at(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1, sorted.length * share)];
    }

    private static void consume(String[] words) throws Exception {
        long wanted = Long.parseLong(words[4]);
        AtomicLong count = new AtomicLong();
        long[] times = new long[2];
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words[3]);
        consumer.setNamesrvAddr(words[1]);
        consumer.setInstanceName("load-" + instances++);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.setPullBatchSize(32);
        consumer.subscribe(words[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            long before = count.getAndAdd(messages.size());
            if (before == 0) {
                times[0] = now;
            }
            if (before < wanted && before + messages.size() >= wanted) {
                times[1] = now;
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean ended = done.await(120, java.util.concurrent.TimeUnit.SECONDS);
        consumer.shutdown();
        if (ended) {
            System.out.printf(
                "{\"consumed\":%d,\"seconds\":%.4f}%n", wanted, (times[1] - times[0]) / 1e9);
        } else {
            System.out.printf("{\"error\":\"%d of %d after 120 s\"}%n", count.get(), wanted);
        }
    }
}

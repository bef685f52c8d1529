import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's official TransactionMQProducer.
 *
 * <pre>
 *   send  NAMESRV TOPIC GROUP COUNT EXECUTED CHECKED   sent N, then "checked BODY" for each check, until its input ends
 *   load  NAMESRV TOPIC GROUP COUNT THREADS            sent N failed M in MS ms
 * </pre>
 *
 * EXECUTED and CHECKED are how local transactions end and what a check is answered: commit, rollback or unknown.
 */
public final class TransactionPeer {
    private TransactionPeer() {
    }

    public static void main(String[] args) throws Exception {
        String command = args[0];
        int count = Integer.parseInt(args[4]);
        LocalTransactionState executed = command.equals("load") ? LocalTransactionState.COMMIT_MESSAGE : state(args[5]);
        LocalTransactionState checked = command.equals("load") ? executed : state(args[6]);
        TransactionMQProducer producer = new TransactionMQProducer(args[3]);
        producer.setNamesrvAddr(args[1]);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return executed;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                if (!command.equals("load")) {
                    say("checked %s in %s queue %d", text(message), message.getTopic(), message.getQueueId());
                }
                return checked;
            }
        });
        producer.start();
        if (command.equals("load")) {
            load(producer, args[2], count, Integer.parseInt(args[5]));
        } else {
            for (int i = 0; i < count; i++) {
                Message message = new Message(args[2], "TagA", "key-" + i, body("message-" + i));
                TransactionSendResult result = producer.sendMessageInTransaction(message, i);
                if (result.getLocalTransactionState() != executed) {
                    throw new IllegalStateException(String.valueOf(result));
                }
            }
            say("sent %d", count);
            while (System.in.read() >= 0) {
                continue;
            }
        }
        producer.shutdown();
        System.exit(0);
    }

    private static void load(TransactionMQProducer producer, String topic, int count, int threads) throws Exception {
        byte[] body = new byte[1024];
        AtomicInteger next = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(threads);
        long begin = System.nanoTime();
        for (int t = 0; t < threads; t++) {
            new Thread(() -> {
                while (next.getAndIncrement() < count) {
                    try {
                        producer.sendMessageInTransaction(new Message(topic, "TagA", body), null);
                    } catch (Exception error) {
                        failed.incrementAndGet();
                    }
                }
                done.countDown();
            }).start();
        }
        done.await();
        say("sent %d failed %d in %d ms", count - failed.get(), failed.get(), (System.nanoTime() - begin) / 1_000_000);
    }

    private static LocalTransactionState state(String name) {
        switch (name) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    private static byte[] body(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void say(String format, Object... values) {
        System.out.printf(format + "%n", values);
        System.out.flush();
    }
}

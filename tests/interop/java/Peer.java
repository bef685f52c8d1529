import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's official Java client behind a line protocol: the tests start it, read its standard output, and stop it by
 * closing its standard input.
 *
 * <pre>
 *   produce NAMESRV TOPIC GROUP COUNT            sent N failed M
 *   stream  NAMESRV TOPIC GROUP RATE             second S sent N, each second; failed REASON, each failure; sent N failed M
 *   consume NAMESRV TOPIC GROUP EXPECTED WAIT_S  received UNIQUE duplicates D
 *   sample  NAMESRV TOPIC GROUP                  one of each kind of message: id NAME MSGID OFFSETMSGID
 *   listen  NAMESRV TOPIC GROUP MODE             ready; got BODY for each message, until standard input ends;
 *                                                MODE is concurrent, orderly, sql or replying
 *   request NAMESRV TOPIC GROUP                  answered BODY, by a listener in mode replying
 *   poll    NAMESRV TOPIC GROUP EXPECTED         received N, by the lite pull consumer
 * </pre>
 */
public final class Peer {
    private static final int SENDING_THREADS = 4;
    private static final long SETTLE_MS = 1000;
    private static final int ROUTE_REFRESH_MS = 2000;

    private Peer() {
    }

    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace(); // The client's own threads would keep a dead main waiting for ever.
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        switch (args[0]) {
            case "produce":
                produce(args[1], args[2], args[3], Integer.parseInt(args[4]));
                break;
            case "stream":
                stream(args[1], args[2], args[3], Integer.parseInt(args[4]));
                break;
            case "consume":
                consume(args[1], args[2], args[3], Integer.parseInt(args[4]), Integer.parseInt(args[5]));
                break;
            case "sample":
                sample(args[1], args[2], args[3]);
                break;
            case "listen":
                listen(args[1], args[2], args[3], args[4]);
                break;
            case "request":
                request(args[1], args[2], args[3]);
                break;
            case "poll":
                poll(args[1], args[2], args[3], Integer.parseInt(args[4]));
                break;
            default:
                throw new IllegalArgumentException("unknown command " + args[0]);
        }
    }

    private static void say(String format, Object... values) {
        System.out.printf(format + "%n", values);
        System.out.flush();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void waitForEndOfInput() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            continue;
        }
    }

    private static DefaultMQProducer producer(String nameServers, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServers);
        producer.start();
        return producer;
    }

    private static boolean send(DefaultMQProducer producer, String topic, long number) {
        String body = "message-" + number;
        try {
            SendResult result = producer.send(new Message(topic, "TagA", "key-" + number, bytes(body)));
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                return true;
            }
            say("failed %s %s", body, result.getSendStatus());
        } catch (Exception error) {
            say("failed %s %s", body, String.valueOf(error).replace('\n', ' '));
        }
        return false;
    }

    private static void produce(String nameServers, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = producer(nameServers, group);
        AtomicLong next = new AtomicLong();
        AtomicInteger sent = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < SENDING_THREADS; i++) {
            Thread thread = new Thread(() -> {
                for (long number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                    (send(producer, topic, number) ? sent : failed).incrementAndGet();
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        say("sent %d failed %d", sent.get(), failed.get());
        producer.shutdown();
    }

    private static void stream(String nameServers, String topic, String group, int rate) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServers);
        producer.setPollNameServerInterval(ROUTE_REFRESH_MS); // It must meet the dead name servers while they are dead.
        producer.start();
        AtomicBoolean stopped = new AtomicBoolean();
        Thread stopper = new Thread(() -> {
            try {
                waitForEndOfInput();
            } catch (Exception error) {
                say("failed reading standard input: %s", error);
            }
            stopped.set(true);
        });
        stopper.setDaemon(true);
        stopper.start();

        long start = System.nanoTime();
        long second = 0;
        int sent = 0;
        int failed = 0;
        int sentThisSecond = 0;
        for (long number = 0; !stopped.get(); number++) {
            if (send(producer, topic, number)) {
                sent++;
                sentThisSecond++;
            } else {
                failed++;
            }
            long due = start + TimeUnit.SECONDS.toNanos(number + 1) / rate;
            long ahead = due - System.nanoTime();
            if (ahead > 0) {
                TimeUnit.NANOSECONDS.sleep(ahead);
            }
            long now = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - start);
            if (now > second) {
                say("second %d sent %d", second, sentThisSecond);
                second = now;
                sentThisSecond = 0;
            }
        }
        say("sent %d failed %d", sent, failed);
        producer.shutdown();
    }

    private static void consume(String nameServers, String topic, String group, int expected, int waitSeconds)
        throws Exception {
        Set<String> unique = ConcurrentHashMap.newKeySet();
        AtomicInteger duplicates = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (!unique.add(new String(message.getBody(), StandardCharsets.UTF_8))) {
                    duplicates.incrementAndGet();
                }
            }
            if (unique.size() >= expected) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (done.await(waitSeconds, TimeUnit.SECONDS)) {
            Thread.sleep(SETTLE_MS); // Room for what nobody sent to show itself.
        }
        say("received %d duplicates %d", unique.size(), duplicates.get());
        consumer.shutdown();
    }

    private static void listen(String nameServers, String topic, String group, String mode) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (mode.equals("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql("colour IS NOT NULL AND TAGS = 'TagB'"));
        } else {
            consumer.subscribe(topic, "*");
        }
        DefaultMQProducer replies = mode.equals("replying") ? producer(nameServers, group + "-replies") : null;
        Set<String> refused = ConcurrentHashMap.newKeySet();
        if (mode.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> say("got %s", text(message)));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    String body = text(message);
                    // A body that asks for it is refused once, so that it goes back to the broker and comes again.
                    if (body.startsWith("refuse-once") && refused.add(body)) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                    if (replies != null && message.getProperty(MessageConst.PROPERTY_CORRELATION_ID) != null) {
                        try {
                            replies.send(MessageUtil.createReplyMessage(message, bytes("re: " + body)));
                        } catch (Exception error) {
                            say("failed %s %s", body, error);
                        }
                    }
                    say("got %s", body.length() > 60 ? body.substring(0, 60) : body);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        say("ready");
        waitForEndOfInput();
        consumer.shutdown();
        if (replies != null) {
            replies.shutdown();
        }
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void request(String nameServers, String topic, String group) throws Exception {
        DefaultMQProducer producer = producer(nameServers, group);
        say("answered %s", text(producer.request(new Message(topic, bytes("a question")), 20_000)));
        producer.shutdown();
    }

    private static void poll(String nameServers, String topic, String group, int expected) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        int received = 0;
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (received < expected && System.nanoTime() < deadline) {
            received += consumer.poll(1000).size();
        }
        consumer.commitSync();
        say("received %d", received);
        consumer.shutdown();
    }

    private static void sample(String nameServers, String topic, String group) throws Exception {
        DefaultMQProducer producer = producer(nameServers, group);
        show("single", producer.send(new Message(topic, "TagA", "key-1", bytes("a single message"))));

        Message properties = new Message(topic, "TagB", "key-2 key-3", bytes("with properties, flag and text: \u00e9\u4e2d\ud83d\ude00"));
        properties.setFlag(7);
        properties.putUserProperty("colour", "\u84dd \"quoted\" \\ back");
        show("properties", producer.send(properties));

        StringBuilder large = new StringBuilder();
        for (int i = 0; i < 600; i++) {
            large.append("compressible ");
        }
        show("compressed", producer.send(new Message(topic, "TagA", "key-4", bytes(large.toString()))));

        Message delayed = new Message(topic, "TagA", "key-5", bytes("delayed by level 1"));
        delayed.setDelayTimeLevel(1);
        show("delayed", producer.send(delayed));

        show("refused", producer.send(new Message(topic, "TagA", "key-6", bytes("refuse-once"))));
        producer.sendOneway(new Message(topic, "TagA", "key-7", bytes("one way")));

        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            batch.add(new Message(topic, "TagC", "batch-" + i, bytes("batch message " + i)));
        }
        show("batch", producer.send(batch));
        producer.shutdown();

        CountDownLatch checked = new CountDownLatch(1);
        TransactionMQProducer transactions = new TransactionMQProducer(group + "-transactions");
        transactions.setNamesrvAddr(nameServers);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object wanted) {
                return (LocalTransactionState) wanted;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactions.start();
        for (LocalTransactionState state : Arrays.asList(LocalTransactionState.COMMIT_MESSAGE,
            LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.UNKNOW)) {
            Message half = new Message(topic, "TagT", "transaction-" + state, bytes("transaction " + state));
            half.putUserProperty(MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, "1");
            show("transaction-" + state, transactions.sendMessageInTransaction(half, state));
        }
        say("checked %s", checked.await(40, TimeUnit.SECONDS));
        transactions.shutdown();
    }

    private static void show(String name, SendResult result) {
        say("id %s %s %s", name, result.getMsgId(), result.getOffsetMsgId());
    }
}

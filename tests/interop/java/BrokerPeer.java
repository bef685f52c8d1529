import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * RocketMQ's official Java client in the ways that only a broker notices; compiled over 4.9.8 and over 5.x.
 *
 * <pre>
 *   sync      NAMESRV TOPIC GROUP COUNT                sent N failed M, from four threads
 *   async     NAMESRV TOPIC GROUP COUNT                sent N failed M
 *   oneway    NAMESRV TOPIC GROUP COUNT                sent N failed 0
 *   batch     NAMESRV TOPIC GROUP COUNT                sent N failed M, in batches of 50
 *   select    NAMESRV TOPIC GROUP COUNT                sent N failed M; bodies KEY:NUMBER, 16 keys, one queue for each
 *   delayed   NAMESRV TOPIC GROUP LEVEL                sent N failed M, one message
 *   consume   NAMESRV TOPIC GROUP EXPECTED WAIT_S      received UNIQUE duplicates D
 *   share     NAMESRV TOPIC GROUP EXPECTED WAIT_S      received UNIQUE duplicates D, by three members that come and go
 *   orderly   NAMESRV TOPIC GROUP EXPECTED WAIT_S      received UNIQUE inversions I
 *   broadcast NAMESRV TOPIC GROUP EXPECTED WAIT_S      received UNIQUE duplicates D, twice: two members
 *   failing   NAMESRV TOPIC GROUP TRIES WAIT_S         try N for each delivery of a message that always fails; done
 *   lite      NAMESRV TOPIC GROUP EXPECTED WAIT_S      received UNIQUE duplicates D; committed N; sought N
 *   pull      NAMESRV TOPIC GROUP EXPECTED             received UNIQUE duplicates D; committed N; since N
 *   lookup    NAMESRV TOPIC GROUP COUNT                found N by offset id, N by unique id, N by key
 *   request   NAMESRV TOPIC GROUP COUNT                answered N, each by its own reply
 *   trace     NAMESRV TOPIC GROUP WAIT_S               traced KIND KIND ..., of one message
 *   session                                            runs commands from standard input, words separated by tabs,
 *                                                      and writes "> " before every line of an answer
 * </pre>
 *
 * A listener says "ready" when it has started.
 */
public final class BrokerPeer {
    private static String mark = ""; // In a session, what tells answers from the client's own words.
    private static final String END = "=== end of command ===";
    private static final int BATCH = 50;
    private static final int KEYS = 16;
    private static final int SENDING_THREADS = 4;

    private BrokerPeer() {
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("session")) {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            mark = "> ";
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                try {
                    run(line.split("\t", -1));
                } catch (Throwable error) {
                    error.printStackTrace(System.out);
                    say("failed %s", error);
                }
                System.out.println(END);
                System.out.flush();
            }
            System.exit(0);
        }
        try {
            run(args);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        run(args[0], args[1], args[2], args[3], Integer.parseInt(args[4]),
            args.length > 5 ? Integer.parseInt(args[5]) : 0);
    }

    private static void run(String command, String servers, String topic, String group, int count, int waitS)
        throws Exception {
        switch (command) {
            case "sync":
            case "async":
            case "oneway":
            case "batch":
            case "select":
            case "delayed":
                produce(command, servers, topic, group, count);
                break;
            case "consume":
                consume(servers, topic, group, count, waitS);
                break;
            case "share":
                share(servers, topic, group, count, waitS);
                break;
            case "broadcast":
                broadcast(servers, topic, group, count, waitS);
                break;
            case "orderly":
                orderly(servers, topic, group, count, waitS);
                break;
            case "failing":
                failing(servers, topic, group, count, waitS);
                break;
            case "lite":
                lite(servers, topic, group, count, waitS);
                break;
            case "pull":
                pull(servers, topic, group, count);
                break;
            case "lookup":
                lookup(servers, topic, group, count);
                break;
            case "request":
                request(servers, topic, group, count);
                break;
            case "trace":
                trace(servers, topic, group, count);
                break;
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private static void say(String format, Object... values) {
        System.out.printf(mark + format + "%n", values);
        System.out.flush();
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "TagA", body.replace(':', '-'), body.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void inThreads(int count, Runnable work) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            threads.add(new Thread(work));
            threads.get(i).start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static DefaultMQProducer producer(String servers, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(servers);
        producer.start();
        return producer;
    }

    private static void produce(String kind, String servers, String topic, String group, int count)
        throws Exception {
        DefaultMQProducer producer = producer(servers, group);
        AtomicInteger sent = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        if (kind.equals("delayed")) {
            Message delayed = message(topic, "delayed");
            delayed.setDelayTimeLevel(count);
            count(producer.send(delayed), 1, sent, failed);
        } else if (kind.equals("sync")) {
            AtomicInteger next = new AtomicInteger();
            inThreads(SENDING_THREADS, () -> {
                for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
                    try {
                        count(producer.send(message(topic, "message-" + i)), 1, sent, failed);
                    } catch (Exception error) {
                        failed.incrementAndGet();
                        say("failed %s", String.valueOf(error).replace('\n', ' '));
                    }
                }
            });
        } else if (kind.equals("async")) {
            Semaphore room = new Semaphore(256);
            for (int i = 0; i < count; i++) {
                room.acquire();
                producer.send(message(topic, "message-" + i), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        BrokerPeer.count(result, 1, sent, failed);
                        room.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failed.incrementAndGet();
                        say("failed %s", String.valueOf(error).replace('\n', ' '));
                        room.release();
                    }
                });
            }
            room.acquire(256);
        } else if (kind.equals("oneway")) {
            count(producer.send(message(topic, "message-0")), 1, sent, failed);
            for (int i = 1; i < count; i++) {
                producer.sendOneway(message(topic, "message-" + i));
                sent.incrementAndGet();
            }
            // A oneway send leaves with the connection; an answered one behind it says that all have arrived.
            producer.send(message(topic + "End", "end"));
            Thread.sleep(500);
        } else if (kind.equals("batch")) {
            for (int i = 0; i < count; i += BATCH) {
                List<Message> batch = new ArrayList<>();
                for (int j = i; j < Math.min(count, i + BATCH); j++) {
                    batch.add(message(topic, "message-" + j));
                }
                count(producer.send(batch), batch.size(), sent, failed);
            }
        } else {
            AtomicInteger next = new AtomicInteger();
            inThreads(SENDING_THREADS, () -> {
                // A thread has keys of its own, so that each key's messages leave in order.
                int first = next.getAndIncrement();
                for (int i = 0; i < count; i++) {
                    int key = i % KEYS;
                    if (key % SENDING_THREADS != first) {
                        continue;
                    }
                    try {
                        count(producer.send(message(topic, key + ":" + i / KEYS),
                            (queues, text, chosen) -> queues.get((Integer) chosen % queues.size()), key),
                            1, sent, failed);
                    } catch (Exception error) {
                        failed.incrementAndGet();
                        say("failed %s", String.valueOf(error).replace('\n', ' '));
                    }
                }
            });
        }
        say("sent %d failed %d", sent.get(), failed.get());
        producer.shutdown();
    }

    private static void count(SendResult result, int messages, AtomicInteger sent, AtomicInteger failed) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
            sent.addAndGet(messages);
        } else {
            failed.addAndGet(messages);
            say("failed %s", result.getSendStatus());
        }
    }

    private static DefaultMQPushConsumer consumer(String servers, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(2000);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    /** What one or more members of a group have received. */
    private static final class Received implements MessageListenerConcurrently {
        private final Set<String> seen = ConcurrentHashMap.newKeySet();
        private final AtomicInteger duplicates = new AtomicInteger();
        private final CountDownLatch all;

        Received(int expected) {
            all = new CountDownLatch(expected);
        }

        void add(MessageExt message) {
            if (seen.add(text(message))) {
                all.countDown();
            } else {
                duplicates.incrementAndGet();
            }
        }

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages,
            ConsumeConcurrentlyContext context) {
            messages.forEach(this::add);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        boolean await(long waitMs) throws InterruptedException {
            return all.await(waitMs, TimeUnit.MILLISECONDS);
        }

        void report() {
            say("received %d duplicates %d", seen.size(), duplicates.get());
        }
    }

    private static DefaultMQPushConsumer member(String servers, String topic, String group, Received received)
        throws Exception {
        DefaultMQPushConsumer consumer = consumer(servers, topic, group);
        consumer.registerMessageListener(received);
        consumer.start();
        return consumer;
    }

    private static void consume(String servers, String topic, String group, int expected, int waitS) throws Exception {
        Received received = new Received(expected);
        DefaultMQPushConsumer consumer = member(servers, topic, group, received);
        say("ready");
        received.await(waitS * 1000L);
        received.report();
        consumer.shutdown();
    }

    private static void share(String servers, String topic, String group, int expected, int waitS) throws Exception {
        Received received = new Received(expected);
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            members.add(member(servers, topic, group, received));
            received.await(300);
        }
        while (members.size() > 1) {
            members.remove(0).shutdown();
            received.await(300);
        }
        received.await(waitS * 1000L);
        received.report();
        members.get(0).shutdown();
    }

    private static void broadcast(String servers, String topic, String group, int expected, int waitS)
        throws Exception {
        List<Received> received = new ArrayList<>();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (String name : new String[] {"one", "two"}) {
            DefaultMQPushConsumer consumer = consumer(servers, topic, group);
            consumer.setMessageModel(MessageModel.BROADCASTING);
            consumer.setInstanceName(group + name);
            received.add(new Received(expected));
            consumer.registerMessageListener(received.get(received.size() - 1));
            consumer.start();
            members.add(consumer);
        }
        for (Received one : received) {
            one.await(waitS * 1000L);
            one.report();
        }
        members.forEach(DefaultMQPushConsumer::shutdown);
    }

    private static void lite(String servers, String topic, String group, int expected, int waitS) throws Exception {
        Received received = new Received(expected);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(32);
        consumer.subscribe(topic, "*");
        consumer.start();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(waitS);
        while (!received.await(0) && System.nanoTime() < deadline) {
            consumer.poll(1000).forEach(received::add);
        }
        received.report();
        consumer.commitSync();
        Thread.sleep(500); // Some releases commit in the background, whatever the name says.
        consumer.shutdown();

        // A second one of the same group reads what was committed, and assigns itself a queue to look back.
        DefaultLitePullConsumer second = new DefaultLitePullConsumer(group);
        second.setNamesrvAddr(servers);
        second.start();
        long committed = 0;
        MessageQueue some = null;
        for (MessageQueue queue : second.fetchMessageQueues(topic)) {
            committed += Math.max(0, second.committed(queue));
            some = some == null || queue.getQueueId() < some.getQueueId() ? queue : some;
        }
        say("committed %d", committed);
        second.assign(List.of(some));
        second.seek(some, 7);
        List<MessageExt> found = List.of();
        while (found.isEmpty() && System.nanoTime() < deadline) {
            found = second.poll(1000);
        }
        say("sought %d", found.get(0).getQueueOffset());
        second.shutdown();
    }

    private static void pull(String servers, String topic, String group, int expected) throws Exception {
        Received received = new Received(expected);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.start();
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic);
        long committed = 0;
        long since = 0;
        for (MessageQueue queue : queues) {
            long offset = consumer.minOffset(queue);
            long middleMs = 0;
            while (offset < consumer.maxOffset(queue)) {
                PullResult result = consumer.pull(queue, "*", offset, 32);
                if (result.getPullStatus() != PullStatus.FOUND) {
                    say("failed at %s %d: %s", queue, offset, result.getPullStatus());
                    return;
                }
                result.getMsgFoundList().forEach(received::add);
                middleMs = result.getMsgFoundList().get(0).getStoreTimestamp();
                offset = result.getNextBeginOffset();
            }
            if (consumer.pull(queue, "*", offset, 32).getPullStatus() != PullStatus.NO_NEW_MSG) {
                say("failed: something beyond the end of %s", queue);
            }
            consumer.updateConsumeOffset(queue, offset);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
            long first = consumer.searchOffset(queue, middleMs);
            MessageExt at = consumer.pull(queue, "*", first, 1).getMsgFoundList().get(0);
            since += at.getStoreTimestamp() == middleMs ? 1 : 0;
        }
        Thread.sleep(200); // Commits are oneway.
        for (MessageQueue queue : queues) {
            committed += consumer.fetchConsumeOffset(queue, true);
        }
        received.report();
        say("committed %d", committed);
        say("since %d of %d", since, queues.size());
        consumer.shutdown();
    }

    private static void lookup(String servers, String topic, String group, int count) throws Exception {
        DefaultMQProducer producer = producer(servers, group);
        List<SendResult> results = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            results.add(producer.send(message(topic, "look-" + i)));
        }
        int byOffset = 0;
        int byUnique = 0;
        int byKey = 0;
        for (int i = 0; i < count; i++) {
            SendResult result = results.get(i);
            String body = "look-" + i;
            byOffset += body.equals(text(producer.viewMessage(topic, result.getOffsetMsgId()))) ? 1 : 0;
            byUnique += body.equals(text(eventually(() -> producer.viewMessage(topic, result.getMsgId())))) ? 1 : 0;
            List<MessageExt> found = eventually(
                () -> producer.queryMessage(topic, body, 8, 0, System.currentTimeMillis() + 1000).getMessageList());
            byKey += found.size() == 1 && body.equals(text(found.get(0))) ? 1 : 0;
        }
        say("found %d by offset id, %d by unique id, %d by key", byOffset, byUnique, byKey);
        producer.shutdown();
    }

    private interface Question<T> {
        T ask() throws Exception;
    }

    /** The index follows the log; what is not there yet comes within seconds. */
    private static <T> T eventually(Question<T> question) throws Exception {
        for (int i = 0;; i++) {
            try {
                T answer = question.ask();
                if (answer != null) {
                    return answer;
                }
            } catch (MQClientException error) {
                if (i == 50) {
                    throw error;
                }
            }
            if (i >= 50) {
                throw new IllegalStateException("no answer");
            }
            Thread.sleep(100);
        }
    }

    private static void request(String servers, String topic, String group, int count) throws Exception {
        DefaultMQProducer replies = producer(servers, group + "-replies");
        DefaultMQPushConsumer consumer = consumer(servers, topic, group);
        CountDownLatch replied = new CountDownLatch(count); // An answer arrives before its sender knows that it did.
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (message.getProperty(MessageConst.PROPERTY_MESSAGE_REPLY_TO_CLIENT) == null) {
                    continue; // The message that made the topic.
                }
                try {
                    String answer = "re: " + text(message);
                    replies.send(MessageUtil.createReplyMessage(message, answer.getBytes(StandardCharsets.UTF_8)), 5000);
                    replied.countDown();
                } catch (Exception error) {
                    say("failed %s", error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = producer(servers, group + "-asks");
        int answered = 0;
        for (int i = 0; i < count; i++) {
            CompletableFuture<String> answer = new CompletableFuture<>();
            Message question = message(topic, "ask-" + i);
            // From 5.x on, waiting for the answer gives up as soon as the question is stored: apache/rocketmq#9319.
            if (i % 2 == 0 && MQVersion.CURRENT_VERSION < MQVersion.Version.V5_0_0.ordinal()) {
                answer.complete(text(producer.request(question, 20_000)));
            } else {
                producer.request(question, (queues, text, chosen) -> queues.get(0), null, new RequestCallback() {
                    @Override
                    public void onSuccess(Message message) {
                        answer.complete(text(message));
                    }

                    @Override
                    public void onException(Throwable error) {
                        answer.completeExceptionally(error);
                    }
                }, 20_000);
            }
            answered += answer.get(20, TimeUnit.SECONDS).equals("re: ask-" + i) ? 1 : 0;
        }
        replied.await(10, TimeUnit.SECONDS);
        say("answered %d", answered);
        producer.shutdown();
        consumer.shutdown();
        replies.shutdown();
    }

    private static void trace(String servers, String topic, String group, int waitS) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer", true, null);
        producer.setNamesrvAddr(servers);
        producer.start();
        Message traced = message(topic, "traced");
        if (MQVersion.CURRENT_VERSION >= MQVersion.Version.V5_0_0.ordinal()) {
            // A consumer of 5.x is silent about messages without a region, and 4.9.8's broker does not add it.
            MessageAccessor.putProperty(traced, MessageConst.PROPERTY_MSG_REGION, "DefaultRegion");
        }
        SendResult sent = producer.send(traced);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, null);
        consumer.setNamesrvAddr(servers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Received received = new Received(1);
        consumer.registerMessageListener(received);
        consumer.start();
        received.await(waitS * 1000L);
        Set<String> kinds = new TreeSet<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(waitS);
        while (kinds.size() < 3 && System.nanoTime() < deadline) {
            Thread.sleep(200);
            try {
                List<MessageExt> traces = producer.queryMessage("RMQ_SYS_TRACE_TOPIC", sent.getMsgId(), 32, 0,
                    System.currentTimeMillis() + 1000).getMessageList();
                for (MessageExt one : traces) {
                    for (String item : text(one).split("\u0002")) {
                        kinds.add(item.split("\u0001")[0]);
                    }
                }
            } catch (MQClientException error) {
                continue; // Not indexed yet.
            }
        }
        say("traced %s", String.join(" ", kinds));
        consumer.shutdown();
        producer.shutdown();
    }

    private static void orderly(String servers, String topic, String group, int expected, int waitS) throws Exception {
        DefaultMQPushConsumer consumer = consumer(servers, topic, group);
        Map<String, Integer> next = new ConcurrentHashMap<>();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger inversions = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(expected);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = text(message);
                String[] parts = body.split(":");
                int number = Integer.parseInt(parts[1]);
                if (number > next.getOrDefault(parts[0], 0)) {
                    inversions.incrementAndGet();
                }
                next.merge(parts[0], number + 1, Math::max);
                if (seen.add(body)) {
                    all.countDown();
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        say("ready");
        all.await(waitS, TimeUnit.SECONDS);
        say("received %d inversions %d", seen.size(), inversions.get());
        consumer.shutdown();
    }

    private static void failing(String servers, String topic, String group, int tries, int waitS) throws Exception {
        DefaultMQPushConsumer consumer = consumer(servers, topic, group);
        consumer.setMaxReconsumeTimes(tries);
        CountDownLatch all = new CountDownLatch(tries + 1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("try %d of %s topic %s", message.getReconsumeTimes(), message.getMsgId(), message.getTopic());
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        say("ready");
        all.await(waitS, TimeUnit.SECONDS);
        Thread.sleep(1000); // The last send-back is on its way.
        say("done");
        consumer.shutdown();
    }
}

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * RocketMQ's official Java client in the ways that only a broker notices.
 *
 * <pre>
 *   async     NAMESRV TOPIC GROUP COUNT                sent N failed M
 *   oneway    NAMESRV TOPIC GROUP COUNT                sent N failed 0
 *   batch     NAMESRV TOPIC GROUP COUNT                sent N failed M, in batches of 50
 *   select    NAMESRV TOPIC GROUP COUNT                sent N failed M; bodies KEY:NUMBER, 16 keys, one queue for each
 *   delayed   NAMESRV TOPIC GROUP LEVEL                sent N failed M, one message
 *   consume   NAMESRV TOPIC GROUP EXPECTED WAIT_S      received UNIQUE duplicates D
 *   orderly   NAMESRV TOPIC GROUP EXPECTED WAIT_S      received UNIQUE inversions I
 *   broadcast NAMESRV TOPIC GROUP EXPECTED WAIT_S      received UNIQUE duplicates D
 *   failing   NAMESRV TOPIC GROUP TRIES WAIT_S         try N for each delivery of a message that always fails; done
 * </pre>
 *
 * A listener says "ready" when it has started.
 */
public final class BrokerPeer {
    private static final int BATCH = 50;
    private static final int KEYS = 16;

    private BrokerPeer() {
    }

    public static void main(String[] args) {
        try {
            run(args[0], args[1], args[2], args[3], Integer.parseInt(args[4]),
                args.length > 5 ? Integer.parseInt(args[5]) : 0);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String command, String servers, String topic, String group, int count, int waitS)
        throws Exception {
        switch (command) {
            case "async":
            case "oneway":
            case "batch":
            case "select":
            case "delayed":
                produce(command, servers, topic, group, count);
                break;
            case "consume":
            case "broadcast":
                consume(servers, topic, group, count, waitS, command.equals("broadcast"));
                break;
            case "orderly":
                orderly(servers, topic, group, count, waitS);
                break;
            case "failing":
                failing(servers, topic, group, count, waitS);
                break;
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    private static void say(String format, Object... values) {
        System.out.printf(format + "%n", values);
        System.out.flush();
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "TagA", body.replace(':', '-'), body.getBytes(StandardCharsets.UTF_8));
    }

    private static void produce(String kind, String servers, String topic, String group, int count)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(servers);
        producer.start();
        AtomicInteger sent = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        // The route must be there before many threads ask for it at once.
        if (kind.equals("delayed")) {
            Message delayed = message(topic, "delayed");
            delayed.setDelayTimeLevel(count);
            count(producer.send(delayed), 1, sent, failed);
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
            for (int i = 0; i < count; i++) {
                int key = i % KEYS;
                SendResult result = producer.send(message(topic, key + ":" + i / KEYS),
                    (queues, text, chosen) -> queues.get((Integer) chosen % queues.size()), key);
                count(result, 1, sent, failed);
            }
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

    private static void consume(String servers, String topic, String group, int expected, int waitS, boolean broadcast)
        throws Exception {
        DefaultMQPushConsumer consumer = consumer(servers, topic, group);
        if (broadcast) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger duplicates = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(expected);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (seen.add(new String(message.getBody(), StandardCharsets.UTF_8))) {
                    all.countDown();
                } else {
                    duplicates.incrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("ready");
        all.await(waitS, TimeUnit.SECONDS);
        say("received %d duplicates %d", seen.size(), duplicates.get());
        consumer.shutdown();
    }

    private static void orderly(String servers, String topic, String group, int expected, int waitS) throws Exception {
        DefaultMQPushConsumer consumer = consumer(servers, topic, group);
        Map<String, Integer> next = new ConcurrentHashMap<>();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger inversions = new AtomicInteger();
        CountDownLatch all = new CountDownLatch(expected);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
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

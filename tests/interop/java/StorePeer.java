import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What the swap of a store needs of the official client.
 *
 * <pre>
 *   traffic NAMESRV TOPIC GROUP FIRST COUNT   singles and batches with tags and keys; sent N
 *   drain   NAMESRV TOPIC GROUP EXPECTED      message QUEUE OFFSET BORNHOST TAG KEYS BODY for each; received N
 *   query   NAMESRV TOPIC KEY...              key KEY COUNT BODY... for each; what queryMsgByKey asks for
 * </pre>
 *
 * KEYS has commas for spaces, BODY is base64.
 */
public final class StorePeer {
    private StorePeer() {
    }

    public static void main(String[] args) {
        try {
            switch (args[0]) {
                case "traffic":
                    traffic(args[1], args[2], args[3], Integer.parseInt(args[4]), Integer.parseInt(args[5]));
                    break;
                case "drain":
                    drain(args[1], args[2], args[3], Integer.parseInt(args[4]));
                    break;
                case "query":
                    query(args);
                    break;
                default:
                    throw new IllegalArgumentException("unknown command " + args[0]);
            }
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void say(String format, Object... values) {
        synchronized (System.out) {
            System.out.printf(format + "%n", values);
            System.out.flush();
        }
    }

    private static String base64(byte[] data) {
        return Base64.getEncoder().encodeToString(data);
    }

    private static Message message(String topic, int number) {
        StringBuilder body = new StringBuilder("message-" + number + " ");
        for (int i = 0; i < number % 40; i++) {
            body.append("\u4e2dfiller ");
        }
        Message message = new Message(topic, "Tag" + number % 3, "key-" + number + " shared-" + number % 7,
            body.toString().getBytes(StandardCharsets.UTF_8));
        message.setFlag(number);
        message.putUserProperty("colour", number % 2 == 0 ? "red" : "\u84dd");
        return message;
    }

    private static void traffic(String nameServers, String topic, String group, int first, int count)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServers);
        producer.setCompressMsgBodyOverHowmuch(300); // Some bodies go compressed.
        producer.start();
        int sent = 0;
        while (sent < count) {
            if (sent % 10 == 7 && sent + 4 <= count) {
                List<Message> batch = new ArrayList<>();
                for (int i = 0; i < 4; i++) {
                    batch.add(message(topic, first + sent + i));
                }
                SendResult result = producer.send(batch);
                sent += 4;
            } else {
                producer.send(message(topic, first + sent));
                sent++;
            }
        }
        say("sent %d", sent);
        producer.shutdown();
    }

    private static void drain(String nameServers, String topic, String group, int expected) throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (seen.add(message.getQueueId() + ":" + message.getQueueOffset())) {
                    say("message %d %d %s %s %s %s", message.getQueueId(), message.getQueueOffset(),
                        message.getBornHostString(), message.getTags(),
                        String.valueOf(message.getKeys()).replace(' ', ','), base64(message.getBody()));
                }
            }
            if (seen.size() >= expected) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await(60, TimeUnit.SECONDS);
        say("received %d", seen.size());
        consumer.shutdown();
    }

    private static void query(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("store-peer-queries");
        producer.setNamesrvAddr(args[1]);
        producer.start();
        for (int i = 3; i < args.length; i++) {
            StringBuilder bodies = new StringBuilder();
            int count = 0;
            try {
                QueryResult result = producer.queryMessage(args[2], args[i], 64, 0, Long.MAX_VALUE);
                for (MessageExt message : result.getMessageList()) {
                    bodies.append(' ').append(base64(message.getBody()));
                    count++;
                }
            } catch (Exception error) {
                bodies.append(' ').append(String.valueOf(error).replace(' ', '_').replace('\n', '_'));
            }
            say("key %s %d%s", args[i], count, bodies);
        }
        producer.shutdown();
    }
}

import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends messages of every form with the official client, and prints what the official consumer reads.
 *
 * SparkPeer NAMESRV TOPIC GROUP
 *
 * Prints "> row NAME=HEX ..." for each message of the topic and of the group's retry topic, each value
 * as hex of its UTF-8 text, "-" for null; properties as name and value in turn, joined by dots. Then "> done".
 */
public class SparkPeer {
    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String topic = arguments[1];
        String group = arguments[2];
        int sent = produce(servers, topic);
        retry(servers, topic, group, sent);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("readers-" + group);
        consumer.setNamesrvAddr(servers);
        consumer.start();
        read(consumer, topic, sent);
        read(consumer, "%RETRY%" + group, 1);
        System.out.println("> done");
        System.exit(0);
    }

    private static int produce(String servers, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers-" + topic);
        producer.setNamesrvAddr(servers);
        producer.start();
        Random random = new Random(5);
        int count = 0;
        for (int size : new int[] {1, 100, 4_095, 4_097, 20_000, 300_000}) {
            byte[] noise = new byte[size];
            random.nextBytes(noise);
            producer.send(new Message(topic, noise)); // Above 4,096 it is compressed, and grows by that.
            producer.send(new Message(topic, "TagA", "zeros-" + size, new byte[size]));
            count += 2;
        }
        for (String kind : new String[] {"LZ4", "ZSTD"}) {
            System.setProperty("rocketmq.message.compressType", kind);
            DefaultMQProducer other = new DefaultMQProducer("producers-" + topic + "-" + kind);
            other.setNamesrvAddr(servers);
            other.start();
            byte[] noise = new byte[4_097];
            random.nextBytes(noise);
            other.send(new Message(topic, noise));
            other.send(new Message(topic, "TagA", "zeros-" + kind, new byte[300_000]));
            other.shutdown();
            count += 2;
        }
        Message odd = new Message(topic, "Tag-\u00e9\u4e2d", "k1 k2 \u0431", 77, "\u00fc\ud83d\ude00".getBytes(StandardCharsets.UTF_8), true);
        odd.putUserProperty("quotes", "'\"`\\");
        odd.putUserProperty("space tab", "a\tb\nc d ");
        odd.putUserProperty("\u4e2d\u6587=;&", "\u0000\u0003\u007f\ud83d\ude00");
        odd.putUserProperty("long", new String(new char[5_000]).replace('\0', 'x'));
        producer.send(odd);
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            Message one = new Message(topic, "TagB", "b" + number, ("batch " + number).getBytes(StandardCharsets.UTF_8));
            one.putUserProperty("number", String.valueOf(number));
            batch.add(one);
        }
        producer.send(batch);
        Message late = new Message(topic, "Late", "late".getBytes(StandardCharsets.UTF_8));
        late.setDelayTimeLevel(1);
        producer.send(late);
        producer.shutdown();
        return count + 1 + batch.size() + 1;
    }

    /** Consumes everything, and gives one message back, so that it is stored once more. */
    private static void retry(String servers, String topic, String group, int expected) throws Exception {
        CountDownLatch left = new CountDownLatch(expected + 1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            left.countDown();
            MessageExt message = messages.get(0);
            boolean isChosen = "b7".equals(message.getKeys()) && message.getReconsumeTimes() == 0;
            return isChosen ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!left.await(60, TimeUnit.SECONDS)) {
            System.out.println("> timeout " + left.getCount());
        }
        consumer.shutdown();
    }

    private static void read(DefaultMQPullConsumer consumer, String topic, int expected) throws Exception {
        int count = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue);
            while (offset < consumer.maxOffset(queue)) {
                PullResult result = consumer.pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        print(message, queue);
                        count++;
                    }
                }
                offset = result.getNextBeginOffset();
            }
        }
        System.out.println("> read " + topic + " " + count + " of " + expected);
    }

    private static void print(MessageExt message, MessageQueue queue) {
        StringJoiner pairs = new StringJoiner(".");
        for (Map.Entry<String, String> pair : new TreeMap<>(message.getProperties()).entrySet()) {
            pairs.add(hex(pair.getKey())).add(hex(pair.getValue()));
        }
        StringJoiner row = new StringJoiner(" ");
        row.add("topic=" + hex(message.getTopic())).add("broker=" + hex(queue.getBrokerName()));
        row.add("queue_id=" + message.getQueueId()).add("queue_offset=" + message.getQueueOffset());
        row.add("body=" + hex(message.getBody())).add("tag=" + hex(message.getTags()));
        row.add("keys=" + hex(message.getKeys())).add("properties=" + pairs);
        row.add("message_id=" + hex(message.getMsgId()));
        row.add("born_time=" + message.getBornTimestamp()).add("store_time=" + message.getStoreTimestamp());
        row.add("reconsume_times=" + message.getReconsumeTimes()).add("flag=" + message.getFlag());
        row.add("sys_flag=" + message.getSysFlag()).add("physical_offset=" + message.getCommitLogOffset());
        row.add("born_host=" + hex(address(message.getBornHost())));
        row.add("store_host=" + hex(address(message.getStoreHost())));
        row.add("offset_message_id=" + hex(((MessageClientExt) message).getOffsetMsgId()));
        System.out.println("> row " + row);
    }

    private static String address(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        return address.getAddress().getHostAddress() + ":" + address.getPort();
    }

    private static String hex(String text) {
        return text == null ? "-" : hex(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String hex(byte[] bytes) {
        StringBuilder found = new StringBuilder(2 * bytes.length);
        for (byte one : bytes) {
            found.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return found.toString();
    }
}

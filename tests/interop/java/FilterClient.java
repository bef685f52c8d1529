import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's official Java client with message selectors; commands from standard input, words separated by tabs.
 *
 * <pre>
 *   produce NAMESRV TOPIC FIRST COUNT         messages FIRST...: property a, and b for every third; tag by turns
 *   push    NAMESRV TOPIC GROUP EXPECTED SQL  numbers of what was received, when no more came for a second
 *   pull    NAMESRV TOPIC GROUP EXPECTED SQL  the same by pull(queue, selector, ...)
 *   lite    NAMESRV TOPIC GROUP EXPECTED SQL  the same by a lite pull consumer
 *   start   NAMESRV TOPIC GROUP 0 SQL         "started", or what start() threw
 *   tags    NAMESRV TOPIC GROUP EXPECTED TAGS push, by tags
 * </pre>
 *
 * Every line of an answer begins with "> ".
 */
public final class FilterClient {
    private static final String END = "=== end of command ===";
    private static final long QUIET_MS = 1_000;
    private static final long PATIENCE_MS = 60_000;

    private FilterClient() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                run(line.split("\t", -1));
            } catch (Throwable error) {
                error.printStackTrace(System.out);
                System.out.println("> failed " + error);
            }
            System.out.println(END);
            System.out.flush();
        }
        System.exit(0);
    }

    private static void run(String[] args) throws Exception {
        String servers = args[1];
        String topic = args[2];
        if (args[0].equals("produce")) {
            produce(servers, topic, Integer.parseInt(args[3]), Integer.parseInt(args[4]));
            return;
        }
        String group = args[3];
        int expected = Integer.parseInt(args[4]);
        MessageSelector selector = args[0].equals("tags") ? MessageSelector.byTag(args[5]) : MessageSelector.bySql(args[5]);
        if (args[0].equals("pull")) {
            say(pull(servers, topic, group, selector));
        } else if (args[0].equals("lite")) {
            say(lite(servers, topic, group, expected, selector));
        } else {
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(servers);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, selector);
            Set<Integer> got = new ConcurrentSkipListSet<>();
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(one -> got.add(number(one)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            try {
                consumer.start();
                if (args[0].equals("start")) {
                    System.out.println("> started");
                } else {
                    settle(got, expected);
                    say(got);
                }
            } catch (MQClientException error) {
                System.out.println("> refused " + error.getResponseCode() + " " + error.getMessage().replace('\n', ' '));
            } finally {
                consumer.shutdown();
            }
        }
    }

    private static int number(MessageExt message) {
        return Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8));
    }

    private static void say(Set<Integer> got) {
        StringBuilder line = new StringBuilder("> ");
        for (int one : got) {
            line.append(one).append(' ');
        }
        System.out.println(line.toString().stripTrailing());
    }

    private static void settle(Set<Integer> got, int expected) throws InterruptedException {
        long start = System.currentTimeMillis();
        while (got.size() < expected && System.currentTimeMillis() - start < PATIENCE_MS) {
            Thread.sleep(20);
        }
        int before = -1;
        while (before != got.size()) {
            before = got.size();
            Thread.sleep(QUIET_MS);
        }
    }

    private static void produce(String servers, String topic, int first, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("filter-producers");
        producer.setNamesrvAddr(servers);
        producer.start();
        String[] tags = {"TagA", "TagB", "TagC"};
        for (int i = first; i < first + count; i++) {
            Message message = new Message(topic, tags[i % 3], "", Integer.toString(i).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("a", Integer.toString(i));
            if (i % 3 == 0) {
                message.putUserProperty("b", i % 2 == 0 ? "true" : "text");
            }
            producer.send(message);
        }
        producer.shutdown();
        System.out.println("> sent " + count);
    }

    @SuppressWarnings("deprecation")
    private static Set<Integer> pull(String servers, String topic, String group, MessageSelector selector) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.start();
        // SQL92 needs the broker's version, which comes with answers to heartbeats, which need the route.
        MQClientInstance instance = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        instance.updateTopicRouteInfoFromNameServer(topic);
        instance.sendHeartbeatToAllBrokerWithLock();
        Set<Integer> got = new TreeSet<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = 0;
            while (offset < consumer.maxOffset(queue)) {
                PullResult result = consumer.pull(queue, selector, offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    result.getMsgFoundList().forEach(one -> got.add(number(one)));
                }
                offset = result.getNextBeginOffset();
            }
        }
        consumer.shutdown();
        return got;
    }

    private static Set<Integer> lite(String servers, String topic, String group, int expected, MessageSelector selector)
        throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, selector);
        consumer.start();
        Set<Integer> got = new TreeSet<>();
        long start = System.currentTimeMillis();
        long last = start;
        while (System.currentTimeMillis() - start < PATIENCE_MS
            && (got.size() < expected || System.currentTimeMillis() - last < QUIET_MS)) {
            List<MessageExt> messages = consumer.poll(200);
            if (!messages.isEmpty()) {
                last = System.currentTimeMillis();
            }
            messages.forEach(one -> got.add(number(one)));
        }
        consumer.shutdown();
        return got;
    }
}

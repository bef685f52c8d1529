import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages that are to come later, and says how late they came.
 *
 * TimerPeer NAMESRV TOPIC SPEC...     a SPEC is level:N, sec:N, ms:N or deliver:MS_FROM_NOW
 *
 * Prints "> sent SPEC STATUS", "> refused SPEC CODE REMARK", then for each that arrives
 * "> got SPEC LATE_MS LEVEL TOPIC TAG", and "> done" when all that were sent have arrived.
 */
public class TimerPeer {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        Map<String, Long> sent = new ConcurrentHashMap<>();
        int count = arguments.length - 2;
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consumers-" + topic);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(new MessageListenerConcurrently() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(
                List<MessageExt> messages, ConsumeConcurrentlyContext context) {
                for (MessageExt message : messages) {
                    String spec = new String(message.getBody(), StandardCharsets.UTF_8);
                    long due = Long.parseLong(message.getUserProperty("due"));
                    long late = message.getStoreTimestamp() - due;
                    System.out.println("> got " + spec + " " + late + " "
                        + message.getDelayTimeLevel() + " " + message.getTopic() + " "
                        + message.getTags());
                    left.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        });
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        producer.send(new Message("Warm" + topic, "x".getBytes(StandardCharsets.UTF_8)));
        for (int at = 2; at < arguments.length; at++) {
            String spec = arguments[at];
            Message message = new Message(topic, "TagA", spec.getBytes(StandardCharsets.UTF_8));
            String[] parts = spec.split(":");
            long value = Long.parseLong(parts[1]);
            long now = System.currentTimeMillis();
            long due = now + set(message, parts[0], value, now);
            message.putUserProperty("due", String.valueOf(due));
            try {
                SendResult result = producer.send(message);
                System.out.println("> sent " + spec + " " + result.getSendStatus());
            } catch (MQBrokerException refused) {
                left.countDown();
                System.out.println("> refused " + spec + " " + refused.getResponseCode() + " "
                    + refused.getErrorMessage());
            }
        }
        consumer.start();
        System.out.println(left.await(60, TimeUnit.SECONDS) ? "> done" : "> timeout");
        producer.shutdown();
        consumer.shutdown();
        System.exit(0);
    }

    /** Sets when it is to be delivered; returns how long from now, by the levels of the test. */
    private static long set(Message message, String kind, long value, long now) throws Exception {
        switch (kind) {
            case "level":
                message.setDelayTimeLevel((int) value);
                return Math.min(value, 3) * 1000;
            case "sec":
                method("setDelayTimeSec").invoke(message, value);
                return value * 1000;
            case "ms":
                method("setDelayTimeMs").invoke(message, value);
                return value;
            default:
                method("setDeliverTimeMs").invoke(message, now + value);
                return value;
        }
    }

    /** 4.9.8 has no such methods. */
    private static Method method(String name) throws Exception {
        return Message.class.getMethod(name, long.class);
    }
}

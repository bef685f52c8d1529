import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BitsArray;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * Apache's evaluator and bloom filter, asked line by line.
 *
 * <pre>
 * sql TEXT [NAME VALUE]...   answers: invalid | true | false | null | error CLASS
 * bloom F N TEXT...          answers: k m positions-of-the-first,... hex-of-the-bits-of-all
 * </pre>
 * Words are separated by tabs, texts in base64.
 */
public class FilterPeer {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            out.append(words[0].equals("sql") ? sql(words) : bloom(words)).append('\n');
        }
        System.out.print(out);
        System.out.flush();
    }

    private static String text(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    private static String sql(String[] words) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text(words[1]));
        } catch (Throwable e) {
            return "invalid";
        }
        Map<String, String> properties = new HashMap<>();
        for (int i = 2; i + 1 < words.length; i += 2) {
            properties.put(text(words[i]), text(words[i + 1]));
        }
        try {
            return String.valueOf(expression.evaluate(new MessageEvaluationContext(properties)));
        } catch (Throwable e) {
            return "error " + e.getClass().getSimpleName();
        }
    }

    private static String bloom(String[] words) {
        BloomFilter filter = BloomFilter.createByFn(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
        BitsArray bits = BitsArray.create(filter.getM());
        for (int i = 3; i < words.length; i++) {
            filter.hashTo(text(words[i]), bits);
        }
        StringBuilder hex = new StringBuilder();
        for (byte one : bits.bytes()) {
            hex.append(String.format("%02x", one));
        }
        String positions = Arrays.toString(filter.calcBitPositions(text(words[3]))).replaceAll("[\\[\\] ]", "");
        return filter.getK() + " " + filter.getM() + " " + positions + " " + hex;
    }
}
